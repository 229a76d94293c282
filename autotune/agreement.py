"""Agreement: what the ranks of a program tell each other, so that none goes on alone and none is left waiting.

The one place for it: heap, operators, decorated kernels and tuning within a program all use it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

import torch
import torch.distributed as dist

from autotune.errors import GangError, RanksDisagree

T = TypeVar("T")


class Released(GangError):
    """Another rank has failed in the midst of something, and nobody will come to where this one waits."""


class Agreement:
    """Ranks that act together. Every rank makes the same calls in the same order; one rank alone is a group too.

    What raises on one rank raises on all, so that all of them are at the same place afterwards.
    """

    left_alone = "this rank was left alone by the others: one of them died, or has not come in time"
    """The meaning of a collective that fails."""
    disagree = "the ranks do not do the same ({seen}): every rank has to make the same call"
    """The meaning of a difference; ``seen`` is what each rank says."""

    def __init__(self, group: Any = None, device_group: Any = None) -> None:
        """``group`` is a gloo group, None for one rank alone; ``device_group`` the one that the user has."""
        self.group = group
        self.device_group = device_group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.world_size = dist.get_world_size(group) if group is not None else 1

    @classmethod
    def among(cls, ranks: Any = None, timeout: timedelta | None = None) -> Self:
        """The agreement of all ranks, or of those of a process group, over a group of its own. Collective.

        ``timeout`` is how long they wait for each other, by default torch's own; after it the group is unusable.
        """
        members = dist.get_process_group_ranks(ranks) if ranks is not None else None
        with cls.collective():
            group = dist.new_group(
                members, timeout=timeout, backend="gloo", use_local_synchronization=members is not None
            )
        return cls(group, ranks)

    def close(self) -> None:
        """Leave the group. Waits for nobody; whoever of the others still waits for this rank is told so."""
        if self.group is not None and dist.is_initialized():  # else the program has destroyed all groups itself
            dist.destroy_process_group(self.group)

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Do something on every rank; what came out, by rank, on all of them."""
        if self.group is None:
            return [action()]
        mine = _attempt(action, self.rank)
        everyone: list[Any] = [None] * self.world_size
        with self.collective():
            dist.all_gather_object(everyone, mine.portable(), group=self.group)
        everyone[self.rank] = mine if mine.error is None else everyone[self.rank]
        for answer in sorted(everyone, key=lambda answer: isinstance(answer.error, Released)):
            answer.check(mine)  # the cause first, not those that it has released
        return [answer.value for answer in everyone]

    def broadcast(self, action: Callable[[], T]) -> T:
        """Do something on rank 0 alone; what came out, on all ranks."""
        if self.group is None:
            return action()
        mine = _attempt(action, 0) if self.rank == 0 else _Answer(0)
        told: list[Any] = [mine.portable()]
        with self.collective():
            dist.broadcast_object_list(told, group_src=0, group=self.group)
        told[0].check(mine)
        value: T = mine.value if self.rank == 0 else told[0].value
        return value

    def same(self, action: Callable[[], T]) -> T:
        """Do something on every rank that has to come out alike; raises RanksDisagree where it does not."""
        everyone = self.gather(action)
        self.check_same(everyone)
        return everyone[self.rank]

    def check_same(self, values: Sequence[Any]) -> None:
        """Raise RanksDisagree where the ranks' values are not all the same."""
        if any(value != values[0] for value in values):
            seen = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            raise RanksDisagree(self.disagree.format(seen=seen))

    def any(self, mine: bool) -> bool:
        """True on all ranks if any rank says so. Waits for all of them."""
        if self.group is None:
            return mine
        said = torch.tensor([mine], dtype=torch.uint8)
        with self.collective():
            dist.all_reduce(said, dist.ReduceOp.MAX, group=self.group)
        return bool(said.item())

    def barrier(self) -> None:
        """Wait for all ranks. Raises Released where another one has failed on its way here."""
        if self.any(False):
            raise Released("another rank has failed")

    def all_or_none(self, action: Callable[[], T]) -> T:
        """Do something on every rank; what came out here, and stays here. On the way there may be barriers.

        Where one fails, those that wait for it at a barrier are released, and all raise its error.
        """
        values: list[T] = []
        self.gather(lambda: values.append(self.or_release(action)))
        return values[0]

    def or_release(self, action: Callable[[], T], failed: Callable[[T], bool] = lambda value: False) -> T:
        """Do this rank's part of something with barriers in it; where it fails, release those that wait at one.

        It fails by an error, or by a value that says so. Raises Released where another rank has failed.
        """
        try:
            value = action()
        except GangError:
            raise  # released, or the others cannot be reached
        except Exception:  # whatever it is: the others wait at the next barrier
            self.any(True)
            raise
        if failed(value):
            self.any(True)
        else:
            self.barrier()
        return value

    @classmethod
    @contextmanager
    def collective(cls) -> Iterator[None]:
        """Around what needs all ranks: where it fails, raise GangError that says what it means."""
        try:
            yield
        except RuntimeError as error:
            raise GangError(f"{cls.left_alone}: {error}") from error


class _Answer(Generic[T]):
    """One rank's outcome of an action: a value or an error."""

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
