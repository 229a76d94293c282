from __future__ import annotations

import io
from collections import Counter

from rich.console import Console

from autotune.cli.watch import LiveView, Narrow, PlainView, seconds_left
from autotune.config import Config
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.tuning import Progress
from autotune.tuning.progress import Spent

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


def test_the_live_view_shows_what_a_person_wants_to_see() -> None:
    now = 0.0
    view = LiveView("all-gather-gemm  m=4096", "4 × NVIDIA H200", clock=lambda: now)
    assert "preparing" in drawn(view)
    view(progress("searching", 0, 400.0))
    now = 20.0
    here = progress("searching", 40, 400.0)
    here.trials_planned, here.resumed, here.spent = 100, 10, Spent(total=20.0, trials=30)
    view(here)
    now = 25.0
    text = drawn(view)
    for part in (
        "all-gather-gemm  m=4096", "on 4 × NVIDIA H200", "searching", "40%", "0:25 elapsed, 0:55 left",
        "400.0 µs ± 0.0 %", "1.32x bsp graph (530.0 µs), found 0:25 ago", "mode=push block_m=64",
        "40 of 100, 10 of an earlier run: 40 measured; 1.5 per second", "1 of the ranks", "crashed",
    ):  # fmt: skip
        assert part in text


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
