"""The file of problems: ranges in the words of the command line, and every mistake named with what is allowed."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.fleet.problem_list import parse_list, read_list

ENTRY = "{workload: all-gather-gemm, m: 16, n: 64, k: 64, world_size: 2}"


def test_sizes_are_lists_and_ranges_as_on_the_command_line() -> None:
    text = "problems: [{workload: all-gather-gemm, m: '4,8,16', n: 64..128, k: 64, world_size: '2,4'}]"
    asked = parse_list(text)
    assert [(each.problem.m, each.problem.n, each.problem.world_size) for each in asked] == [  # type: ignore[attr-defined]
        (m, n, world) for m in (4, 8, 16) for n in (64, 128) for world in (2, 4)
    ]
    assert all(each.search for each in asked)


def test_of_a_doubling_range_few_sizes_are_searched_as_in_a_grid() -> None:
    entry = "{workload: all-gather-gemm, m: 4..256, n: 64, k: 64, world_size: 4, trials: 3}"
    asked = parse_list(f"problems: [{entry}]")
    sizes = {each.problem.m: each for each in asked}  # type: ignore[attr-defined]
    assert [m for m, each in sizes.items() if each.search] == [4, 16, 64, 256]
    between = {m for m, each in sizes.items() if not each.search}
    assert {8, 32, 128} < between and any(m // 4 % 2 for m in between if m > 4), "off the grid of tiles too"
    assert all(each.calls == (m in (4, 8, 16, 32, 64, 128, 256)) for m, each in sizes.items())
    both = parse_list(f"problems: [{entry}, {entry.replace('4..256', '32').replace('trials: 3', 'trials: 9')}]")
    assert [dict(each.options) for each in both if each.problem.m == 32] == [{"trials": 9}], (  # type: ignore[attr-defined]
        "what is to be searched is not verified"
    )
    assert pickle.loads(pickle.dumps(both)) == both


def test_the_file_of_the_docs_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    asked = parse_list(text)
    assert {each.workload.name for each in asked} == {"all_gather_gemm", "gemm_all_reduce", "flash_decode"}
    searched = [each for each in asked if each.search]
    assert len(searched) == 6 + 8 + 3 * 4 and len(asked) > 10 + 8 + 3 * 7 + 5 * 4 - 12, "of ranges few"


def test_defaults_and_options() -> None:
    text = """
    defaults: {n: 64, k: 64, world_size: 2, budget: 5m, regime: graph}
    problems:
      - {workload: all_gather_gemm, m: 16}
      - {workload: gemm-all-reduce, m: 16, budget: 90, trials: 7, effort: full, seed: 3, bias: yes, device: NVIDIA H200,
         regime: isolated}
    """
    first, second = parse_list(text)
    assert (first.workload.name, first.regime, first.options) == ("all_gather_gemm", "graph", (("budget", "5m"),))
    assert dict(second.options) == {"budget": "90s", "trials": 7, "effort": "full", "seed": 3}
    assert second.problem.as_dict()["bias"] is True and second.device == "NVIDIA H200"
    assert second.regime == "isolated"
    assert pickle.loads(pickle.dumps([first, second])) == [first, second]


def test_a_problem_that_is_there_twice_counts_once() -> None:
    assert len(parse_list(f"problems: [{ENTRY}, {ENTRY}]")) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "problems"),
        ("problems: [{workload: gemm, m: 16}]", "problem 1: no workload named 'gemm'"),
        ("problems: [{workload: ./my.py:Mine}]", "./my.py:Mine"),
        ("problems: [{workload: all-gather-gemm, m: 16}]", "world_size, n, k"),
        (f"problems: [{ENTRY[:-1]}, q: 3}}]", "field q"),
        ("problems: [{workload: all-gather-gemm, m: 0x" + "f" * 4000 + "}]", "63 bits"),
        (f"problems: [{ENTRY}, {ENTRY.replace('16', '8..4')}]", "problem 2: m: 8..4"),
        (f"problems: [{ENTRY.replace('16', 'true')}]", "m: True"),
        (f"problems: [{ENTRY[:-1]}, budget: soon}}]", "budget 'soon'"),
        (f"problems: [{ENTRY[:-1]}, m: 32}}]", "twice"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "problems.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_list(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert told in str(caught.value)


def test_a_short_file_whose_aliases_make_a_long_value_is_refused_in_a_short_line() -> None:
    levels = ["&a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"&a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 5)]
    with pytest.raises(InputError) as caught:
        parse_list(f"problems: [{{workload: all-gather-gemm, m: [{', '.join(levels)}]}}]")
    assert str(caught.value).startswith("problem 1: m: [[1, 1, ") and len(str(caught.value)) < 2000


def test_an_entry_takes_the_fields_of_another_one() -> None:
    first, second = (each.problem for each in parse_list(f"problems:\n- &first {ENTRY}\n- {{<<: *first, k: 96}}"))
    assert second == dataclasses.replace(first, k=96) != first


@settings(deadline=None)
@given(st.text(alphabet="problems: [{}]workloadm16,.&*!<>\n-?|", max_size=60))
def test_no_text_brings_a_traceback(text: str) -> None:
    try:
        parse_list(text)
    except InputError as error:
        assert str(error)
