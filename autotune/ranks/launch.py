"""Ranks that torchrun started: ``torchrun … -m autotune.cli all-gather-gemm …``, on one host or on several."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """This process as one of the launcher's ranks."""

    rank: int
    world_size: int
    local_rank: int
    """Its number on this host: that of its GPU."""
    local_world_size: int
    """Ranks on this host."""


@functools.cache
def launch() -> Launch | None:
    """The rank that torchrun's variables say this is; None where it has started no other. Takes them out of the
    environment: processes that this one starts are no ranks of the launcher.
    """
    words = [os.environ.pop(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    if not all(word.isdecimal() for word in words) or int(words[1]) < 2:
        return None
    return Launch(*map(int, words))
