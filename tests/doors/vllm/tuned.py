"""A database in which each operator wins somewhere in the tiny models: ``python tuned.py FILE``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fakes import begun, latency_of
from models import HEAD, HEADS, HIDDEN, WIDTH

from autotune.db import Store, Winner
from autotune.machine import machine
from autotune.problem import Problem
from autotune.task import Task
from autotune.workloads import workload

SIZES = (1, 4, 16, 64, 256)
LIBRARY = 100.0

OUT = {"n": HIDDEN, "k": HEADS * HEAD}
"""The attention's output: by ``gemm_all_reduce``, the norm apart."""
DOWN = {"n": HIDDEN, "k": WIDTH}
"""The MLP's: with its norm, but with one token NCCL is faster."""
TIMES: list[tuple[str, dict[str, Any], dict[int, float]]] = [
    ("gemm_all_reduce", {**OUT, "b_order": "nk"}, {}),
    ("gemm_all_reduce", {**OUT, "b_order": "nk", "bias": True}, {}),
    ("gemm_all_reduce_norm", {**DOWN, "b_order": "nk"}, {1: 150.0}),
    ("all_reduce_norm", {"n": HIDDEN}, dict.fromkeys(SIZES, 90.0)),
    ("gemm_reduce_scatter", {**OUT, "b_order": "nk"}, {}),
    ("all_gather_gemm", {"n": 2 * HIDDEN, "k": HIDDEN, "b_order": "nk"}, {}),
]
"""Problems, and the microseconds that they take by the number of a rank's tokens, else 50."""


def fill(file: Path) -> None:
    here = machine()
    with Store.open(file) as store:
        for name, fields, times in TIMES:
            for m in SIZES:
                found = workload(name)
                shared = name in ("gemm_reduce_scatter", "all_gather_gemm")
                problem = found.problem_type(m=2 * m if shared else m, dtype="fp32", world_size=2, **fields)
                keep(store, found, Task(problem, here), times.get(m, 50.0))


def keep(store: Store, found: Any, task: Task[Problem], microseconds: float) -> None:
    """A finished study that a config of ours has won."""
    ours = [each for each in found.first_configs(task) if each["mode"] != "bsp"]
    config = next(each for each in ours if found.space.violation(each, task) is None)
    store.finish(begun(store, found, task).id, Winner(config, latency_of(microseconds), {"bsp": latency_of(LIBRARY)}))


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
