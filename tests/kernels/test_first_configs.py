"""The configs with which searches begin are right, for sizes of real models."""

from __future__ import annotations

from typing import Any

import pytest
from every_mode import check_all

from autotune.machine import machine
from autotune.task import Task
from autotune.workloads import workload

EXPERTS = {"hidden": 4096, "experts": 128, "top_k": 8}

FIRST = 24
"""Configs of each problem; the longest list has 38, and begins with the default and each mode as one would write it."""


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("all_gather_gemm", {"m": 64, "n": 28672, "k": 8192}),
        ("all_gather_gemm", {"m": 2048, "n": 28672, "k": 8192, "epilogue": "swiglu", "b_order": "nk"}),
        ("gemm_reduce_scatter", {"m": 512, "n": 8192, "k": 28672}),
        ("gemm_all_reduce", {"m": 16, "n": 8192, "k": 28672}),
        ("gemm_all_reduce_norm", {"m": 64, "n": 8192, "k": 8192}),
        ("moe_dispatch", {"tokens": 128, **EXPERTS}),
        ("moe_combine", {"tokens": 128, **EXPERTS}),
        ("moe_dispatch_gemm", {"tokens": 8, "width": 1536, **EXPERTS}),
        # A search of this one in `tune model` had two wrong results among eighteen; none of these, nor of 99 of another
        # search, is wrong (2 x H100, 2026-11-25).
        ("moe_dispatch_gemm", {"tokens": 128, "width": 1536, **EXPERTS}),
        ("moe_dispatch_gemm", {"tokens": 512, "width": 1536, **EXPERTS}),
        ("moe_gemm_combine", {"tokens": 128, "width": 1536, **EXPERTS}),
    ],
)
def test_the_first_configs_are_right(name: str, sizes: dict[str, Any]) -> None:
    here, found = machine(), workload(name)
    problem = found.problem_type(**sizes, world_size=here.gpus)
    configs = found.first_configs(Task(problem, here))[:FIRST]
    check_all(found, problem, configs, {str(found.default_config(Task(problem, here))["mode"])}, calls=3)
