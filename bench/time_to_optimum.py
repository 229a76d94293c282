"""The time until a new problem's best config is near the recorded optimum: wall time, from nothing.

    python bench/time_to_optimum.py bench/recordings/ag-rows-1024.json.gz --budget 60s

A problem is one that was recorded, on the same kind and number of GPUs. *Cold*: no database, nothing compiled. *Warm*:
the database has the same problem with half of m. Each run is a process of its own, whose imports and ranks count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from arguments import input_file, need_gpu, new_parser
from tables import head, row

from autotune.cli import session
from autotune.db import Store
from autotune.errors import InputError
from autotune.machine import machine
from autotune.recordings.file import read
from autotune.task import Task
from autotune.tuning import EFFORTS, Budget, tune
from autotune.tuning.progress import Progress
from autotune.workloads import workload

NEAR = 1.03


@dataclass
class Run:
    """One run, as far as it has come: seconds until it was near the optimum, until the first config was measured, and
    until the last; latencies in µs.
    """

    optimum: float
    reached: float | None = None
    first: float | None = None
    last: float = 0.0
    trials: int = 0
    best: float = float("inf")

    @property
    def rate(self) -> float:
        return 60 * self.trials / (self.last - self.first) if self.first is not None and self.last > self.first else 0.0


def tuned(recording: Path, m: int | None, database: Path, budget: str, began: float) -> Run:
    recorded = read(recording)
    found = workload(recorded.workload)
    fields = {**recorded.problem, **({"m": m} if m is not None else {})}
    task, effort = Task(found.problem_type.from_dict(fields), machine()), EFFORTS["standard"]
    run = Run(recorded.optimum)

    def watch(progress: Progress) -> None:
        if progress.best is None or progress.phase != "searching":
            return
        run.last = time.monotonic() - began
        run.first = run.first or run.last
        run.trials, run.best = progress.trials, progress.best[1].median
        if run.reached is None and run.best <= NEAR * run.optimum:
            run.reached = run.last

    with (
        Store.open(str(database)) as store, session.make_screen(found, task) as screen,
        closing(session.make_gang(found, task)) as gang,
    ):  # fmt: skip
        tune(found, task, store, gang, screen, budget=Budget.of(effort, None, budget), effort=effort, watch=watch)
    return run


def in_a_process(recording: Path, m: int | None, database: Path, budget: str, cache: Path) -> Run:
    """``tuned`` in a process of its own, with ``cache`` for what Triton compiles."""
    command = [sys.executable, __file__, str(recording), "--budget", budget, "--database", str(database)]
    command += [f"--began={time.monotonic()}"]  # one clock for all processes of a machine
    command += [f"--m={m}"] if m is not None else []
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Run(**json.loads(done.stdout))


def line(recording: Path, start: str, run: Run) -> str:
    first = f"{run.first:.0f}" if run.first else ""
    reached = f"**{run.reached:.0f}**" if run.reached else "not reached"
    name, latencies = recording.name.removesuffix(".json.gz"), (f"{run.best:.1f}", f"{run.optimum:.1f}")
    return row([name, start, first, reached, *latencies, run.trials, f"{run.rate:.0f}"])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("recordings", nargs="+", type=input_file)
    parser.add_argument("--budget", default="60s", help="of each run")
    parser.add_argument("--database", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--m", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.database is not None:
        run = tuned(options.recordings[0], options.m, options.database, options.budget, options.began)
        print(json.dumps(asdict(run)))
        return
    try:
        recorded = [read(recording) for recording in options.recordings]
        halves = [int(each.problem["m"]) // 2 for each in recorded]
    except InputError as error:
        parser.error(str(error))
    except KeyError:
        parser.error("a recording's problem has no m, half of which is the warm start")
    need_gpu(parser)
    here = machine()
    for file, each in zip(options.recordings, recorded, strict=True):
        needed = int(each.problem["world_size"])
        if each.machine.device != here.device or needed > here.gpus:
            parser.error(
                f"{file}: recorded on {needed} × {each.machine.device}; here are {here.gpus} × {here.device}, where "
                "its optimum says nothing"
            )
    print(head(["problem", "start", "first measured, s", "within 3 %, s", "best, µs", "recorded, µs", "trials",
                "trials a minute"], "ll"))  # fmt: skip
    for recording, half in zip(options.recordings, halves, strict=True):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cold = in_a_process(recording, None, folder / "cold.db", options.budget, folder / "cold")
            print(line(recording, "cold", cold), flush=True)
            in_a_process(recording, half, folder / "warm.db", options.budget, folder / "before")
            warm = in_a_process(recording, None, folder / "warm.db", options.budget, folder / "warm")
            print(line(recording, "warm", warm), flush=True)


if __name__ == "__main__":
    main()
