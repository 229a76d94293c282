from __future__ import annotations

from autotune.cli.commands.grid_progress import GridProgress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_that_of_the_sizes_that_the_cache_lacks() -> None:
    clock = Clock()
    progress = GridProgress((), [True, False, True, True], 60.0, clock)
    progress.next_size()
    clock.now = 10.0
    assert progress.seconds_left() == 170.0
    clock.now = 40.0
    progress.done([])
    progress.next_size()
    assert progress.seconds_left() == 80.0, "two more, as long as the first; none for the one in the cache"
    progress.done([])
    progress.next_size()
    clock.now = 60.0
    assert progress.seconds_left() == 60.0
