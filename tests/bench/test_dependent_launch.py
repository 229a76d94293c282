"""The probe of dependent launches: its kernels compile for Hopper, and wait or trigger as they are told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_its_kernels_compile_for_hopper() -> None:
    script = Path(__file__).with_name("dependent_launch_compiled.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout)
    assert counts == {"gemm": [0, 0, 1, 1], "norm": [0, 1, 1]}
