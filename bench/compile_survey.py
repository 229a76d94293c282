"""A survey of the compiler's results, for GPUs that need not be here: of every workload and every architecture the
default, the configs that a search tries first, and a random sample of valid ones.

    python bench/compile_survey.py --sample 6

For each architecture: how many compile, how many fit into a program's shared memory (LDS), how many spill registers, as
AMD's compiler states it; for NVIDIA as cuobjdump does, whatever is on a thread's stack.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from multiprocessing import get_context

from arguments import new_parser, whole
from tables import head, row

from autotune.config import Config
from autotune.kernels.launching.plan import Compiled, CompileError, compile_offline_for
from autotune.machine import CHIPS, Machine
from autotune.task import Task
from autotune.workloads import names, workload

WORLD_SIZE = 8
DRAWS = 20_000
"""After which a space counts as empty: over PCIe some hold the library's way alone."""


def compiled(name: str, machine: Machine, config: str) -> list[Compiled] | str:
    """In a worker: the config's kernels, or what the compiler said."""
    compile_offline_for(machine)
    found = workload(name)
    try:
        return found.compile(Task(found.default_problem(machine, WORLD_SIZE), machine), Config.from_json(config))
    except CompileError as error:
        return str(error)


def configs(name: str, machine: Machine, sample: int) -> list[Config]:
    """Configs that are used or tried without being measured, and some drawn at random, the modes in turn."""
    found = workload(name)
    task = Task(found.default_problem(machine, WORLD_SIZE), machine)
    first = [found.default_config(task), *found.first_configs(task)]
    return list(dict.fromkeys([*first, *islice(drawn(name, task), sample)]))


def drawn(name: str, task: Task) -> Iterator[Config]:
    rng, space = random.Random(11), workload(name).space.narrowed(task)
    for mode in islice(cycle(space.modes), DRAWS):
        values = {d.name: rng.choice(d.values) for d in space.dimensions_of(mode)}
        config = Config({**values, "mode": mode})
        if mode != "bsp" and space.violation(config, task) is None:
            yield config


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sample", type=whole, default=6, help="random configs for each workload and architecture")
    options = parser.parse_args()
    print(head(["architecture", "as", "configs", "compile", "fit", "spill"], "ll"))
    failures = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        for machine in CHIPS:
            asked = [(name, config) for name in names() for config in configs(name, machine, options.sample)]
            futures = [pool.submit(compiled, name, machine, config.to_json()) for name, config in asked]
            fit = spill = compile = 0
            for (name, config), future in zip(asked, futures, strict=True):
                found = future.result()
                fits = not isinstance(found, str) and all(k.shared_memory <= machine.shared_memory for k in found)
                compile += not isinstance(found, str)
                fit += fits
                spill += not isinstance(found, str) and any(kernel.spills for kernel in found)
                if not fits:
                    failures.append(f"{name} {machine.arch} {config}: {found}")
            device = machine.device.removeprefix("NVIDIA ").removeprefix("AMD ")
            print(row([machine.arch, device, len(asked), compile, fit, spill]), flush=True)
    print("", *failures, sep="\n")


if __name__ == "__main__":
    main()
