"""The view of a running search on stderr: live in a terminal, single lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.config import Config
from autotune.db import CacheKey
from autotune.outcome import Latency
from autotune.problem import Problem
from autotune.results.figures import (
    config_text,
    fastest,
    latency_text,
    microseconds,
    outcomes_text,
    title,
)
from autotune.results.library import baseline_name
from autotune.task import Task
from autotune.text import counted as plural
from autotune.text import visible
from autotune.tuning import Progress
from autotune.tuning.search.proposer import WORTH_A_TRIAL

EVERY_TRIALS = 10
AT_MOST_EVERY = 1.0
"""Seconds between two plain lines of the same phase."""

AT_LEAST_EVERY = 5.0
"""Seconds after which any measurement is worth a plain line: a few slow ones would otherwise pass in silence."""

BAR_WIDTH = 24

Way = Callable[[str], str]
"""A baseline by its libraries."""


@contextmanager
def watching(
    task: Task[Problem], above: Callable[[], RenderableType] | None = None, where: str = ""
) -> Iterator[Callable[[Progress], None]]:
    """Yields the function that the loop calls with its progress, while it runs; ``where`` names the devices, by default
    those of the task.

    A live view has ``above`` it what that returns. Interpreted latencies stand alone.
    """
    console, problem = _console(), task.problem
    way = None if task.machine.is_interpreter else partial(baseline_name, CacheKey.of(task))
    where = where or f"{problem.world_size} × {task.machine.device}"
    if not is_live(console):
        yield PlainView(lambda line: console.print(visible(line), markup=False, soft_wrap=True), way=way)
        return
    view = LiveView(title(problem.workload, problem.as_dict()), where, way=way)
    render = (lambda: Narrow(view.render())) if above is None else (lambda: Narrow(Group(above(), view.render())))
    with Live(get_renderable=render, console=console, transient=True, refresh_per_second=4):
        yield view


@contextmanager
def bar(line: Callable[[str, int, int], str], steps: int = 1) -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function of phase, steps done and steps in all: a bar in a terminal, elsewhere lines for each phase."""
    console = _console()
    if console.is_terminal:
        with Bar(TextColumn("{task.description}"), BarColumn(), console=console, transient=True) as progress:
            task = progress.add_task("", total=None)
            yield lambda phase, done, of: progress.update(task, description=phase, completed=done, total=of)
        return
    said: set[tuple[str, int]] = set()

    def say(phase: str, done: int, of: int) -> None:
        step = phase, min(done * steps // max(of, 1), steps - 1)
        if step not in said:
            said.add(step)
            console.print(line(phase, done, of), markup=False, soft_wrap=True)

    yield say


INTERRUPTS = 2 * len("^C")
"""Columns that a terminal takes for its echo of Ctrl-C, twice."""


@dataclass(frozen=True)
class Narrow:
    """Leaves room on its last line for a terminal's ``^C``, which would else begin another line: a live view that is
    erased would leave its first one.
    """

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.content, options.update(width=max(1, options.max_width - INTERRUPTS - 1)))


def is_live(console: Console | None = None) -> bool:
    """True if stderr is a terminal that can draw over what it has drawn."""
    console = console or _console()
    return console.is_terminal and not console.is_dumb_terminal


def _console() -> Console:
    return Console(stderr=True, highlight=False)


def best_text(progress: Progress, way: Way | None = None) -> str:
    """``best 408.2 µs, 1.30 times as fast as NCCL + cuBLAS (530.0 µs)``; without a ``way`` the time alone."""
    regime = progress.regime
    name = fastest(progress.baselines, regime)
    if progress.best is None:
        return "nothing measured yet"
    latency = progress.best[1]
    text = f"best {latency_text(latency, regime)}"
    if name is None or way is None:
        return text
    baseline = progress.baselines[name].of(regime)
    return f"{text}, {baseline / latency.of(regime):.2f} times as fast as {way(name)} ({microseconds(baseline)})"


def seconds_left(progress: Progress, used_before: float) -> float | None:
    """Seconds left of the budget; for a budget of trials alone, extrapolated from the pace so far."""
    if progress.seconds_left is not None:
        return progress.seconds_left
    gained = progress.used - used_before
    return progress.seconds / gained * (1 - progress.used) if gained > 0 else None


def clock_text(seconds: float) -> str:
    """``0:42``, ``5:07``, ``1:05:07``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(progress: Progress) -> str:
    """``12 of 40 trials``; ``all 4 configs tried`` of a small space; in the finals ``7 of 36 measurements``."""
    done, planned = progress.finals
    if planned:
        return f"{done} of {planned} measurements"
    if progress.settled:
        return f"{plural(progress.trials, 'trial')}, no more than {WORTH_A_TRIAL:.1%} to be gained"
    if progress.exhausted:
        return f"all {plural(progress.trials, 'config')} tried"
    if progress.trials_planned is not None:
        return f"{progress.trials} of {progress.trials_planned} trials"
    return plural(progress.trials, "trial")


class PlainView:
    """Prints a line per new phase; within a phase, one per ten trials or new best, at most one per second; and one at a
    measurement that ends when nothing has been said for five seconds.
    """

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic, *, way: Way | None = None
    ) -> None:  # fmt: skip
        self._write, self._clock, self._way = write, clock, way
        self._phase = ""
        self._said_at = -AT_MOST_EVERY
        self._said_count = 0
        self._said_best: float | None = None

    def __call__(self, progress: Progress) -> None:
        best = progress.best[1].of(progress.regime) if progress.best is not None else None
        count = progress.trials + progress.finals[0]
        silent = self._clock() - self._said_at
        enough = EVERY_TRIALS if silent < AT_LEAST_EVERY else 1
        news = best != self._said_best or count >= self._said_count + enough
        if progress.phase == self._phase and not (news and silent >= AT_MOST_EVERY):
            return
        self._phase, self._said_at = progress.phase, self._clock()
        self._said_count, self._said_best = count, best
        self._write(self._line(progress))

    def _line(self, progress: Progress) -> str:
        line = f"[{clock_text(progress.seconds)}] {progress.phase}"
        if not progress.trials:
            return line
        line += f": {counted(progress)}"
        if not progress.finals[1]:
            line += f" ({outcomes_text(progress.outcomes)})"
            line += "" if progress.exhausted else f", {progress.used:.0%} of the budget"
        if progress.restarts:
            line += f", {plural(progress.restarts, 'restart')}"
        mode = f", mode {progress.best[0].get('mode')}" if progress.best is not None else ""
        return f"{line}; {best_text(progress, self._way)}{mode}"


class LiveView:
    """A few lines, redrawn four times per second. The loop's calls make the texts; in between only the clock runs."""

    def __init__(self, title: str, where: str, *, way: Way | None = None) -> None:
        self._title, self._where, self._way = title, where, way
        self._begin = time.monotonic()
        self._seen_at = self._begin
        self._share = 0.0
        self._used_before: float | None = None
        self._left: float | None = None
        self._phase = "preparing"
        self._best: tuple[Config, Latency] | None = None
        self._best_since = self._begin
        self._lines: list[tuple[str, str]] = []

    def __call__(self, progress: Progress) -> None:
        if self._used_before is None:
            self._used_before = progress.used
        self._seen_at = time.monotonic()
        if progress.best != self._best:
            self._best, self._best_since = progress.best, self._seen_at
        done, planned = progress.finals
        self._share, self._phase = done / planned if planned else progress.used, progress.phase
        self._left = seconds_left(progress, self._used_before)
        self._lines = self._texts(progress)

    def render(self) -> RenderableType:
        """Called from the drawing thread."""
        now = time.monotonic()
        times = f"{clock_text(now - self._begin)} elapsed"
        if self._left is not None and self._share < 1:
            times += f", {clock_text(max(0.0, self._left - (now - self._seen_at)))} left"
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            Text(visible(self._phase), style="bold"), ProgressBar(total=1.0, completed=self._share, width=BAR_WIDTH),
            Text(f"{self._share:.0%}"), Text(times),
        )  # fmt: skip
        facts = Table.grid(padding=(0, 2))
        for name, text in self._lines:
            age = f", found {clock_text(now - self._best_since)} ago" if name == "best" else ""
            facts.add_row(Text(name, style="dim"), Text(visible(text) + age, style="bold" if name == "best" else ""))
        return Group(Text(visible(self._title)), Text(visible(f"on {self._where}")), bar, facts)

    def _texts(self, progress: Progress) -> list[tuple[str, str]]:
        lines = []
        if progress.best is not None:
            best = best_text(progress, self._way).removeprefix("best ")
            lines += [("best", best), ("", config_text(progress.best[0]))]
        if progress.trials:
            lines.append(("trials", self._trials(progress)))
        if progress.finals[1]:
            lines.append(("finals", counted(progress)))
        if progress.restarts:
            lines.append(("restarts", f"{progress.restarts} of the ranks"))
        if progress.last is not None and not progress.finals[1]:
            config, evaluation = progress.last
            end = latency_text(evaluation.latency, progress.regime) if evaluation.latency else str(evaluation.outcome)
            lines.append(("last", f"{end}  {config_text(config)}"))
        return lines

    def _trials(self, progress: Progress) -> str:
        """``12 of 40, 10 of an earlier run: 11 measured, 1 crashed; 1.5 per second``."""
        searched = replace(progress, finals=(0, 0))
        of = counted(searched).removesuffix(" trials").removesuffix(" trial")
        resumed = f", {progress.resumed} of an earlier run" if progress.resumed else ""
        rate = f"; {progress.spent.rate / 60:.1f} per second" if progress.spent.rate else ""
        return f"{of}{resumed}: {outcomes_text(progress.outcomes)}{rate}"
