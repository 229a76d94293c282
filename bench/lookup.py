"""The host cost of a look-up, by the number of tuned sizes: for a new size, and for one seen before.

    python bench/lookup.py

Along one dimension (m of all-gather + GEMM) the range around a size is found by bisection in a sorted table; for the
nearest of a size beyond them all are looked at. The table is sorted at a workload's first look-up, which is shown too.
"""

from __future__ import annotations

import platform
import time
from datetime import UTC, datetime
from statistics import median

from arguments import new_parser
from tables import head, row

from autotune.db import CacheKey, Entry, Winner
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.machine import H100
from autotune.outcome import Latency
from autotune.runtime.entries import Entries, serve
from autotune.task import Task
from autotune.workloads import provenance_of, workload

TABLES = (10, 100, 1000, 10_000)
LOOKUPS = 200


FOUND = workload("all_gather_gemm")


def problem_of(rows: int) -> AllGatherGemm:
    return AllGatherGemm(m=8 * rows, n=28672, k=8192, world_size=8)


def table_of(count: int) -> list[Entry]:
    winner = Winner(FOUND.default_config(Task(problem_of(1), H100)), Latency(1.0, 1.0, 1.0, 0.0, 1))
    when, today = datetime.now(UTC), provenance_of(FOUND)
    keys = [CacheKey.of(Task(problem_of(2 * number), H100)) for number in range(1, count + 1)]
    return [Entry(key, today, winner, number, when, 1, 0, 1) for number, key in enumerate(keys)]


def microseconds(table: list[Entry], beyond: bool) -> tuple[float, float]:
    """Time of the first look-up in a process, without the database, and of later ones of a new size (median)."""
    today, took = provenance_of(FOUND), []
    begin = time.perf_counter()
    entries = Entries(table)
    for number in range(LOOKUPS):
        key = CacheKey.of(Task(problem_of(2 * (number * 7919 % len(table) + beyond * len(table)) + 1), H100))
        begin = begin if number == 0 else time.perf_counter()
        serve(entries, key, today, ("m",), lambda config: None)
        took.append((time.perf_counter() - begin) * 1e6)
    return took[0], median(took[1:])


def main() -> None:
    new_parser(__doc__).parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}\n")
    print(head(["tuned sizes", "between them: first, µs", "new size, µs", "beyond: first, µs", "new size, µs"]))
    for count in TABLES:
        table = table_of(count)
        times = [*microseconds(table, beyond=False), *microseconds(table, beyond=True)]
        print(row([count, *(f"{each:.0f}" for each in times)]))


if __name__ == "__main__":
    main()
