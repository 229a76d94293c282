"""``tune run FILE:CLASS``: a workload in a file of one's own gets what the built-in ones get, by every command."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from fakes import Bench

TOY = f"{Path(__file__).parents[1] / 'toy_workload.py'}:ToyWorkload"


def test_it_is_tuned_kept_found_and_reported_by_its_file_and_class(laptop: Bench) -> None:
    page = laptop.tune("run", TOY, "--help").stdout
    assert "--round-to" in page and "--in-place" in page and "--budget" in page
    assert laptop.tune("run", TOY, "--width", "64", "--trials", "5").exit_code == 0
    assert laptop.json("run", TOY, "--width", "64")["from_cache"]
    laptop.tune("all-gather-gemm", "--trials", "2", "--effort", "quick")
    assert len(laptop.json("list")) == 2 and len(laptop.json("list", "all-gather-gemm")) == 1
    (listed,) = laptop.json("list", TOY)
    assert (listed["workload"], listed["config"]) == ("toy_sum", {"mode": "push", "block_m": 64})
    assert laptop.json("show", TOY, "--width", "64")["found"]
    assert laptop.json("lookup", TOY, "--width", "64")["source"] == "exact"
    assert json.loads(laptop.tune("export", TOY).stdout)
    assert laptop.tune("report", TOY).stdout.startswith("# toy-sum: width=64")
    assert [row["sizes"] for row in laptop.json("grid", TOY, "--width", "64,128", "--no-verify", "--trials", "3")] == [
        {"width": 64}, {"width": 128},
    ]  # fmt: skip


RATIO = re.compile(r"\d\.\d+(x | ± [\d.]+( \(by spread\))? times|</td><td[^>]*>bsp)|<h1>\d\.\d+ times")


def test_times_of_the_interpreter_are_not_compared(laptop: Bench, tmp_path: Path) -> None:
    said = laptop.tune("run", TOY, "--width", "64", "--trials", "3")
    kept = tmp_path / "kept.json"
    assert laptop.tune("export", TOY, "-o", str(kept)).exit_code == 0
    pages = tmp_path / "pages"
    assert laptop.tune("report", TOY, "--all", "-o", str(pages)).exit_code == 0
    told = [said.stdout, said.stderr, *(page.read_text() for page in pages.iterdir())]
    told += [
        laptop.tune(*words).stdout
        for words in (("show", TOY, "--width", "64"), ("list",), ("report", TOY), ("compare", str(kept)))
    ]
    assert all("bsp" in text or "width" in text for text in told)
    for text in told:
        assert RATIO.search(text) is None, text


LOUD = """
from toy_workload import ToyProblem, ToyWorkload
print("loaded")

class Loud(ToyWorkload):
    def default_problem(self, machine, world_size):
        print("so many ranks:", world_size)
        return super().default_problem(machine, world_size)

    def default_config(self, task):
        print("by default")
        return super().default_config(task)
"""


def test_what_its_methods_print_is_no_data(laptop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1])])  # before them it took a server more
    (tmp_path / "loud.py").write_text(LOUD)
    loud = f"{tmp_path / 'loud.py'}:Loud"
    assert laptop.json("run", loud, "--width", "64", "--trials", "3")["finished"]
    assert laptop.json("lookup", loud, "--width", "64")["source"] == "exact"
    assert len(laptop.json("grid", loud, "--width", "64,128", "--no-verify", "--trials", "3")) == 2
    assert "by default" in laptop.tune("run", loud, "--width", "32", "--trials", "3").stderr
    assert "--width" in laptop.tune("run", loud, "--help").stdout, "help is there as ever"
