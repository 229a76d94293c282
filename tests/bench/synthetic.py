"""A synthetic recording: latencies by a formula that has what real spaces have. It says nothing about any machine.

PYTHONPATH=. python tests/bench/synthetic.py      # writes tests/data/synthetic_all_gather_gemm.json.gz anew
"""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime
from pathlib import Path

from autotune.config import Config, Value
from autotune.db import Provenance
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.machine import Machine
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.recordings.file import write
from autotune.recordings.recording import Recording
from autotune.task import Task
from autotune.workloads import workload

FILE = Path(__file__).parents[1] / "data" / "synthetic_all_gather_gemm.json.gz"
MACHINE = Machine("cuda", "synthetic GPU", "sm_90", 8, 132, 227 * 1024, 50 << 20, "nvlink")
PROBLEM = AllGatherGemm(m=4096, n=28672, k=8192, world_size=8)

ALLOWED: dict[str, list[Value]] = {
    "mode": ["bsp", "pull", "pull_staged", "push", "copy_engine"],
    "block_m": [64, 128, 256], "block_n": [128, 256], "block_k": [64, 128], "group_m": [8], "num_warps": [8],
    "num_stages": [3, 4], "loads": ["pointer", "tma"], "split_k": [1], "preload_b": [False],
    "schedule": ["tile", "persistent"], "transfer_rows": [64, 256, 512], "k_chunks": [1],
    "comm_programs": [8, 16, 32], "copy_kib": [8, 16], "peer_order": ["rotate", "fanout"],
    "push_site": ["same_launch", "side_stream"], "head_start": [0, 2],
}  # fmt: skip

PEAK = 800e6
"""Flops in a microsecond."""
LINKS = 400e3
"""Bytes that a GPU receives in a microsecond."""


def evaluation(config: Config) -> Evaluation:
    """The outcome of a config by formula: failures in corners, a spread of 3 % that looks random but is not."""
    drawn = config.to_json().replace("transfer_rows", "unit_rows")  # as the table's first version called it
    number = int(hashlib.sha256(drawn.encode()).hexdigest(), 16)
    if config.get("loads") == "tma" and config.get("block_m") == 64 and config.get("num_stages") == 4:
        return Evaluation(Outcome.DID_NOT_COMPILE, "synthetic: the compiler crashed")
    if config.get("push_site") == "side_stream" and config.get("comm_programs") == 32:
        return Evaluation(Outcome.TIMED_OUT, "synthetic: no answer from rank 3")
    if number % 97 == 0 and config["mode"] != "bsp":
        return Evaluation(Outcome.WRONG_RESULT, "synthetic: error")
    median = microseconds(config) * (1 + 0.03 * (number % 1000 / 1000 - 0.5))
    return Evaluation(Outcome.MEASURED, latency=Latency(median, 0.99 * median, 1.01 * median, 5.0, 15))


def microseconds(config: Config) -> float:
    """A GEMM whose tiles fill waves, a transfer that takes programs from it, and what one hides of the other."""
    gemm = PROBLEM.flops / PEAK
    transfer = PROBLEM.bytes_moved / LINKS
    if config["mode"] == "bsp":
        return gemm + transfer + (0 if config["launch"] == "graph" else 15)
    if config["mode"] == "copy_engine":
        chunks = PROBLEM.m / 8 / config.integer("transfer_rows")
        return max(gemm * (1.25 + 0.03 * chunks), transfer * 1.4) + transfer / chunks
    m, n, k, stages = (config.integer(name) for name in ("block_m", "block_n", "block_k", "num_stages"))
    programs = config.integer("comm_programs") if "comm_programs" in config else 0
    units = MACHINE.compute_units - (programs if config.get("head_start") == 0 else programs / 3)
    tiles = math.ceil(PROBLEM.m / m) * math.ceil(PROBLEM.n_local / n)
    waves = math.ceil(tiles / units) / (tiles / units)
    intensity = m * n / (m + n) / 85
    gemm *= MACHINE.compute_units / units * waves / min(1.0, 0.55 + 0.45 * intensity)
    gemm *= 1 + 0.05 * abs(stages * k / 256 - 1)
    gemm *= 1.0 if config["loads"] == "tma" else 1.15
    gemm *= 0.97 if config["schedule"] == "persistent" else 1.0
    if config["mode"] == "pull":
        return gemm + transfer * PROBLEM.n_local / n / 8
    unit, step = config.integer("transfer_rows"), config.integer("copy_kib")
    pulls = config["mode"] == "pull_staged"
    transfer /= min(1.0, programs * (1 if pulls else 3) / 32) * (1.0 if step == 16 else 0.9)
    transfer *= 1.1 if config["peer_order"] == "rotate" and unit > 256 else 1.0
    first = transfer * unit * 8 / PROBLEM.m * max(1.0, m / unit)
    signals = PROBLEM.m / unit * 0.6
    beside = 12 if config.get("push_site") == "side_stream" else 0
    return max(gemm, transfer) + 0.25 * min(gemm, transfer) * (unit / 512) + first + signals + beside


def recording() -> Recording:
    """A table of the reduced space."""
    found = workload("all_gather_gemm")
    space = found.space.restricted(ALLOWED)
    return Recording(
        workload=found.name,
        problem=PROBLEM.as_dict(),
        machine=MACHINE,
        provenance=Provenance("synthetic", space.fingerprint(), "", "", "", ""),
        recorded_at=datetime(2026, 1, 1, tzinfo=UTC),
        origin="synthetic",
        restriction=ALLOWED,
        dimensions={name: dimension.values for name, dimension in space.dimensions.items()},
        evaluations={config: evaluation(config) for config in space.enumerate(Task(PROBLEM, MACHINE))},
    )


if __name__ == "__main__":
    write(recording(), FILE)
