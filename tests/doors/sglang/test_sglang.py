"""SGLang's row-parallel layer and fused norm by our kernels, on two ranks: the same results, and kernels counted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = 120


def on_ranks(environment: dict[str, str], folder: Path, *options: str) -> list[dict[str, Any]]:
    """Both ranks' answers; whatever they started ends with them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = [sys.executable, str(HERE / "layers_on_ranks.py")]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), port, str(folder / f"answer{rank}"), *options],
            env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        logs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
    assert not any(rank.returncode for rank in ranks), "\n".join(log[-3000:] for log in logs)
    return [json.loads((folder / f"answer{rank}").read_text()) for rank in range(2)]


def test_layer_and_norm_are_ours_where_that_is_faster(environment: dict[str, str], tmp_path: Path) -> None:
    for found in on_ranks(environment, tmp_path, "tuned"):
        for name, error in found["errors"].items():
            assert error < (1e-5 if name.startswith("fp32") else 2e-2), (name, error)
        of_each = 2  # element types
        assert found["calls"] == {
            "gemm_all_reduce": 2 * of_each,
            "gemm_all_reduce declined": 2 * of_each,
            "all_reduce_norm": 2 * of_each,
        }


@pytest.mark.parametrize("switch", ["on", "off"])
def test_all_is_sglang_s_where_nothing_is_tuned_or_on(environment: dict[str, str], tmp_path: Path, switch: str) -> None:
    environment["IRIS_AUTOTUNE_SGLANG"] = switch
    for found in on_ranks(environment, tmp_path, "tuned" if switch == "off" else "untuned"):
        assert max(found["errors"].values()) == 0.0
        assert all(name.endswith("declined") for name in found["calls"])
        assert bool(found["calls"]) == (switch == "on")
