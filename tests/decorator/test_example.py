"""The example of docs/decorator.md runs as it stands: it tunes once, and never again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import run_script

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/matmul.py"
SIZE = 16
"""Rows and columns of the example's matrices: one tile."""


def run(*command: str, size: int = 4096, gpu: bool = False) -> list[str]:
    """Run the example as a user would; the log's lines."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    environment |= {"TRITON_INTERPRET": "0"} if gpu else {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, *command, str(EXAMPLE), "--size", str(size)]
    return told(subprocess.run(words, env=environment, capture_output=True, text=True))


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The log's lines."""
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("multiply_tile ")]


def sources(lines: list[str]) -> list[str]:
    """Where each config came from."""
    return [re.findall(r": (tuned|exact|nearest|default)\b", line)[0] for line in lines]


ONCE, AGAIN = ["tuned", "default", "tuned", "nearest"], ["exact", "exact", "nearest"]
"""Nothing is in the cache before, and everything after."""


def torchrun(ranks: int) -> list[str]:
    """So many ranks on this host; none: the script alone."""
    return ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"] if ranks else []


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.slow)], ids=["alone", "two ranks"])
def test_it_tunes_once(ranks: int) -> None:
    for wanted in (ONCE, AGAIN):
        assert sources(told(run_script(str(EXAMPLE), "--size", str(SIZE), ranks=ranks))) == wanted


@pytest.mark.slow
def test_it_tunes_once_under_torchrun_itself() -> None:
    assert [sources(run(*torchrun(2), size=2 * SIZE)) for _ in range(2)] == [ONCE, AGAIN]


@pytest.mark.parametrize(
    "ranks", [pytest.param(ranks, marks=pytest.mark.gpu(max(1, ranks), each=True)) for ranks in (0, 2, 4, 8)]
)
def test_it_tunes_once_on_gpus(ranks: int) -> None:
    assert [sources(run(*torchrun(ranks), gpu=True)) for _ in range(2)] == [ONCE, AGAIN]
