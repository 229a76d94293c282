"""Votes: what ranks tell each other on the way to one config, so that none goes on alone and none is left waiting."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

import torch.distributed as dist

from autotune.db import CacheKey
from autotune.decorator.key import Call
from autotune.errors import GangError, RanksDisagree
from autotune.runtime.lookup import Found

T = TypeVar("T")

Ranks = Literal["all", "each"] | Callable[[], Any]
"""Who chooses a config together: all ranks of the default group, each for itself, or those of a group (made late)."""

PATIENCE = timedelta(minutes=10)
"""How long ranks wait for one that has not come to launch the kernel."""


class Votes:
    """The ranks that choose together. Every rank makes the same calls in the same order; one rank alone is a group too.

    What raises on one rank raises on all, so that all of them are at the same place afterwards.
    """

    def __init__(self, group: Any = None, device_group: Any = None) -> None:
        """``group`` is a gloo group, None for one rank alone; ``device_group`` the one that the user has."""
        self._group = group
        self.device_group = device_group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.world_size = dist.get_world_size(group) if group is not None else 1

    def each(self, action: Callable[[], T]) -> list[T]:
        """Do something on every rank; what came out, by rank, on all of them."""
        if self._group is None:
            return [action()]
        mine = _attempt(action, self.rank)
        everyone: list[Any] = [None] * self.world_size
        with _left_alone():
            dist.all_gather_object(everyone, mine.portable(), group=self._group)
        everyone[self.rank] = mine if mine.error is None else everyone[self.rank]
        for answer in everyone:
            answer.check(mine)
        return [answer.value for answer in everyone]

    def same(self, action: Callable[[], T]) -> T:
        """Do something on every rank that has to come out alike; raises RanksDisagree where it does not."""
        everyone = self.each(action)
        _demand_same(everyone)
        return everyone[self.rank]

    def leader(self, action: Callable[[], T]) -> T:
        """Do something on rank 0 alone; what came out, on all ranks."""
        if self._group is None:
            return action()
        mine = _attempt(action, 0) if self.rank == 0 else _Answer(0)
        told: list[Any] = [mine.portable()]
        with _left_alone():
            dist.broadcast_object_list(told, group_src=0, group=self._group)
        told[0].check(mine)
        value: T = mine.value if self.rank == 0 else told[0].value
        return value


@contextmanager
def _left_alone() -> Iterator[None]:
    """Say what it means that a collective fails."""
    try:
        yield
    except RuntimeError as error:
        raise GangError(
            "this rank was left alone while the ranks chose a config: another one died, or did not launch the kernel "
            f'(ranks="each" lets every rank choose for itself): {error}'
        ) from error


class _Answer(Generic[T]):
    """What one rank's action came to."""

    def __init__(self, rank: int, value: Any = None, error: Exception | None = None) -> None:
        self.rank, self.value, self.error = rank, value, error

    def portable(self) -> _Answer[T]:
        """Itself where it survives the way to another process; an error that does not is told in words."""
        if self.error is None:
            return self
        try:
            pickle.loads(pickle.dumps(self.error))
        except Exception:  # noqa: BLE001  an exception's own constructor may raise anything
            return _Answer(self.rank, error=GangError(f"rank {self.rank}: {type(self.error).__name__}: {self.error}"))
        return self

    def check(self, mine: _Answer[T]) -> None:
        """Raise the error, where it is one: on the rank that had it with its own traceback, if it is the same."""
        if self.error is None:
            return
        if self.rank == mine.rank and mine.error is not None and type(mine.error) is type(self.error):
            raise mine.error
        self.error.add_note(f"raised on rank {self.rank}, and so on every rank")
        raise self.error from mine.error


def _attempt(action: Callable[[], T], rank: int) -> _Answer[T]:
    try:
        return _Answer(rank, action())
    except Exception as error:  # noqa: BLE001  raised on every rank after the exchange: none may miss it
        return _Answer(rank, error=error)


ALONE = Votes()


def votes_of(ranks: Ranks) -> Votes:
    """The ranks that choose a kernel's config together, as of now. Collective the first time that a group comes."""
    if ranks == "each" or not dist.is_available() or not dist.is_initialized():
        return ALONE
    group = ranks() if callable(ranks) else dist.group.WORLD
    if dist.get_world_size(group) == 1:
        return ALONE
    if group not in _VOTES:
        members = dist.get_process_group_ranks(group)
        with _left_alone():
            gloo = dist.new_group(members, backend="gloo", timeout=PATIENCE, use_local_synchronization=True)
        _VOTES[group] = Votes(gloo, group)
    return _VOTES[group]


_VOTES: dict[Any, Votes] = {}


@dataclass(frozen=True)
class Asked:
    """What one rank asks for, and what its database offers."""

    identity: str
    """Kernel, key arguments, sources, candidates, and what to do on a miss: the same on all ranks."""
    call: Call
    key: CacheKey
    offer: Found | None
    reason: str
    offline: bool


@dataclass(frozen=True)
class Question:
    """What all ranks ask for together."""

    votes: Votes
    call: Call
    key: CacheKey
    offers: list[Found]
    """By rank, of those that have one: a rank whose database is empty takes another one's."""
    reason: str
    offline: bool
    """Where one rank must not tune, none can."""


def agreed(votes: Votes, asked: Sequence[Asked]) -> Question:
    """The question that they all ask; raises RanksDisagree, on every rank, where they do not."""
    _demand_same([each.identity for each in asked])
    first, offers = asked[0], [each.offer for each in asked if each.offer is not None]
    return Question(votes, first.call, first.key, offers, first.reason, any(each.offline for each in asked))


def _demand_same(values: Sequence[Any]) -> None:
    if any(value != values[0] for value in values):
        seen = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
        raise RanksDisagree(
            f'the ranks launch different kernels, keys or configs ({seen}); where that is meant, give ranks="each"'
        )
