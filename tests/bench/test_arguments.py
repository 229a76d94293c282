"""Measurements refuse wrong words in one line, before they measure."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

WRONG = {
    "scaling": [
        ("all-gather-gemm", "--divide", "foo"),
        ("all-gather-gemm", "--divide", "m=x"),
        ("all-gather-gemm", "--divide", "m=10", "--world-sizes", "4"),
        ("all-gather-gemm", "--world-sizes", "1,,2"),
        ("all-gather-gemm", "--world-sizes", "0"),
    ],
    "check_power": [("--only", "(")],
    "compile_survey": [("--sample", "0")],
    "fleet_load": [("--seconds", "nan"), ("--workers", "-1")],
    "fleet_night": [("--problems", "0")],
    "fp8_gemm": [("--scales", "rows"), ("--shapes", "16x16"), ("--shapes", "16x0x16")],
    "gang_start": [("--ranks", "0")],
    "grouped_gemm": [("--shapes", "1x2xx"), ("--experts", "0")],
    "model_layers": [("--tiny", "--ranks", "0"), ("--tiny", "--minutes", "nan"), ("--tiny", "--heap-gib", "-1")],
    "record_kernels": [("--only", "none"), ("--workers", "0"), ("--seconds", "nan")],
    "repeatability": [("--seeds", "0"), ("--minutes", "-1"), ("--world-size", "1e9")],
    "results": [("--world-size", "0"), ("--minutes", "nan")],
    "routings": [("none.json",), (__file__, "--exponents", "a")],
    "search_quality": [("none.json.gz",), (__file__, "--trials", "3,x"), (__file__, "--seeds", "0")],
    "taxes": [("--rounds", "0"), ("--minutes", "nan")],
    "time_to_optimum": [("none.json.gz",)],
}


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
