"""The monotonic clocks of several hosts: processes of one host share one."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from autotune.agreement import Agreement
from autotune.hosts import first_on_hosts

EXCHANGES = 50
"""With each rank of another host; the quickest is off by half its time at most, some 10 µs over Ethernet."""


def clocks_of(group: dist.ProcessGroup | None) -> Callable[[], float]:
    """A function that tells by how many seconds this rank's clock is ahead of rank 0's.

    Both are collective over a gloo group. Clocks drift by some 10 µs in a second, so ask before each use.
    """
    firsts = first_on_hosts(Agreement(group)) if group is not None else [0]
    apart = [rank for rank, first in enumerate(firsts) if first != 0]

    def ahead_of_first() -> float:
        ahead = 0.0
        for other in apart:
            if dist.get_rank(group) == 0:
                _answer(other, group)
            elif dist.get_rank(group) == other:
                ahead = _ahead(group)
        return ahead

    return ahead_of_first


def _answer(other: int, group: dist.ProcessGroup | None) -> None:
    word = torch.zeros(1, dtype=torch.float64, device="cpu")
    for _ in range(EXCHANGES):
        dist.recv(word, group=group, group_src=other)
        word[0] = time.monotonic()
        dist.send(word, group=group, group_dst=other)


def _ahead(group: dist.ProcessGroup | None) -> float:
    """Seconds by which this clock is ahead of rank 0's, which answers meanwhile."""
    word = torch.zeros(1, dtype=torch.float64, device="cpu")
    quickest, ahead = float("inf"), 0.0
    for _ in range(EXCHANGES):
        begin = time.monotonic()
        dist.send(word, group=group, group_dst=0)
        dist.recv(word, group=group, group_src=0)
        end = time.monotonic()
        if end - begin < quickest:
            quickest, ahead = end - begin, (begin + end) / 2 - word.item()
    return ahead
