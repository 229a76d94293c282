"""How many words a thread may poll."""

from __future__ import annotations

from typing import Any

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
