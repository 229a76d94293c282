"""The modules that commands import: torch and Triton take seconds, and a Tab or a help page needs neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from every_mode import whole

SCRIPT = Path(sys.executable).parent / "tune"

AFTER = """
import sys
sys.argv = ["tune", *{words!r}]
from autotune.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*sorted({{name.split(".")[0] for name in sys.modules}}), file=sys.stderr)
"""

SLOW = {"torch", "triton", "iris"}
OF_TUNING = {"optuna", "sqlalchemy", "numpy"}
DRAGGED_IN = {"pytest", "ruff", "pandas", "matplotlib", "hatchet", "textx"}
"""What tokenspeed-iris requires and no command of ours uses."""


@pytest.mark.parametrize(
    ("words", "without"),
    [
        (["--help"], SLOW | OF_TUNING),
        (["--version"], SLOW | OF_TUNING),
        (["flash-decode", "--help"], SLOW | OF_TUNING),
        (["grid", "all-gather-gemm", "--help"], SLOW | OF_TUNING),
        (["list"], SLOW | {"optuna"}),
        whole(["demo", "ar-64", "--trials", "3"], DRAGGED_IN),
        (["lookup", "all-gather-gemm"], DRAGGED_IN),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_imports_what_it_needs(words: list[str], without: set[str]) -> None:
    done = subprocess.run([sys.executable, "-c", AFTER.format(words=words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "typer" in loaded and not (without | DRAGGED_IN) & loaded


def completed(*words: str) -> str:
    """What bash gets for Tab after these words."""
    environment = {
        **os.environ, "_TUNE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["tune", *words]),
        "COMP_CWORD": str(len(words)), "PYTHONPROFILEIMPORTTIME": "1",
    }  # fmt: skip
    done = subprocess.run([SCRIPT], capture_output=True, text=True, env=environment)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported and not (SLOW | OF_TUNING) & imported
    return done.stdout


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (("li",), ["list"]),
        (("grid", "flash"), ["flash-decode"]),
        (("list", "all-g"), ["all-gather-gemm"]),
        (("flash-decode", "--kv-l"), ["--kv-len"]),
        (("flash-decode", "--dtype", ""), ["bf16", "fp16", "fp32"]),
        (("all-gather-gemm", "--effort", "s"), ["standard"]),
        (("report", "all-gather-gemm", "--format", "h"), ["html"]),
        (("demo", "rs"), ["rs-2048"]),
    ],
    ids=" ".join,
)
def test_tab_completes_commands_options_and_values(words: tuple[str, ...], known: list[str]) -> None:
    assert completed(*words).split() == known
