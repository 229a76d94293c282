"""Measurements refuse wrong words in one line, before they measure."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from autotune.machine import INTERPRETED

TABLE = str(Path(__file__).parents[2] / "bench" / "recordings" / "ar-16.json.gz")

WRONG = {
    "scaling": [
        ("all-gather-gemm", "--divide", "foo"),
        ("all-gather-gemm", "--divide", "m=x"),
        ("all-gather-gemm", "--divide", "m=10", "--world-sizes", "4"),
        ("all-gather-gemm", "--world-sizes", "1,,2"),
        ("all-gather-gemm", "--world-sizes", "0"),
    ],
    "between": [("--count", "0"), ("--heap-gib", "0"), ()],
    "check_power": [
        ("--only", "("),
        ("--only", "no such mutant"),
        ("--in-turns",),
        ("--print", "none.jsonl"),
    ],
    "cliffs": [("--only", "none"), ("--world-size", "0"), ()],
    "compile_survey": [("--sample", "0")],
    "fleet_night": [("--problems", "0")],
    "gang_start": [("--ranks", "0")],
    "model_layers": [("--tiny", "--ranks", "0"), ("--tiny", "--minutes", "nan"), ("--tiny", "--heap-gib", "-1")],
    "record_kernels": [("--only", "none"), ("--workers", "0"), ("--seconds", "nan")],
    "repeatability": [("--seeds", "0"), ("--minutes", "-1"), ("--world-size", "1e9")],
    "results": [("--world-size", "0"), ("--minutes", "nan")],
    "routings": [("none.json",), (__file__, "--exponents", "a")],
    "lookup": [("--size", "10")],
    "search_quality": [
        ("none.json.gz",),
        (__file__,),
        (__file__, "--trials", "3,x"),
        (__file__, "--seeds", "0"),
        (TABLE, "--only", "no such strategy"),
    ],
    "taxes": [("--rounds", "0"), ("--minutes", "nan"), ("--list", "--only", "no such problem")],
    "time_to_optimum": [("none.json.gz",), (__file__,)],
    "untuned": [("--heap-gib", "0"), ()],
    "winners": [()],
}

GPU_ONLY = {
    "launch_path": ("--kernel", "real"),
    "operator_overhead": ("--launches", "real"),
    "time_to_optimum": (TABLE,),
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
