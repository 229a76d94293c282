"""The modules that commands import: torch and Triton take seconds, and a Tab or a help page needs neither."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(sys.executable).parent / "tune"

ONE_AFTER_THE_OTHER = """
import contextlib, io, json, os, sys
from autotune.cli import main
for words, settings in json.loads(sys.argv[1]):
    os.environ.update(settings)
    sys.argv, code = ["tune", *words], 0
    with contextlib.redirect_stdout(io.StringIO()) as told:
        try:
            main()
        except SystemExit as end:
            code = end.code
    loaded = sorted({name.split(".")[0] for name in sys.modules})
    print(json.dumps({"code": code, "told": told.getvalue(), "loaded": loaded}))
"""

SLOW = {"torch", "triton", "iris"}
OF_TUNING = {"optuna", "sqlalchemy", "numpy"}
DRAGGED_IN = {"pytest", "ruff", "pandas", "matplotlib", "hatchet", "textx"}
"""What tokenspeed-iris requires and no command of ours uses."""

HELPED = [["--help"], ["--version"], ["flash-decode", "--help"], ["grid", "all-gather-gemm", "--help"]]
COMPLETED = [
    (("li",), ["list"]),
    (("grid", "flash"), ["flash-decode"]),
    (("list", "all-g"), ["all-gather-gemm"]),
    (("flash-decode", "--kv-l"), ["--kv-len"]),
    (("flash-decode", "--dtype", ""), ["bf16", "fp16"]),
    (("all-gather-gemm", "--effort", "s"), ["standard"]),
    (("report", "all-gather-gemm", "--format", "h"), ["html"]),
    (("demo", "rs"), ["rs-2048"]),
]


def tab_after(words: tuple[str, ...]) -> dict[str, str]:
    """The settings by which bash asks for what Tab would complete."""
    cword = str(len(words))
    return {"_TUNE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["tune", *words]), "COMP_CWORD": cword}


def run(commands: list[tuple[list[str], dict[str, str]]]) -> list[dict[str, Any]]:
    """Words and settings of some commands, one after the other in a new process: how each ended, what it printed, and
    the packages loaded by then.
    """
    done = subprocess.run([sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)], capture_output=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(commands), done.stderr.decode()
    return found


def test_commands_and_completion_import_what_they_need() -> None:
    quick = [(words, {}) for words in HELPED] + [([], tab_after(words)) for words, _ in COMPLETED]
    found = run([*quick, (["list"], {"_TUNE_COMPLETE": ""})])
    assert {each["code"] for each in found} <= {0, None}
    for command, each in zip(quick, found[:-1], strict=True):
        assert "typer" in each["loaded"] and not (SLOW | OF_TUNING | DRAGGED_IN) & {*each["loaded"]}, command
    assert not (SLOW | DRAGGED_IN | {"optuna"}) & {*found[-1]["loaded"]}, "list"
    told = [each["told"].split() for each in found[len(HELPED) : -1]]
    assert told == [known for _, known in COMPLETED]


def test_the_first_word_in_a_terminal_comes_before_torch() -> None:
    """And is gone from the line when the result comes. Nothing is imported that only Iris requires."""
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
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in text.splitlines() if "|" in line}
    assert {"typer", "iris"} <= imported and not DRAGGED_IN & imported
