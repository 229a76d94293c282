"""``tune grid WORKLOAD``: many sizes on one gang; each search starts from its neighbours' winners."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import output, session
from autotune.cli.commands.sizes import Sizes
from autotune.cli.commands.tune import Effort, Force, OptunaStorage, Seconds, Seed, Trials, say_where
from autotune.cli.interrupts import exit_code
from autotune.cli.options import Database, Json, RegimeName, Request
from autotune.config import Config
from autotune.db import Entry
from autotune.errors import InputError
from autotune.machine import Machine
from autotune.outcome import DEFAULT_REGIME, Regime, regime_of
from autotune.problem import Problem
from autotune.results.figures import Ratio, dashed, microseconds, options_text, ratio
from autotune.results.result import Result
from autotune.task import Task
from autotune.text import Table
from autotune.workloads import Workload

if TYPE_CHECKING:
    from autotune import tuning
    from autotune.cli.commands.grid_progress import GridProgress
    from autotune.db import Store
    from autotune.tuning import Budget, Evaluator
    from autotune.tuning.live import LiveStorage
    from autotune.tuning.screening import Screen

HEADER = ("sizes", "takes", "vs library", "overlap", "mode", "with config before")

Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="Measure sizes between those searched, with the configs of both: look-ups then serve the whole range.",
    ),
]


@dataclass(frozen=True)
class Row:
    sizes: dict[str, int]
    """The dimensions that vary."""
    entry: Entry | None
    """None if no config could be measured."""
    before: Ratio | None
    """The latency here of the previous size's winner over this winner's, in the same finals; None if it was not in
    them.
    """
    verified: bool = False
    """True if nothing was searched at this size."""

    @cached_property
    def result(self) -> Result | None:
        return None if self.entry is None else Result.of(self.entry)

    def as_dict(self) -> dict[str, Any]:
        found = self.result.to_dict() if self.result is not None else {"latency": None}
        before = self.before and self.before.value
        return {"sizes": self.sizes, "verified": self.verified, "with_neighbour": before, **found}

    def cells(self) -> list[str]:
        sizes = " ".join(f"{name}={value}" for name, value in self.sizes.items()) + " verified" * self.verified
        of = self.result
        if of is None:
            return [sizes, "no config passed", "", "", "", ""]
        before = f"{self.before.value:.2f} times" if self.before and not of.key.is_interpreted else ""
        limit = f"{100 * of.limit.share:.0f} %" if of.limit is not None else ""
        return [sizes, microseconds(of.microseconds), of.speedup_text, limit, of.mode, before]


@dataclass(frozen=True)
class Bench:
    workload: Workload
    machine: Machine
    store: Store
    gang: Evaluator
    screen: Screen
    limits: Budget
    effort: str
    seed: int
    force: bool
    regime: Regime
    live: LiveStorage | None

    def is_to_tune(self, problem: Problem, search: bool = True) -> bool:
        """True if it is not in the cache, or is tuned again."""
        from autotune.tuning.cached import cached

        task = Task(problem, self.machine)
        return self.force or cached(self.store, self.workload, task, self.regime, search=search) is None

    def tune(
        self, problem: Problem, lent: Sequence[Config], progress: GridProgress, search: bool = True
    ) -> tuning.Result:  # fmt: skip
        """Tune one size, or verify it; valid configs in ``lent`` are measured in its finals too."""
        from autotune.cli.watch import watching
        from autotune.tuning import EFFORTS, tune

        self.gang.turn_to(self.workload, problem)
        self.screen.turn_to(self.workload, problem)
        task = Task(problem, self.machine)
        valid = [config for config in lent if self.workload.space.violation(config, task) is None]
        with watching(task, progress.render) as watch:
            return tune(
                self.workload, task, self.store, self.gang, self.screen, budget=self.limits,
                effort=EFFORTS[self.effort if search else "quick"], seed=self.seed, force=self.force, watch=watch,
                extra_finalists=valid, regime=self.regime, live=self.live, search=search,
            )  # fmt: skip


def tune_grid(
    request: Request, verify: Verify = True, budget: Seconds = None, trials: Trials = None, effort: Effort = None,
    seed: Seed = 0, force: Force = False, regime: RegimeName = DEFAULT_REGIME.value,
    optuna_storage: OptunaStorage = None, db: Database = None, json: Json = False,
) -> None:  # fmt: skip
    """Sizes are lists (16,64,256), of which every combination is tuned, or ranges (1..8192), of which a few sizes are
    searched and others verified.

    --budget and --trials apply to each problem. The same command continues an interrupted run.
    """
    from autotune.cli.commands.grid_progress import GridProgress
    from autotune.tuning import limits_of
    from autotune.tuning.live import live_storage

    machine, workload, wanted = session.machine_to_measure_on(), request.workload, regime_of(regime)
    if request.given.get("invariant"):
        raise InputError(
            "--invariant: one config serves all sizes, so there is no grid of them; tune it by: "
            f"tune {request.word} --invariant --{dashed(request.workload.problem_type.one_row)} 1..N"
        )
    chosen, limits = limits_of(machine, effort, trials, budget, seed)
    session.check_ranks(request.world_size(machine), machine)
    sizes = Sizes.of(request, machine, verify)
    problems = [Request(workload, {**request.given, **each}).problem(machine) for each in sizes.every]
    searched = len(sizes.searched)
    for problem in problems:
        session.check_work(Task(problem, machine))
    say_where(Task(problems[0], machine))
    rows: list[Row] = []
    interrupted = False
    heap_bytes = max(workload.heap_bytes(problem) for problem in problems)
    try:
        with (
            session.open_store(db) as store,
            live_storage(optuna_storage) as live,
            session.make_screen(workload, Task(problems[0], machine)) as screen,
            closing(session.make_gang(workload, Task(problems[0], machine), heap_bytes)) as gang,
        ):  # fmt: skip
            bench = Bench(workload, machine, store, gang, screen, limits, chosen, seed, force, wanted, live)
            to_tune = [bench.is_to_tune(each, search=place < searched) for place, each in enumerate(problems)]
            if any(to_tune):  # outside the first size's budget
                output.say("starting the ranks")
                screen.start()
                gang.start()
            progress = GridProgress(HEADER, to_tune, limits.seconds)
            for place, problem in enumerate(problems):
                progress.next_size()
                before = rows[-1].entry if rows else None
                rows.append(_row(bench, problem, sizes.varied, before, progress, search=place < searched))
                progress.done(rows[-1].cells())
    except KeyboardInterrupt:
        interrupted = True
    if json:
        output.data_json([row.as_dict() for row in rows])
    elif rows:
        by_size = sorted(rows, key=lambda row: [row.sizes[name] for name in sizes.varied])
        output.data(output.columns(Table(HEADER, [row.cells() for row in by_size])))
        if claimed := claim_of(rows, sizes):
            output.styled(*output.folded(claimed, "bold"))
    if interrupted:
        output.say("interrupted; the same command continues the run")
        raise typer.Exit(exit_code())
    if any(row.entry is not None for row in rows):
        output.next_step(f"{replace(request, given={}).command('report', db=db)} --all --open")
    if any(row.entry is None for row in rows):
        raise typer.Exit(1)


def _row(
    bench: Bench, problem: Problem, varied: Sequence[str], before: Entry | None, progress: GridProgress, *, search: bool
) -> Row:
    """Tune one size, with the winner of the one before in its finals, or verify it; raises KeyboardInterrupt if the
    user interrupts it.
    """
    from autotune.cli.watch import is_live

    here = {name: getattr(problem, name) for name in varied}
    if not is_live():  # else it stands above the view
        output.say(f"{progress.line()}{': ' if here else ''}{options_text(here)}{'' if search else ', verified'}")
    tried = [before.winner.config] if before is not None and search else []
    result = bench.tune(problem, tried, progress, search)
    if result.interrupted:
        raise KeyboardInterrupt
    ratios = [compared(result.entry, config, bench.store) for config in tried] if result.entry is not None else []
    return Row(here, result.entry, next(iter(ratios), None), verified=not search)


def compared(entry: Entry, config: Config, store: Store) -> Ratio | None:
    """Latency of a config over an entry's winner, by the rounds of its finals; None if it was not in them or failed
    there.
    """
    from autotune.tuning.finals import in_finals

    latency = in_finals(store.trials(entry.study_id)).get(config)
    return None if latency is None else ratio(latency, entry.winner.latency.bound, Regime(entry.key.regime))


def claim_of(rows: Sequence[Row], sizes: Sizes) -> str:
    """The range's claim; empty without ratios, as under the interpreter."""
    from autotune.results.crossover import claim

    told = [(row, row.result.ratio.value) for row in rows if row.result and row.result.ratio]
    if not told:
        return ""
    spans = [(name, [row.sizes[name] for row, _ in told]) for name in sizes.along or sizes.varied]
    where = ", ".join(f"{name}={min(values)} to {max(values)}" for name, values in spans)
    searched, verified = ([ratio for row, ratio in told if row.verified is kind] for kind in (False, True))
    library = next(row.result.library for row, _ in told if row.result)
    return claim(where, searched, verified, library)
