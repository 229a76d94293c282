"""A reduced space of all-gather + GEMM, and its recording by the fake gang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes import EIGHT_GPUS, FakeGang, FakeScreen

from autotune.config import Value
from autotune.db import Store
from autotune.recordings.recorder import record
from autotune.recordings.recording import Recording
from autotune.task import Task
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
PROBLEM = FOUND.problem_type(m=4096, n=28672, k=8192, world_size=8)
TASK = Task(PROBLEM, EIGHT_GPUS)

ALLOWED: dict[str, list[Value]] = {
    "mode": ["bsp", "push", "copy_engine"], "block_m": [64, 128], "block_n": [128, 256], "block_k": [64, 128],
    "group_m": [8], "num_warps": [8], "num_stages": [3, 4, 6], "loads": ["pointer"], "split_k": [1],
    "preload_b": [False], "schedule": ["tile"], "transfer_rows": [16, 128], "k_chunks": [1], "comm_programs": [8, 16],
    "copy_kib": [8], "peer_order": ["rotate", "fanout"], "push_site": ["same_launch"], "head_start": [0],
}  # fmt: skip


def recorded(folder: Path, gang: FakeGang | None = None, **options: Any) -> Recording:
    options = {"allowed": ALLOWED, "limit": 1000, "iterations": 15, **options}
    with Store.open(folder / "cache.db") as store:
        return record(FOUND, TASK, store, gang or FakeGang(PROBLEM), FakeScreen(FOUND, TASK), **options)
