"""``tune report --format html``: where the page goes, and what is shown."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from fakes import Bench, FakeGang

SMALL = ("--trials", "8", "--effort", "quick")
PAGE = ("report", "all-gather-gemm", "--format", "html")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was told to open."""
    found: list[str] = []

    def open_it(url: str) -> bool:
        found.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_it)
    return found


def test_open_shows_it_and_implies_the_format(gpus: Bench, tmp_path: Path, shown: list[str]) -> None:
    assert gpus.tune("all-gather-gemm", *SMALL).exit_code == 0
    assert gpus.tune("report", "all-gather-gemm", "--open").exit_code == 0
    assert gpus.tune("report", "--open", "-o", str(tmp_path / "page.html")).exit_code == 0
    kept, named = (Path(url.removeprefix("file://")) for url in shown)
    assert kept.read_text().startswith("<!DOCTYPE html>") and named == tmp_path / "page.html"
    kept.unlink()


def test_several_studies_are_a_folder_with_an_index(gpus: Bench, tmp_path: Path, shown: list[str]) -> None:
    for m in ("4096", "1024"):
        assert gpus.tune("all-gather-gemm", *SMALL, "--m", m).exit_code == 0
    assert gpus.tune(*PAGE).exit_code == 2, "two pages take a folder"
    result = gpus.tune(*PAGE, "-o", str(tmp_path / "pages"), "--open")
    assert result.exit_code == 0
    assert sorted(file.name for file in (tmp_path / "pages").iterdir()) == [
        "all-gather-gemm-1.html", "all-gather-gemm-2.html", "index.html",
    ]  # fmt: skip
    assert shown == [(tmp_path / "pages" / "index.html").as_uri()]
    assert gpus.tune(*PAGE, "-o", "/dev/null/pages").exit_code == 2


@pytest.mark.parametrize("words", [("--format", "json"), ("--format", "md"), ("-o", "all.json")])
def test_all_and_open_are_pages_and_take_no_other_format(
    gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str], words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gpus.tune("all-gather-gemm", *SMALL).exit_code == 0
    for option in ("--all", "--open"):
        assert gpus.tune("report", option, *words).exit_code == 2
    assert {file.suffix for file in tmp_path.iterdir()} <= {".db", ".lock"} and shown == []


def test_where_nothing_is_finished_the_last_study_is_shown(gpus: Bench, tmp_path: Path) -> None:
    def break_it(gang: FakeGang) -> None:
        gang.broken = True

    gpus.prepare = break_it
    assert gpus.tune("all-gather-gemm", *SMALL).exit_code == 1
    result = gpus.tune(*PAGE)
    assert result.exit_code == 0 and result.stdout.startswith("<!DOCTYPE html>"), "a pipe takes it"
    assert gpus.tune("report", "all-gather-gemm").exit_code == 1, "the other formats are of finished studies"
    assert gpus.tune("report", "all-gather-gemm", "--m", "7", "--format", "html").exit_code == 1
