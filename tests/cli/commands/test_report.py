"""``tune report``: of one study or all, in the format that is asked for, to the place that is asked for."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest
from fakes import Bench

SMALL = ("--trials", "8", "--effort", "quick")
PAGE = ("report", "all-gather-gemm", "--format", "html")


@pytest.fixture
def tuned(gpus: Bench) -> Bench:
    for m in ("4096", "1024"):
        assert gpus.tune("all-gather-gemm", *SMALL, "--m", m).exit_code == 0
    return gpus


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: found.append(url) or True)
    return found


def test_without_dimensions_every_study_is_reported(tuned: Bench) -> None:
    for words in (["report"], ["report", "all-gather-gemm"]):
        assert tuned.tune(*words).stdout.count("# all-gather-gemm: m=") == 2
    assert len(json.loads(tuned.tune("report", "--format", "json").stdout)) == 2


def test_a_file_gets_the_format_that_its_name_ends_in(tuned: Bench, tmp_path: Path) -> None:
    one, page = ("report", "all-gather-gemm", "--m", "1024"), tmp_path / "page.html"
    begins = {page: "<!DOCTYPE html>", tmp_path / "found.json": "[", tmp_path / "text.txt": "# all-gather-gemm: m=1024"}
    for file, begin in begins.items():
        assert tuned.tune(*one, "-o", str(file)).exit_code == 0
        assert file.read_text().startswith(begin)
    assert tuned.tune(*one, "--format", "md", "-o", str(page)).exit_code == 0
    assert page.read_text().startswith("# all-gather-gemm: m=1024")


def test_the_page_of_one_study_has_the_range_that_it_belongs_to(tuned: Bench, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert tuned.tune(*PAGE, "--m", "1024", "-o", str(page)).exit_code == 0
    assert 'id="range"' in page.read_text() and "m=1024 to 4096" in page.read_text()


def test_open_shows_a_page_or_the_index_of_several(tuned: Bench, tmp_path: Path, shown: list[str]) -> None:
    one, page, folder = ("report", "all-gather-gemm", "--m", "1024", "--open"), tmp_path / "page.html", tmp_path / "all"
    for words in (PAGE, ("report", "-o", str(page)), (*PAGE, "-o", "/dev/null/pages")):
        assert tuned.tune(*words).exit_code == 2 and not shown, "two pages take a folder"
    assert tuned.tune(*one).exit_code == 0
    assert tuned.tune(*one, "-o", str(page)).exit_code == 0
    assert tuned.tune(*PAGE, "-o", str(folder), "--open").exit_code == 0
    assert {file.name for file in folder.iterdir()} == {
        "all-gather-gemm-1.html", "all-gather-gemm-2.html", "index.html",
    }  # fmt: skip
    kept, named, index = (Path(url.removeprefix("file://")) for url in shown)
    assert kept.read_text().startswith("<!DOCTYPE html>") and (named, index) == (page, folder / "index.html")
    kept.unlink()
    before = {*tmp_path.iterdir()}
    for option in ("--all", "--open"):
        for words in (("--format", "json"), ("--format", "md"), ("-o", str(tmp_path / "all.json"))):
            assert tuned.tune("report", option, *words).exit_code == 2, "these are pages"
    assert {*tmp_path.iterdir()} == before and len(shown) == 3


def test_where_nothing_is_finished_the_last_study_is_shown(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "broken", True)
    assert gpus.tune("all-gather-gemm", *SMALL).exit_code == 1
    result = gpus.tune(*PAGE)
    assert result.exit_code == 0 and result.stdout.startswith("<!DOCTYPE html>"), "a pipe takes it"
    assert gpus.tune("report", "all-gather-gemm").exit_code == 1, "the other formats are of finished studies"
    assert gpus.tune("report", "all-gather-gemm", "--m", "7", "--format", "html").exit_code == 1


def test_a_workload_that_is_not_here_is_reported_without_its_space(toy: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy.tune("toy-sum", "--trials", "5").exit_code == 0
    monkeypatch.delenv("AUTOTUNE_WORKLOADS")
    result = toy.tune("report")
    assert result.exit_code == 0 and "toy-sum" in result.stdout
    assert "toy_sum" in result.stderr
