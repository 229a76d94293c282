from __future__ import annotations

import io
from collections import Counter

from rich.console import Console

from autotune.cli.watch import LiveView, Narrow, PlainView, seconds_left
from autotune.config import Config
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.tuning import Progress

CONFIG = Config({"mode": "push", "block_m": 64})


def latency(median: float) -> Latency:
    return Latency(median, median, median, 0.0, 9)


def progress(phase: str, trials: int, best: float) -> Progress:
    return Progress(
        phase, trials, used=trials / 100, seconds=float(trials), outcomes=Counter({Outcome.MEASURED: trials}),
        best=(CONFIG, latency(best)), baselines={"bsp eager": latency(550.0), "bsp graph": latency(530.0)},
        last=(CONFIG, Evaluation(Outcome.CRASHED, "why")), restarts=1,
    )  # fmt: skip


def test_plain_lines_are_not_more_than_one_a_second() -> None:
    lines: list[str] = []
    now = 0.0
    view = PlainView(lines.append, clock=lambda: now)
    for trial in range(1, 1001):
        now += 0.01
        view(progress("searching", trial, 1000.0 - trial / 2))
    assert 8 <= len(lines) <= 11


def test_a_few_slow_measurements_are_told_one_by_one() -> None:
    lines: list[str] = []
    now = 0.0
    view = PlainView(lines.append, clock=lambda: now)
    for done in range(5):
        here = progress("finals", 24, 400.0)
        here.finals = (done, 6)
        view(here)
        now += 6.0
    assert [line.split(" of 6")[0][-1] for line in lines] == ["0", "1", "2", "3", "4"]


def drawn(view: LiveView, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(view.render())
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_live_view_fits_80_columns() -> None:
    view = LiveView("all-gather-gemm  " + "m=4096 n=28672 k=8192 dtype=bf16 layout=rows b_order=kn bias=false", "here")
    here = progress("waiting for a process", 40, 400.0)
    here.outcomes = Counter(dict.fromkeys(Outcome, 3))
    view(here)
    lines = drawn(view, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "bias=false" in drawn(view, 80) and "elapsed" in drawn(view, 80)


def test_the_echo_of_an_interrupt_fits_behind_the_last_line_of_a_live_view() -> None:
    """Else the view that is erased then would leave its first line."""
    console = Console(width=80, file=io.StringIO())
    console.print(Narrow("mode=push block_m=64 " * 30))
    assert max(map(len, console.file.getvalue().splitlines())) + len("^C^C") < 80  # type: ignore[attr-defined]


def test_time_left() -> None:
    assert seconds_left(Progress(seconds_left=7.0), 0.0) == 7.0
    assert seconds_left(Progress(seconds_left=0.0, used=0.5, seconds=10.0), 0.25) == 0.0, "the budget is used up"
    assert seconds_left(Progress(used=0.5, seconds=10.0), 0.25) == 20.0
    assert seconds_left(Progress(), 0.0) is None
