"""The mutants: their table fits the kernels, and a few of them are found out."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import check_power
import mutants
import pytest
from mutant_cases import CASES

from autotune.config import Config
from autotune.machine import INTERPRETED, Machine, machine
from autotune.workloads import workload

BENCH = Path(__file__).parents[2] / "bench"
H200 = Machine("cuda", "NVIDIA H200", "sm_90", 2, 132, 227 * 1024, 50 << 20, "nvlink")

ONE = ("ar ll: words of every launch are alike",)
"""Found by a wrong result, in calls back to back: one that is found by a wait in vain took six times as long."""

FIVE = (
    *ONE, "ar separate ll: one slot", "ar sentinel: a zero goes as an empty word", "ag ragged: the last of K is lost",
    "rs push: no bias",
)  # fmt: skip


def parts(text: str) -> set[str]:
    """The file's functions and what is between them."""
    return set(text.split("\n\n\n"))


def test_every_mutant_can_be_made() -> None:
    for mutant in mutants.MUTANTS:
        assert mutant.case in CASES
        changed = parts(check_power.applied(mutant)) - parts((check_power.PACKAGE / mutant.file).read_text())
        assert changed
        for part in changed:
            ast.parse(part)


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in mutants.MUTANTS]
    assert len(set(names)) == len(names)


def test_a_snippet_that_is_gone_is_an_error(tmp_path: Path) -> None:
    mutant = mutants.MUTANTS[0]
    file = tmp_path / mutant.file
    file.parent.mkdir(parents=True)
    file.write_text("nothing of it\n")
    with pytest.raises(ValueError, match=re.escape(f"{mutant.name}: {mutant.file} has the snippet 0 times, not 1")):
        check_power.applied(mutant, tmp_path)


@pytest.mark.parametrize("gpu", [False, True], ids=["interpreter", "gpu"])
@pytest.mark.parametrize("name", CASES)
def test_cases_are_valid(name: str, gpu: bool) -> None:
    case, here = (CASES[name].on_gpu(), H200) if gpu else (CASES[name], INTERPRETED)
    if not gpu and all(mutant.hardware for mutant in mutants.MUTANTS if mutant.case == name):
        pytest.skip("for GPUs alone")
    found = workload(case.workload)
    problem = found.problem_type(**case.problem, world_size=check_power.RANKS)
    assert found.space.violation(Config(case.config), problem, here) is None


@pytest.mark.skipif(not machine().is_interpreter, reason="on GPUs: bench/check_power.py --gpu")
@pytest.mark.parametrize("few", [ONE, pytest.param(FIVE, marks=pytest.mark.slow)], ids=["one", "five"])
def test_a_few_mutants_are_found_out_and_unbroken_kernels_are_not(tmp_path: Path, few: tuple[str, ...]) -> None:
    out = tmp_path / "mutants.jsonl"
    only = "|".join(f"^{re.escape(name)}$" for name in few)
    command = [sys.executable, str(BENCH / "check_power.py"), "--only", only, "--jobs", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ""})
    rows = {row["name"]: row for row in map(json.loads, out.read_text().splitlines())}
    broken = {name: row for name, row in rows.items() if not name.endswith(check_power.SOUND)}
    assert set(broken) == set(few)
    assert {name for name, row in broken.items() if row["by"] != check_power.EVALUATION} == set(), done.stdout
    assert {row["by"] for name, row in rows.items() if name not in broken} == {check_power.NOTHING}, done.stdout
    assert f"{len(few)} mutants: {len(few)} caught (100.0%)" in done.stdout


def row(name: str, by: str, on: str) -> dict[str, str]:
    return {"name": name, "by": by, "on": on, "outcome": "", "reason": "why"}


def test_a_mutant_is_caught_if_it_is_in_any_arrangement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apart, turns = check_power.GPU_EACH, check_power.IN_TURNS
    caught, proved, unseen, broken = (getattr(check_power, by) for by in ("EVALUATION", "PROOF", "NOTHING", "BROKEN"))
    files = {
        "apart.jsonl": [
            row("a: both", caught, apart), row("a: slot", unseen, apart), row("a: scope", unseen, apart),
            row("a: gone", broken, apart), row("a: unbroken", unseen, apart), row("b: unbroken", unseen, apart),
        ],
        "turns.jsonl": [
            row("a: both", proved, turns), row("a: slot", proved, turns), row("a: scope", unseen, turns),
            row("a: gone", broken, turns), row("a: unbroken", unseen, turns), row("b: unbroken", caught, turns),
        ],
    }  # fmt: skip
    for name, rows in files.items():
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in rows))
    monkeypatch.setattr(sys, "argv", ["check_power.py", "--print", *(str(tmp_path / name) for name in files)])
    check_power.main()
    assert capsys.readouterr().out.splitlines() == [
        "3 mutants: 2 caught (66.7%), 1 of them by the evaluation alone",
        "  a GPU each: 1 caught; by it alone: none",
        "  one GPU in turns: 2 caught; by it alone: a: slot",
        "  survives: a: scope",
        "  to be mended in the table: a: gone:  why",
        "  unbroken, yet refused: b: unbroken (one GPU in turns): why",
        "2 cases unbroken: 1 pass",
    ]


def test_each_arrangement_evaluates_what_only_the_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, asked = tmp_path / "mutants.jsonl", list[tuple[list[str], int, list[str]]]()

    def in_parallel(work: Iterable[Any], jobs: int, seed: int, gpu: bool, devices: Sequence[str]) -> Iterator[Any]:
        names = [name for name, _, _ in work]
        asked.append((names, jobs, list(devices)))
        yield from ({**row(name, check_power.NOTHING, ""), "seconds": 1.0} for name in names)

    monkeypatch.setattr(check_power, "in_parallel", in_parallel)
    monkeypatch.setattr(check_power, "visible_gpus", lambda: ["4", "7"])
    command = ["check_power.py", "--gpu", "--hardware", "--only", "^ag tma", "--jobs", "3", "--out", str(out)]
    for further in (["--minutes", "0"], [], [], ["--in-turns", "--minutes", "0"], ["--in-turns"], ["--in-turns"]):
        monkeypatch.setattr(sys, "argv", [*command, *further])
        check_power.main()
    names = ["ag tma: unbroken", "ag tma: no fence before TMA reads"]
    turns = ["4", "7"]
    assert asked == [([], 3, []), (names, 3, []), ([], 3, []), ([], 3, turns), (names, 3, turns), ([], 3, turns)]
    found = [json.loads(line)["on"] for line in out.read_text().splitlines()]
    assert found == [*[check_power.GPU_EACH] * 2, *[check_power.IN_TURNS] * 2]


def test_ranks_take_turns_on_the_only_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given = list[Sequence[str]]()

    def in_parallel(work: Iterable[Any], jobs: int, seed: int, gpu: bool, devices: Sequence[str]) -> Iterator[Any]:
        given.append(devices)
        yield from ()

    monkeypatch.setattr(check_power, "in_parallel", in_parallel)
    monkeypatch.setattr(check_power, "visible_gpus", lambda: ["3"])
    monkeypatch.setattr(sys, "argv", ["check_power.py", "--gpu"])
    check_power.main()
    assert given == [["3"]]
    monkeypatch.setattr(check_power, "visible_gpus", list)
    with pytest.raises(SystemExit):
        check_power.main()
    assert "torch finds no GPU here" in capsys.readouterr().err


def test_evaluations_that_run_at_a_time_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(mutant: Any, case: Any, seed: int, gpu: bool) -> dict[str, Any]:
        return {"by": os.environ["CUDA_VISIBLE_DEVICES"]}

    monkeypatch.setattr(check_power, "evaluate", evaluate)
    work = [(name, None, CASES["ag push"]) for name in "abcdef"]
    found = list(check_power.in_parallel(work, 1, 0, True, ["5", "6"]))
    assert found == [{"name": name, "by": "5"} for name in "abcdef"]
    both = list(check_power.in_parallel(work, 4, 0, True, ["5", "6"]))
    assert sorted(each["name"] for each in both) == list("abcdef")
    assert {each["by"] for each in both} == {"5", "6"}
