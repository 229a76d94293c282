"""A survey of the compiler's results on each space: a random sample of valid configs, compiled for GPUs that need not
be here.

    python bench/compile_survey.py --sample 30

For each workload and target: how many compile, the most shared memory (LDS) and registers, how many kernels spill.
Registers and spills as AMD's compiler states them; for NVIDIA as cuobjdump does, whatever is on a thread's stack.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from arguments import new_parser, whole
from tables import head, row

from autotune.config import Config
from autotune.kernels.launching.plan import Compiled, CompileError, compile_offline_for
from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.task import Task
from autotune.workloads import workload

TARGETS = (H100, MI300X, MI350X)
PROBLEMS: dict[str, dict[str, Any]] = {
    "all_gather_gemm": {"m": 1024, "n": 28672, "k": 8192, "world_size": 8},
    "gemm_reduce_scatter": {"m": 4096, "n": 8192, "k": 28672, "world_size": 8},
    "gemm_all_reduce": {"m": 64, "n": 8192, "k": 28672, "world_size": 8},
    "flash_decode": {"batch": 4, "q_heads": 96, "kv_heads": 12, "head_dim": 128, "kv_len": 32768, "world_size": 8,
                     "dtype": "fp16"},
}  # fmt: skip


def compiled(name: str, machine: Machine, config: str) -> list[Compiled] | str:
    """In a worker: the config's kernels, or what the compiler said."""
    compile_offline_for(machine)
    found = workload(name)
    problem = found.problem_type.from_dict(PROBLEMS[name])
    try:
        return found.compile(Task(problem, machine), Config.from_json(config))
    except CompileError as error:
        return str(error)


def sample(name: str, machine: Machine, count: int) -> Iterator[Config]:
    """Valid configs drawn at random, the modes in turn, those left out that launch nothing of ours."""
    found, rng = workload(name), random.Random(11)
    problem = found.problem_type.from_dict(PROBLEMS[name])
    space = found.space.narrowed(Task(problem, machine))
    modes = [mode for mode in space.modes if mode not in ("bsp", "copy_engine") or name == "flash_decode"]
    drawn: set[Config] = set()
    while len(drawn) < count:
        mode = modes[len(drawn) % len(modes)]
        values = {d.name: rng.choice(d.values) for d in space.dimensions_of(mode)}
        config = Config({**values, "mode": mode})
        if config not in drawn and space.violation(config, Task(problem, machine)) is None:
            drawn.add(config)
            yield config


def main() -> None:
    """Print the table, then what did not compile or did not fit."""
    parser = new_parser(__doc__)
    parser.add_argument("--sample", type=whole, default=30, help="configs for each workload and target")
    options = parser.parse_args()
    names = ["workload", "target", "configs", "compile", "fit"]
    print(head([*names, "most shared memory, KiB of", "most registers", "spill"], "ll"))
    failures = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        for name in PROBLEMS:
            for machine in TARGETS:
                configs = list(sample(Task(name, machine), options.sample))
                futures = [pool.submit(compiled, name, machine, config.to_json()) for config in configs]
                results = [future.result() for future in futures]
                kernels = [result for result in results if not isinstance(result, str)]
                shared = [max(kernel.shared_memory for kernel in each) for each in kernels]
                registers = [kernel.registers for each in kernels for kernel in each if kernel.registers is not None]
                spills = [kernel.spills for each in kernels for kernel in each if kernel.spills is not None]
                fit = sum(size <= machine.shared_memory for size in shared)
                limit = f"{max(shared) / 1024:.0f} of {machine.shared_memory // 1024}"
                cells = [name, machine.arch, len(configs), len(kernels), fit, limit]
                cells += [max(registers, default=""), sum(s > 0 for s in spills) if spills else ""]
                print(row(cells), flush=True)
                failures += [f"{name} {machine.arch} {c}: {r}" for c, r in zip(configs, results, strict=True)
                             if isinstance(r, str)]  # fmt: skip
    print("", *failures, sep="\n")


if __name__ == "__main__":
    main()
