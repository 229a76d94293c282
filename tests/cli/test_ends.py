"""The end of an interrupted command, and of one whose output nobody takes: a line and an exit code."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tty

import pytest
from fakes import Bench, Hook
from scripts import run_script

from autotune.cli import interrupts

SMALL = ("all-gather-gemm", "--m", "64", "--n", "128", "--k", "64", "--trials", "8", "--effort", "quick")

INTERRUPTING = """
import builtins, os, signal, sys
name, way = sys.argv[1:]
importing = builtins.__import__

def interrupted(wanted, *rest):
    if wanted.partition(".")[0] == name:
        builtins.__import__ = importing
        try:
            for _ in range(2 if way == "twice, turned over" else 1):
                os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as error:
            if way == "twice, turned over":
                raise ImportError("this module could not be loaded") from error
            if way == "as it is":
                raise
    return importing(wanted, *rest)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would we
from autotune.cli import main
builtins.__import__ = interrupted
sys.argv = ["tune", "list"]
main()
"""


@pytest.mark.parametrize(
    ("name", "way"), [("typer", "as it is"), ("sqlalchemy", "dropped"), ("sqlalchemy", "twice, turned over")]
)
def test_ctrl_c_while_modules_are_imported(name: str, way: str) -> None:
    """Libraries, such as torch, drop a KeyboardInterrupt in an import, or turn it into an ImportError."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTING, name, way], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


SHORT_OF_MEMORY = """
import builtins, mmap, resource, sys
megabytes, way = int(sys.argv[1]) << 20, sys.argv[2]
importing = builtins.__import__

def full(wanted, *rest):
    if wanted == "torch":
        used = int(open("/proc/self/statm").read().split()[0]) * mmap.PAGESIZE
        mmap.mmap(-1, megabytes - used - (1 << 20)).close()
        raise ValueError("this module is no module")
    return importing(wanted, *rest)

resource.setrlimit(resource.RLIMIT_AS, (megabytes, resource.RLIM_INFINITY))
from autotune.cli import main
if way == "any error":
    builtins.__import__ = full
sys.argv = ["tune", "all-gather-gemm", "--m", "64", "--n", "64", "--k", "64", "--world-size", "2"]
main()
"""


@pytest.mark.parametrize(("megabytes", "way"), [(256, "as it is"), (2048, "any error")])
def test_a_limit_on_addresses_ends_the_command_in_a_line(megabytes: int, way: str) -> None:
    """Libraries that find no memory say so, or raise whatever comes of it."""
    words = [sys.executable, "-c", SHORT_OF_MEMORY, str(megabytes), way]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "ulimit -v" in done.stderr


AT_EXIT = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from autotune.cli import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["tune", "--version"]
main()
"""


def test_ctrl_c_while_a_command_that_is_done_ends_its_processes() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "") and done.stdout.startswith("iris-autotune ")


def strike(number: signal.Signals) -> Hook:
    return lambda gang, config, seed, plan: signal.raise_signal(number) if len(gang.calls) == 5 else None


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, SMALL), (signal.SIGTERM, 143, ("grid", *SMALL))]
)
def test_a_signal_keeps_what_was_measured(
    gpus: Bench, number: signal.Signals, code: int, words: tuple[str, ...]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        gpus.hook = strike(number)
        result = gpus.tune(*words)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.exit_code == code, result.output
    assert len(gpus.gangs[0].calls) == 5
    gpus.hook = lambda *_: None
    assert gpus.tune(*words).exit_code == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_earlier_commands_signal_is_not_the_next_ones(gpus: Bench) -> None:
    gpus.hook = strike(signal.SIGTERM)
    assert gpus.tune(*SMALL).exit_code == 143
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 1)
    assert gpus.tune(*SMALL, "--force").exit_code == 130


def test_what_was_to_be_ignored_still_is(gpus: Bench) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        gpus.hook = strike(signal.SIGINT)
        assert gpus.tune(*SMALL).exit_code == 0
    finally:
        signal.signal(signal.SIGINT, before)


SPOILT = {
    "nobody reads": "ends = os.pipe(); os.close(ends[0]); sys.std{name} = open(ends[1], 'w')",
    "disk is full": "sys.std{name} = open('/dev/full', 'w')",
    "closed": "sys.std{name} = None",
    "only plain letters": "sys.std{name}.reconfigure(encoding='ascii')",
}
"""Done to a stream before the command runs; of a closed one Python says that there is none."""


@pytest.mark.parametrize(
    ("how", "name", "words", "code", "told"),
    [
        ("nobody reads", "out", "list --json", 141, ""),  # as a shell says of a program that SIGPIPE ended
        ("nobody reads", "err", "demo --trials 3", 141, ""),
        ("disk is full", "out", "list --json", 1, "tune: error: stdout .*\n"),
        ("closed", "in", "import -", 2, "tune: error: .*closed.*\n"),
        ("closed", "out", "--help", 1, "tune: error: .*closed.*\n"),
        ("only plain letters", "out", "--help", 0, ""),
    ],
)
def test_a_stream_that_takes_or_gives_nothing_ends_in_a_line_at_most_and_an_exit_code(
    gpus: Bench, how: str, name: str, words: str, code: int, told: str
) -> None:
    gpus.tune(*SMALL)
    command = f"import os, sys; from autotune.cli import main; {SPOILT[how].format(name=name)}; main()"
    done = run_script("-c", command, *words.split())
    assert done.returncode == code and re.fullmatch(told, done.stderr), done.stderr
    assert ("Usage: " in done.stdout) == (code == 0) and (code == 0 or not done.stdout)


def test_ctrl_z_gives_the_shell_its_cursor_back() -> None:
    terminal, there = pty.openpty()
    tty.setraw(there)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # as a shell's job: only what has a parent in its session can be stopped
        os.dup2(there, 2)
        sys.stderr = os.fdopen(2, "w")
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        with interrupts.interruptible():
            os.kill(os.getpid(), signal.SIGTSTP)
            os._exit(7)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status) and os.read(terminal, 100) == interrupts.SHOW_CURSOR
    os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os.close(there)
    os.close(terminal)
