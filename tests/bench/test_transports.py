"""The probe of transports: its kernels compile for Hopper, and tiny transfers arrive under the interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.machine import machine

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_its_kernels_compile_for_hopper() -> None:
    assert int(run("tests/bench/transports_compiled.py")) == 3 * 4 + 1 + 4 * 2


@pytest.mark.skipif(not machine().is_interpreter, reason="with GPUs the whole probe runs by hand")
def test_tiny_transfers_arrive() -> None:
    said = run("-m", "torch.distributed.run", "--nproc-per-node", "2", "bench/transports.py", "--toy")
    assert "| sentinel | 1 | 2 |" in said and "| tma store | 4 | 2 |" in said
