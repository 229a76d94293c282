"""Measurements refuse wrong words in one line, before they measure."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from autotune.machine import INTERPRETED

TABLE = str(Path(__file__).parents[2] / "bench" / "recordings" / "ar-16.json.gz")

WRONG = {
    "between": [("--count", "0"), ()],
    "check_power": [("--only", "("), ("--in-turns",)],
    "cliffs": [("--only", "none"), ()],
    "compile_survey": [("--sample", "0")],
    "gang_start": [("--ranks", "0")],
    "model_layers": [("--tiny", "--minutes", "nan")],
    "repeatability": [("--world-size", "1e9")],
    "search_quality": [("none.json.gz",), (TABLE, "--only", "no such strategy")],
    "taxes": [("--only", "no such problem")],
    "versions": [("none",), (".", "--turns", "1")],
    "winners": [()],
}

GPU_ONLY = {
    "launch_path": ("--kernel", "real"),
    "operator_overhead": ("--launches", "real"),
}
"""Measurements that need a GPU."""


@pytest.mark.parametrize("script", GPU_ONLY)
def test_what_needs_a_gpu_says_so_where_there_is_none(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("arguments.machine", lambda: INTERPRETED)
    test_wrong_words_are_refused_in_a_line(script, GPU_ONLY[script], monkeypatch, capsys)


@pytest.mark.parametrize(("script", "words"), [(script, words) for script, every in WRONG.items() for words in every])
def test_wrong_words_are_refused_in_a_line(
    script: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(script).main
    monkeypatch.setattr(sys, "argv", [str(Path("bench", f"{script}.py")), *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and not told.out
    assert ": error: " in told.err.splitlines()[-1]
