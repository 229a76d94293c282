from __future__ import annotations

from collections import Counter

from rich.console import Console

from autotune.cli.watch import LiveView, PlainView, clock_text, seconds_left
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


def test_plain_lines_come_with_phases_new_bests_and_every_tenth_trial() -> None:
    lines: list[str] = []
    now = 0.0
    view = PlainView(lines.append, clock=lambda: now)
    view(Progress("starting the ranks"))
    for trial in range(1, 31):
        now += 0.4
        view(progress("searching", trial, 400.0 if trial < 15 else 380.0))
    view(progress("finals", 30, 380.0))
    told = [line.split(" trial")[0].rsplit(" ", 1)[-1] for line in lines[1:]]
    assert lines[0] == "[0:00] starting the ranks"
    assert told == ["1", "11", "15", "25", "30"]
    assert "1.39x bsp graph (530.0 µs), mode push" in lines[-1] and "1 restart;" in lines[-1]


def test_plain_lines_are_not_more_than_one_a_second() -> None:
    lines: list[str] = []
    now = 0.0
    view = PlainView(lines.append, clock=lambda: now)
    for trial in range(1, 1001):
        now += 0.01
        view(progress("searching", trial, 1000.0 - trial / 2))
    assert 8 <= len(lines) <= 11


def test_the_live_view_shows_what_a_person_wants_to_see() -> None:
    now = 0.0
    view = LiveView("all-gather-gemm  m=4096", clock=lambda: now)
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view.render())
    view(progress("searching", 0, 400.0))
    now = 20.0
    view(progress("searching", 40, 400.0))
    now = 25.0
    console.print(view.render())
    text = console.export_text()
    console.file.close()
    for part in (
        "all-gather-gemm  m=4096", "preparing", "searching", "40%", "0:25 elapsed, 0:55 left", "400.0 µs ± 0.0 %",
        "1.32x bsp graph (530.0 µs)", "mode=push block_m=64", "40: 40 measured", "1 of the ranks", "crashed",
    ):  # fmt: skip
        assert part in text


def test_time_left() -> None:
    assert seconds_left(Progress(seconds_left=7.0), 0.0) == 7.0
    assert seconds_left(Progress(used=0.5, seconds=10.0), 0.25) == 20.0
    assert seconds_left(Progress(), 0.0) is None


def test_clock() -> None:
    assert [clock_text(seconds) for seconds in (0.2, 42, 307, 3907)] == ["0:00", "0:42", "5:07", "1:05:07"]
