"""Words that are polled: how many fit, and their protocol as a dimension of workloads whose modes are not declared."""

from __future__ import annotations

from typing import Any

from autotune.search_spaces.dimension import Dimension, choices
from autotune.sizes import round_up
from autotune.task import Task

MOST_LL_WORDS = 64
"""LL words that one thread may hold: 128 registers."""


def polled_words_fit(s: Task[Any], protocol: str, elements: int, threads: int) -> bool:
    """True if every rank's part of as many elements fits into the registers, where parts are polled at once.

    A sentinel takes half of an LL word's registers.
    """
    data = 8 if protocol == "sentinel" else 4  # bytes, of two registers
    words = round_up(s.problem.world_size) * elements * int(s.problem.result_size) // data
    return protocol == "signal" or words <= MOST_LL_WORDS * threads


def protocol_dimension(modes: tuple[str, ...]) -> Dimension:
    """The protocol of finished rows, in the modes in which they travel."""
    help = "data, then a signal; or LL: words of data and flag, twice the bytes, one trip instead of two"
    return choices("protocol", "signal", "ll", modes=modes, help=help)
