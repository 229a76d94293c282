"""The rungs of ``tune taxes``: variants of our kernels that no space has are right, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from every_mode import check_all, on_cpu
from ranks_of_functions import run_ranks
from rungs import SMALL
from triton.runtime import interpreter

from autotune.config import Config
from autotune.heap import open_heap
from autotune.machine import H100, machine
from autotune.task import Task
from autotune.taxes.measure import ladder_of
from autotune.workloads import workload

OTHERS: dict[str, dict[str, Any]] = {
    "all_gather_gemm": {"split_k": 2, "peer_order": "rotate"},
    "gemm_reduce_scatter": {"mode": "pull", "split_k": 2},
    "gemm_all_reduce": {"mode": "two_shot", "protocol": "ll", "split_k": 2},
    "flash_decode": {"block_n": 32, "programs_per_head": 2, "reducer": "last", "program_order": "tokens",
                     "transfer_heads": 2, "wire": "rounded"},
}  # fmt: skip
"""Knobs of a second config whose kernels differ most from the default's."""


def rungs(name: str, problem: Any, config: Config) -> dict[str, Config]:
    found, _ = ladder_of(workload(name), Task(problem, machine()), config, config)
    return {letter: found[letter] for letter in "BDF" if letter in found}


def overlapping(name: str, task: Task[Any]) -> Config:
    found = workload(name)
    return next(config for config in found.first_configs(task) if config["mode"] in found.overlapping)


@pytest.mark.parametrize("name", SMALL)
def test_every_rung_is_right_under_the_interpreter(name: str) -> None:
    here, found = on_cpu(), workload(name)
    problem = found.problem_type.from_dict({**SMALL[name], "world_size": 2})
    default = found.default_config(Task(problem, here))
    first, second = (rungs(name, problem, each) for each in (default, default.replace(**OTHERS[name])))
    assert {"B", "D"} <= set(first) == set(second) | ({"F"} if name == "all_gather_gemm" else set())
    # Empty launches are launched in between without harm, the library's too.
    doses = [first.pop("B"), found.baselines(Task(problem, here))["bsp eager"]]
    configs = [*(config.replace(empty_launches=2) for config in doses), *first.values(), second["B"]]
    check_all(found, problem, configs, {str(default["mode"]), "bsp"})


def test_what_is_handed_on_without_memory_crosses_the_links_once(tmp_path: Path) -> None:
    """A config whose tiles have one column has the rung F, which loads each remote row once; one with more has none."""
    here, found = on_cpu(), workload("all_gather_gemm")
    problem = found.problem_type.from_dict({**SMALL["all_gather_gemm"], "world_size": 2})
    one = found.default_config(Task(problem, here))
    direct = found.rungs(Task(problem, here), one)["F"]
    assert isinstance(direct, Config)
    whole = problem.shard[0] * problem.shard[1] * problem.element_size
    for columns, config in ((1, direct), (2, direct.replace(block_n=16))):
        folder = tmp_path / str(columns)
        folder.mkdir()
        argument = {"problem": SMALL["all_gather_gemm"], "config": dict(config)}
        assert run_ranks(__file__, "bytes_of_peers_shard", 2, folder, argument=argument) == [columns * whole] * 2
    assert isinstance(found.rungs(Task(problem, here), one.replace(block_n=16))["F"], str), "why not"


def bytes_of_peers_shard(argument: dict[str, Any]) -> int:
    """Counts the bytes that one all-gather + GEMM loads from the other rank's shard of A, which is in place."""
    found = workload("all_gather_gemm")
    problem = found.problem_type(**argument["problem"], world_size=2, in_place=True)
    heap = open_heap(found.heap_bytes(problem), dist.new_group(backend="gloo"))
    operation: Any = found.operation(Task(problem, machine()), heap, 1 << 12)
    operation.refresh(1)
    run = operation.prepare(Config(argument["config"]))
    shard = heap.peer(operation.inputs()[0], 1 - heap.rank)
    first, last = shard.data_ptr(), shard.data_ptr() + shard.numel() * shard.element_size() - 1
    loaded, original = 0, interpreter.InterpreterBuilder.create_masked_load

    def counted(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        nonlocal loaded
        there = (pointers.data >= first) & (pointers.data <= last) & mask.data
        result = original(self, pointers, mask, *others)
        # Rows beyond the end repeat the last one: within a load an address is read once.
        loaded += np.unique(pointers.data[there]).size * result.data.itemsize
        return result

    interpreter.InterpreterBuilder.create_masked_load = counted
    heap.barrier()
    run()
    heap.barrier()
    assert operation.error().overall < found.tolerance(problem).overall
    return loaded


LARGE: dict[str, list[dict[str, Any]]] = {
    "all_gather_gemm": [{"m": 16, "n": 28672, "k": 8192}, {"m": 4096, "n": 28672, "k": 8192}],
    "gemm_reduce_scatter": [{"m": 512, "n": 8192, "k": 28672}, {"m": 4096, "n": 8192, "k": 28672}],
    "gemm_all_reduce": [{"m": 1, "n": 8192, "k": 8192}, {"m": 64, "n": 8192, "k": 28672}],
    "flash_decode": [
        {"batch": batch, "q_heads": 96, "kv_heads": 12, "head_dim": 128, "kv_len": kv_len, "dtype": "fp16"}
        for batch, kv_len in ((1, 8192), (8, 65536))
    ],
}


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize("name", LARGE)
def test_every_rung_is_right_on_gpus(name: str) -> None:
    here, found = machine(), workload(name)
    for fields in LARGE[name]:
        problem = found.problem_type.from_dict({**fields, "world_size": here.gpus})
        config = overlapping(name, Task(problem, here))
        check_all(found, problem, list(rungs(name, problem, config).values()), {str(config["mode"])})


@pytest.mark.parametrize("name", LARGE)
def test_a_rung_that_does_not_exist_is_named_with_its_reason(name: str) -> None:
    found = workload(name)
    few_rows = {"m": 16} if name == "all_gather_gemm" else {}
    problem = found.problem_type.from_dict({**found.default_problem(H100, 4).as_dict(), **few_rows})
    configs = [c for c in found.first_configs(Task(problem, H100)) if c["mode"] in found.overlapping]
    config = next((config for config in configs if config.get("split_k", 2) != 1), configs[0])
    there, missing = ladder_of(found, Task(problem, H100), config, config)
    assert (set(there) | set(missing)) - {"W"} == {"E0", "E1", "G", "B", "D", "F"}
    assert ("F" in missing) == (name in ("all_gather_gemm", "gemm_all_reduce")) and all(missing.values())
