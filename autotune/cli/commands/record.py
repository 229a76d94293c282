"""``tune record WORKLOAD``: measure a whole reduced space into a table on which searches are compared without a GPU."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import output, session
from autotune.cli.commands.tune import Effort, say_where, task_here
from autotune.cli.interrupts import exit_code
from autotune.cli.options import Database, Json, Request
from autotune.config import Value
from autotune.errors import InputError, NotTuned
from autotune.results.figures import config_text, device_text, latency_text, plain

if TYPE_CHECKING:
    from autotune.search_spaces import Space

MOST_CONFIGS = 5000
"""Default limit on the configs of a recording: some 20 minutes on GPUs."""

PLAIN_STEPS = 20
"""Lines of progress if stderr is not a terminal."""

Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File for the table, gzipped JSON.")]
Values = Annotated[
    str, typer.Option("--values", metavar="NAME=VALUES;…", help='Values to keep: "block_m=64,128;num_warps=8".')
]
Lift = Annotated[
    list[str] | None,
    typer.Option(
        "--lift",
        metavar="CONSTRAINT",
        help='Drop a constraint, such as "shared memory"; configs that break it are run.',
    ),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Refuse a space of more than N configs.")]


def record_workload(
    request: Request, out: Out, values: Values = "", lift: Lift = None, limit: Limit = MOST_CONFIGS,
    effort: Effort = None, db: Database = None, json: Json = False,
) -> None:  # fmt: skip
    """Failed configs are recorded too. The same command continues an interrupted recording."""
    from autotune.cli.watch import bar
    from autotune.db import CacheKey
    from autotune.recordings import file, recorder
    from autotune.recordings.tables import ENDING
    from autotune.tuning import EFFORTS, limits_of

    if request.given.get("invariant"):
        raise InputError("--invariant: a recording is of one size, an invariant config of all; record without it")
    machine, workload = session.machine_to_measure_on(), request.workload
    chosen, _ = limits_of(machine, effort, None, None)
    task = task_here(request, machine)
    allowed = parse_values(values, workload.space)
    output.check_ending(out, (ENDING,))
    output.check_file(out)
    say_where(task)
    default = workload.default_config(task)
    if workload.space.restricted(allowed, lift or ()).violation(default, task) is not None:
        output.say(f"note: the reduced space does not hold the default config: {config_text(default)}")
    try:
        with (
            session.open_store(db) as store,
            session.make_screen(workload, task) as screen, bar(_line, PLAIN_STEPS) as watch,
            closing(session.make_gang(workload, task)) as gang,
        ):  # fmt: skip
            found = recorder.record(
                workload, task, store, gang, screen,
                allowed=allowed, lifted=lift or (), limit=limit, iterations=EFFORTS[chosen].iterations,
                watch=lambda done, size: watch("recording", done, size),
            )  # fmt: skip
    except KeyboardInterrupt:
        output.say("interrupted; the same command continues the recording")
        raise typer.Exit(exit_code()) from None
    outcomes = Counter(evaluation.outcome.value for evaluation in found.evaluations.values())
    measured = {config: e.latency for config, e in found.evaluations.items() if e.latency is not None}
    if not measured:
        reason = next(iter(found.evaluations.values())).reason
        raise NotTuned(
            f"no config could be measured ({_counted(outcomes)}), so there is no table to write; the first: {reason}. "
            "Choose other --values; with another --db the same configs run again"
        )
    file.write(found, out)
    fastest = min(measured, key=lambda config: measured[config].median)
    if json:
        best = {"config": dict(fastest), "median": measured[fastest].median}
        output.data_json({"file": str(out), "configs": outcomes.total(), "outcomes": outcomes, "best": best})
        return
    lines = [
        ("device", device_text(CacheKey.of(task))),
        ("configs", f"{outcomes.total()}: {_counted(outcomes)}"),
        ("best", latency_text(measured[fastest])),
        ("config", config_text(fastest)),
    ]
    output.data(output.named(lines))
    output.say(f"wrote {out}")
    output.next_step(f"python bench/search_quality.py {out}")


def _line(phase: str, done: int, of: int) -> str:
    return f"{phase}: {done} of {of} configs"


def _counted(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.most_common())


def parse_values(text: str, space: Space) -> dict[str, list[Value]]:
    """``block_m=64,128;num_warps=8``: the values to keep of some dimensions. Raises InputError."""
    allowed: dict[str, list[Value]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, listed = (word.strip() for word in part.partition("="))
        if not equals or not listed or name in allowed:
            raise InputError(f'--values {part!r}: write each dimension once, like "block_m=64,128;num_warps=8"')
        if name not in space.dimensions:
            raise InputError(f"--values {part!r}: no dimension {name}; dimensions: {', '.join(space.dimensions)}")
        own = {plain(value): value for value in space.dimensions[name].values}
        words = [word.strip() for word in listed.split(",")]
        strange = [word for word in words if word not in own]
        if strange:
            raise InputError(f"--values {part!r}: {', '.join(strange)}; allowed: {', '.join(own)}")
        allowed[name] = [own[word] for word in words]
    return allowed
