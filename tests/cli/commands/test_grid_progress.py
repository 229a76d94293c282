from __future__ import annotations

import io

from rich.console import Console

from autotune.cli.commands.grid_progress import GridProgress

HEADER = ("sizes", "winner", "speedup", "limit", "mode", "with the config before")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_that_of_the_sizes_that_the_cache_lacks() -> None:
    clock = Clock()
    progress = GridProgress(HEADER, [True, False, True, True], 60.0, clock)
    progress.next_size()
    clock.now = 10.0
    assert progress.line() == "size 1 of 4, 0:10 elapsed, about 2:50 left"
    clock.now = 40.0
    progress.done(["m=1", "4.00 µs", "", "", "push", ""])
    progress.next_size()
    assert progress.seconds_left() == 80.0, "two more, as long as the first; none for the one in the cache"
    progress.done(["m=2", "5.00 µs", "", "", "push", ""])
    progress.next_size()
    clock.now = 100.0
    assert progress.line() == "size 3 of 4, 1:40 elapsed, about 0:40 left"


def test_rows_fit_the_terminal() -> None:
    progress = GridProgress(HEADER, [True, True], 60.0, Clock())
    progress.next_size()
    progress.done(["m=16 n=8192", "123.4 µs", "1.42x bsp graph", "0.92", "custom_collective", "1.03 times as long"])
    progress.next_size()
    console = Console(file=io.StringIO(), width=80)
    console.print(progress.render())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80 and lines[-1].startswith("size 2 of 2")
    assert "custom_collective" in "\n".join(lines)
