from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Bench

SMALL = ("--trials", "8", "--effort", "quick")


@pytest.fixture
def tuned(gpus: Bench) -> Bench:
    for m in ("4096", "1024"):
        assert gpus.tune("all-gather-gemm", *SMALL, "--m", m).exit_code == 0
    return gpus


def test_without_dimensions_every_study_is_reported(tuned: Bench) -> None:
    for words in (["report"], ["report", "all-gather-gemm"]):
        text = tuned.tune(*words).stdout
        assert text.count("# all-gather-gemm: m=") == 2
    assert len(json.loads(tuned.tune("report", "--format", "json").stdout)) == 2


def test_a_file_gets_the_format_that_its_name_ends_in(tuned: Bench, tmp_path: Path) -> None:
    one, page = ("report", "all-gather-gemm", "--m", "1024"), tmp_path / "page.html"
    begins = {page: "<!DOCTYPE html>", tmp_path / "found.json": "[", tmp_path / "text.txt": "# all-gather-gemm: m=1024"}
    for file, begin in begins.items():
        assert tuned.tune(*one, "-o", str(file)).exit_code == 0
        assert file.read_text().startswith(begin)
    assert tuned.tune(*one, "--format", "md", "-o", str(page)).exit_code == 0
    assert page.read_text().startswith("# all-gather-gemm: m=1024")
    assert tuned.tune("report", "-o", str(page)).exit_code == 2, "several pages take a folder"


def test_a_workload_that_is_not_here_is_reported_without_its_space(toy: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy.tune("toy-sum", "--trials", "5").exit_code == 0
    monkeypatch.delenv("AUTOTUNE_WORKLOADS")
    result = toy.tune("report")
    assert result.exit_code == 0 and "toy-sum" in result.stdout
    assert "toy_sum" in result.stderr
