"""How long four ranks take to start under the interpreter: a program's first gang, and the next one.

    python bench/gang_start.py                  seconds on the clock by stage, and CPU seconds of all processes
    python bench/gang_start.py --ranks 8

The first waits for the fork server's imports; the next ones, and ranks that are started again, do not. CPU seconds tell
more than the clock where the cores are not this program's alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

from arguments import new_parser, whole

WITH_BYTECODE = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The ranks import the package compiled, as pip leaves it: containers often set the other."""


def start_gangs(ranks: int, gangs: int) -> None:
    from autotune.machine import INTERPRETED
    from autotune.ranks.gang import Gang
    from autotune.task import Task
    from autotune.workloads import workload

    found = workload("all_gather_gemm")
    problem = found.problem_type(m=32, n=16 * ranks, k=64, world_size=ranks)
    for _ in range(gangs):
        begun = time.monotonic()
        with Gang(found, Task(problem, INTERPRETED)) as gang:
            print(json.dumps({"start": time.monotonic() - begun, **gang.start_seconds}), flush=True)


def cpu_seconds(ranks: int, gangs: int) -> tuple[float, list[dict[str, float]]]:
    """CPU seconds of a process that starts gangs, its ranks included; and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, "--ranks", str(ranks), "--gangs", str(gangs)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=WITH_BYTECODE).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, [json.loads(line) for line in printed.splitlines()]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--ranks", type=whole, default=4)
    parser.add_argument("--gangs", type=int, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.gangs is not None:
        start_gangs(words.ranks, words.gangs)
        return
    cpu_seconds(words.ranks, 1)  # what is compiled now is there for the others
    spent = [cpu_seconds(words.ranks, gangs)[0] for gangs in (0, 1)]
    two, (first, second) = cpu_seconds(words.ranks, 2)
    for name, seconds, cpu in (("first", first, spent[1] - spent[0]), ("next", second, two - spent[1])):
        stages = ", ".join(f"{stage} {value:.2f}" for stage, value in seconds.items() if stage != "start")
        print(f"{name:5}  {seconds['start']:.2f} s ({stages}), {cpu:.2f} CPU seconds")


if __name__ == "__main__":
    main()
