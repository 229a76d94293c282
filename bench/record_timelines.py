"""Add to recorded tables one traced call of the library's way and of each of the fastest configs, for ``tune demo``.

    python bench/record_timelines.py autotune/recordings/data/ag-rows-1024.json.gz    # on the machine of the table

Takes half a minute per table. A search on the table ends at one of the fastest configs, so four of them are traced.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from arguments import new_parser

from autotune.errors import AutotuneError, InputError
from autotune.machine import machine as machine_here
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.recordings.file import read, write
from autotune.recordings.recording import Recording
from autotune.task import Task
from autotune.timeline import Timeline
from autotune.tuning.screening import Screen
from autotune.tuning.tracing import Tracer
from autotune.workloads import workload

FASTEST = 4
PLAN = MeasurePlan(2, 5, 5)
COMPILING = 120.0
"""Seconds at most until a twin is compiled."""


def traced(recorded: Recording) -> Timeline:
    """Calls by the JSON of their configs."""
    found, machine = workload(recorded.workload), machine_here()
    if machine.device != recorded.machine.device:
        raise InputError(f"this machine has {machine.device}, the table is of {recorded.machine.device}")
    task = Task(recorded.problem_of(found), machine)
    measured = {config: each.latency.median for config, each in recorded.evaluations.items() if each.latency}
    library = [each for each in found.baselines(task).values() if each in measured and each.get("launch") != "graph"]
    calls = [*library, *sorted(measured, key=measured.__getitem__)[:FASTEST]]
    timeline = Timeline()
    with Screen(found, task) as screen, Gang(found, task) as gang:
        tracer = Tracer(found, task, gang, screen)
        tracer.seconds = COMPILING
        for config in calls:
            tracer.compile(config)
        for config in dict.fromkeys(calls):
            if gang.evaluate(config, 0, PLAN).latency is not None:
                begun = time.monotonic()
                timeline |= tracer.timeline({config.to_json(): (config, measured[config])})
                print(f"{time.monotonic() - begun:.2f} s {config.to_json() in timeline} {config}")
    return timeline


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    for file in parser.parse_args().files:
        try:
            recorded = read(file)
            write(dataclasses.replace(recorded, timeline=traced(recorded)), file)
        except AutotuneError as error:
            parser.error(f"{file}: {error}")


if __name__ == "__main__":
    main()
