"""What a size off the grid of tiles costs: each mode's time there over its time at the next friendly size.

    python bench/cliffs.py --world-size 2      every workload and mode, rows, columns and depth off the tile
    python bench/cliffs.py --world-size 2 --only all_gather_gemm
    python bench/cliffs.py --toy               tiny problems under Triton's interpreter: does it work at all?

A friendly size is a multiple of 128 rows for each rank, of 256 columns and of 64 of the depth. Both sizes run the same
config, the mode's first that is valid for both, checked as the tuner checks it and measured in turns. Above 1 the size
off the grid takes longer, though it has less to do.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from arguments import new_parser, whole
from tables import head, row

ROUNDS = 5
ROWS, COLUMNS, DEPTH = 128, 256, 64
"""What is friendly: rows of a rank, columns, depth."""

PROBLEMS: dict[str, dict[str, Any]] = {
    "all_gather_gemm": {"n": 28672, "k": 4096},
    "gemm_reduce_scatter": {"n": 4096, "k": 14336},
    "gemm_all_reduce": {"n": 5120, "k": 25600},
    "all_reduce_norm": {"n": 8192},
}
OFF = (1, 2, 3, 17, 61, 127, 129, 250, 357, 509, 750, 1000, 1023, 1500, 2999, 4093)
"""Rows of a rank, primes and neighbours of tiles among them."""
SHAPES = ({"n": 2880}, {"n": 3696}, {"k": 1448}, {"k": 2880}, {"n": 1704})
"""Columns and depths of served models that no tile divides, at 1024 rows of a rank."""


@dataclass(frozen=True)
class Pair:
    """A size off the grid, and the next friendly one."""

    workload: str
    off: dict[str, int]
    friendly: dict[str, int]


def pairs(ranks: int, names: list[str], toy: bool) -> Iterator[Pair]:
    for name in names:
        sizes = {"n": 32, "k": 32} if toy else PROBLEMS[name]
        sizes = {each: value for each, value in sizes.items() if each in PROBLEMS[name]}
        grid = 16 if toy else ROWS
        for rows in (3, 17) if toy else OFF:
            up = -(-rows // grid) * grid
            yield Pair(name, {**sizes, "m": ranks * rows}, {**sizes, "m": ranks * up})
        for shape in () if toy else SHAPES:
            if shape.keys() <= sizes.keys():
                ((each, value),) = shape.items()
                unit = COLUMNS * ranks if each == "n" else DEPTH * ranks
                other = {**sizes, "m": 1024 * ranks}
                yield Pair(name, {**other, each: value * ranks}, {**other, each: -(-value * ranks // unit) * unit})


def said(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def measured(gang: Any, found: Any, pair: Pair, ranks: int, plan: Any) -> Iterator[tuple[str, float]]:
    """Each mode's ratio."""
    from autotune.errors import InvalidProblem
    from autotune.machine import machine
    from autotune.task import Task

    dtype = "fp32" if machine().is_interpreter else "bf16"
    try:
        off, friendly = (
            Task(found.problem_type(**sizes, dtype=dtype, world_size=ranks), machine())
            for sizes in (pair.off, pair.friendly)
        )
    except InvalidProblem:
        return
    chosen: dict[str, Any] = {}
    for config in (*found.baselines(off).values(), *found.first_configs(off)):
        if all(found.space.violation(config, each) is None for each in (off, friendly)):
            chosen.setdefault(str(config["mode"]), config)
    times: dict[tuple[str, bool], list[float]] = {}
    for number in range(ROUNDS):
        for task in (off, friendly) if number % 2 else (friendly, off):
            gang.turn_to(found, task.problem)
            for mode, config in chosen.items():
                result = gang.evaluate(config, number, plan)
                if result.latency is not None:
                    times.setdefault((mode, task is off), []).append(result.latency.median)
    for mode in chosen:
        here, there = times.get((mode, True)), times.get((mode, False))
        if here and there:
            yield mode, statistics.median(here) / statistics.median(there)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--only", action="append", choices=PROBLEMS, help="a workload, again for more; default: all")
    parser.add_argument("--world-size", type=whole, default=2, help="ranks; default: 2")
    parser.add_argument("--toy", action="store_true", help="tiny problems under Triton's interpreter")
    given = parser.parse_args()
    if given.toy:
        os.environ["TRITON_INTERPRET"] = "1"
    from autotune.machine import machine
    from autotune.ranks.evaluation import MeasurePlan, warm_from
    from autotune.ranks.gang import Gang
    from autotune.task import Task
    from autotune.workloads import workload

    here = machine()
    if here.is_interpreter and not given.toy:
        parser.error("no GPU found; --toy runs tiny problems under Triton's interpreter")
    plan = replace(MeasurePlan(0, 1, 1) if given.toy else MeasurePlan(4, 20, 20), warm_from=warm_from(here))
    names = (given.only or [*PROBLEMS])[: 1 if given.toy else None]
    print(head(["workload", "mode", "sizes", "next friendly", "time over its"], "llll"))
    first = workload(names[0])
    problem = first.default_problem(here, given.world_size)
    with closing(Gang(first, Task(problem, here), 1 << 26 if given.toy else 4 << 30)) as gang:
        gang.start()
        for pair in pairs(given.world_size, names, given.toy):
            for mode, ratio in measured(gang, workload(pair.workload), pair, given.world_size, plan):
                texts = [
                    " ".join(f"{name}={size}" for name, size in sizes.items()) for sizes in (pair.off, pair.friendly)
                ]
                print(row([pair.workload.replace("_", "-"), mode, *texts, f"{ratio:.3f}"]), flush=True)


if __name__ == "__main__":
    main()
