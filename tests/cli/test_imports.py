"""The modules that commands import: torch and Triton take seconds, and a Tab or a help page needs neither."""

from __future__ import annotations

import contextlib
import os
import pty
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


def test_the_first_word_in_a_terminal_comes_before_torch() -> None:
    """And is gone from the line when the result comes."""
    ours, theirs = pty.openpty()
    settings = {**os.environ, "TERM": "xterm", "PYTHONPROFILEIMPORTTIME": "1"}
    with subprocess.Popen([SCRIPT, "lookup", "all-gather-gemm"], stdout=theirs, stderr=theirs, env=settings) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux ends a terminal that nobody writes to any more with one
            while part := os.read(ours, 1 << 16):
                shown += part
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0 and '"mode"' in text
    assert 0 < text.index("loading kernels") < text.index("| torch\r\n") < text.index('"mode"')
    assert text.count("loading kernels") == 1 and "\r" + " " * len("loading kernels …") + "\r" in text


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
