"""The view of a running search on stderr: live in a terminal, single lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.cli.summary import outcomes_text
from autotune.environment import Machine
from autotune.problem import Problem
from autotune.report.figures import config_text, dashed, fastest, latency_text, microseconds, problem_text
from autotune.text import visible
from autotune.tuning import Standing

EVERY_TRIALS = 10
AT_MOST_EVERY = 1.0
"""Seconds between two plain lines of the same phase."""


@contextmanager
def watching(problem: Problem, machine: Machine) -> Iterator[Callable[[Standing], None]]:
    """Yields the function that the loop calls with its standing, for as long as it runs."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield PlainView(lambda line: console.print(visible(line), markup=False, soft_wrap=True))
        return
    where = f"{problem.world_size} × {machine.device}"
    view = LiveView(f"{dashed(problem.workload)}  {problem_text(problem.as_dict())}  on {where}")
    with Live(get_renderable=view.render, console=console, transient=True, refresh_per_second=4):
        yield view


def best_text(standing: Standing) -> str:
    """``best 408.2 µs, 1.30x bsp graph (530.0 µs)``."""
    regime = standing.regime
    name = fastest(standing.baselines, regime)
    if standing.best is None:
        return "nothing measured yet"
    latency = standing.best[1]
    text = f"best {latency_text(latency, regime)}"
    if name is None:
        return text
    baseline = standing.baselines[name].of(regime)
    return f"{text}, {baseline / latency.of(regime):.2f}x {name} ({microseconds(baseline)})"


def seconds_left(standing: Standing, used_before: float) -> float | None:
    """By the budget; with a budget of trials alone, extrapolated from the pace so far."""
    if standing.seconds_left is not None:
        return standing.seconds_left
    gained = standing.used - used_before
    return standing.seconds / gained * (1 - standing.used) if gained > 0 else None


def clock_text(seconds: float) -> str:
    """``0:42``, ``5:07``, ``1:05:07``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


class PlainView:
    """Prints a line per new phase; within a phase, one per ten trials or new best, at most one per second."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._phase = ""
        self._said_at = -AT_MOST_EVERY
        self._said_trials = 0
        self._said_best: float | None = None

    def __call__(self, standing: Standing) -> None:
        best = standing.best[1].of(standing.regime) if standing.best is not None else None
        news = best != self._said_best or standing.trials >= self._said_trials + EVERY_TRIALS
        due = self._clock() - self._said_at >= AT_MOST_EVERY
        if standing.phase == self._phase and not (news and due):
            return
        self._phase, self._said_at = standing.phase, self._clock()
        self._said_trials, self._said_best = standing.trials, best
        self._write(self._line(standing))

    def _line(self, standing: Standing) -> str:
        line = f"[{clock_text(standing.seconds)}] {standing.phase}"
        if not standing.trials:
            return line
        line += f": {_plural(standing.trials, 'trial')} ({outcomes_text(standing.outcomes)})"
        line += f", {standing.used:.0%} of the budget"
        if standing.restarts:
            line += f", {_plural(standing.restarts, 'restart')}"
        mode = f", mode {standing.best[0].get('mode')}" if standing.best is not None else ""
        return f"{line}; {best_text(standing)}{mode}"


class LiveView:
    """A few lines, redrawn four times per second. The loop's calls make the texts; in between only the clock runs."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock = title, clock
        self._begin = clock()
        self._seen_at = self._begin
        self._used = 0.0
        self._used_before: float | None = None
        self._left: float | None = None
        self._phase = "preparing"
        self._lines: list[tuple[str, str]] = []

    def __call__(self, standing: Standing) -> None:
        if self._used_before is None:
            self._used_before = standing.used
        self._seen_at = self._clock()
        self._used, self._phase = standing.used, standing.phase
        self._left = seconds_left(standing, self._used_before)
        self._lines = self._texts(standing)

    def render(self) -> RenderableType:
        """Called from the drawing thread."""
        now = self._clock()
        times = f"{clock_text(now - self._begin)} elapsed"
        if self._left is not None and self._used < 1:
            times += f", {clock_text(max(0.0, self._left - (now - self._seen_at)))} left"
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            Text(visible(self._phase), style="bold"), ProgressBar(total=1.0, completed=self._used, width=30),
            Text(f"{self._used:.0%}"), Text(times),
        )  # fmt: skip
        facts = Table.grid(padding=(0, 2))
        for name, text in self._lines:
            facts.add_row(Text(name, style="dim"), Text(visible(text)))
        return Group(Text(visible(self._title), overflow="ellipsis", no_wrap=True), bar, facts)

    def _texts(self, standing: Standing) -> list[tuple[str, str]]:
        lines = []
        if standing.best is not None:
            lines += [("best", best_text(standing).removeprefix("best ")), ("", config_text(standing.best[0]))]
        if standing.trials:
            resumed = f", {standing.resumed} from an earlier run" if standing.resumed else ""
            lines.append(("trials", f"{standing.trials}{resumed}: {outcomes_text(standing.outcomes)}"))
        if standing.restarts:
            lines.append(("restarts", f"{standing.restarts} of the ranks"))
        if standing.last is not None:
            config, evaluation = standing.last
            end = latency_text(evaluation.latency, standing.regime) if evaluation.latency else str(evaluation.outcome)
            lines.append(("last", f"{end}  {config_text(config)}"))
        return lines
