"""A recorded routing on the command line: its file is a problem of its own, and the problem needs the file no more."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from fakes import Bench

from autotune.errors import InputError
from autotune.fleet.problem_list import parse_list

SIZES = ("moe-dispatch", "--tokens", "512", "--hidden", "1024", "--experts", "4", "--top-k", "2")


def recorded(file: str | Path) -> tuple[str, ...]:
    return (*SIZES, "--routing", "recorded", "--histogram", str(file))


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    path = tmp_path / "counts.json"
    path.write_text("[10, 0, 30, 20]")
    return path


def test_it_is_tuned_kept_and_found_by_its_counts(laptop: Bench, counts: Path) -> None:
    made = laptop.tune(*recorded(counts), "--trials", "3", "--effort", "quick")
    assert made.exit_code == 0, made.output
    (listed,) = laptop.json("list", "moe-dispatch")
    assert (listed["problem"]["routing"], listed["problem"]["histogram"]) == ("recorded", "c000zznz")
    command = made.stdout.splitlines()[-1].removeprefix("Next:   tune ").removesuffix(" --open")
    assert command.endswith("--routing recorded --histogram c000zznz")
    exported = laptop.tune("export", "moe-dispatch").stdout
    counts.write_text("1 0 3 2")
    assert "exact" in laptop.tune("lookup", *recorded(counts)).stderr
    assert "exact" in laptop.tune("lookup", *recorded("c000zznz")).stderr
    assert laptop.tune(*command.split()).exit_code == 0
    counts.write_text("1 0 3 3")
    for other in (SIZES, recorded(counts)):
        assert "histogram=c000zznz" in laptop.tune("lookup", *other).stderr, "what these sizes are tuned for"
    file = counts.with_name("exported.json")
    file.write_text(exported)
    other = ("--db", str(counts.with_name("other.db")))
    assert laptop.tune("import", str(file), *other).exit_code == 0
    assert laptop.json("list", *other)[0]["problem"] == listed["problem"]


@pytest.mark.parametrize("text", [None, "1 2 3", "0 0 0 0"])
def test_a_bad_file_is_a_clear_error(laptop: Bench, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "counts"
    if text is not None:
        path.write_text(text)
    refused = laptop.tune(*recorded(path))
    assert refused.exit_code == 2 and "histogram" in refused.stderr, refused.output
    assert not laptop.gangs


def test_a_fleet_s_hosts_get_the_counts(counts: Path) -> None:
    entry = "{workload: moe-dispatch, tokens: 8, hidden: 64, experts: 4, top_k: 2, world_size: 2, routing: recorded, "
    listed = pickle.dumps(parse_list(f"problems: [{entry} histogram: {counts}}}]"))
    counts.unlink()
    assert pickle.loads(listed)[0].problem.as_dict()["histogram"] == "c000zznz"
    with pytest.raises(InputError, match="histogram none"):
        parse_list(f"problems: [{entry} histogram: none}}]")
