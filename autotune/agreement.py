"""Agreement: the ranks of a program exchange results and errors, so that none goes on alone and none is left waiting.

The one place for it: heap, operators, decorated kernels and tuning within a program all use it.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, NoReturn, Self, TypeVar

import torch
import torch.distributed as dist

from autotune.errors import GangError, RanksDisagree
from autotune.settings import wait_seconds

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class Released(GangError):
    """Another rank has failed, and nobody will come to where this one waits."""


def is_settled(error: BaseException) -> bool:
    """True for an error that leaves no rank waiting: all of them know it, or have made the call that it is about."""
    return getattr(error, "is_settled", False)


def settled(error: E) -> E:
    """Mark an error that leaves no rank waiting."""
    vars(error)["is_settled"] = True
    return error


class Agreement:
    """Ranks that act together. Every rank makes the same calls in the same order; one rank alone is a group too.

    An error on one rank is raised on all, so that all are at the same place afterwards.
    """

    left_alone = "this rank was left alone: another one died, or did not come in time"
    """The meaning of a collective that fails."""
    disagree = "the ranks differ ({seen}); every rank has to make the same call"
    """The meaning of a difference; ``seen`` holds each rank's value."""
    interrupted = "this rank was interrupted during a collective call and has left the group"
    """The meaning of a call after that, see ``in_step``."""

    def __init__(self, group: Any = None, device_group: Any = None) -> None:
        """``group`` is a gloo group, None for one rank alone; ``device_group`` is the user's own."""
        self.group = group
        self.device_group = device_group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.world_size = dist.get_world_size(group) if group is not None else 1
        self._left = False
        self._roll = None if group is None else _Roll(_store_of(group), self.rank, self.world_size)

    @classmethod
    def among(cls, ranks: Any = None, timeout: timedelta | None = None) -> Self:
        """The agreement of all ranks, or of a process group's ranks, over a separate group. Collective.

        ``timeout`` bounds their waits for each other, by default ``wait_seconds``; after it the group is unusable.
        Raises GangError, which names the ranks that have not come.
        """
        members = dist.get_process_group_ranks(ranks)
        name = _next_name(members)
        store = dist.distributed_c10d.PrefixStore(f"{name}/", _default_store())
        roll = _Roll(store, members.index(dist.get_rank()), len(members))
        with cls._meeting(roll):
            group = _group_of(members, name, timeout or timedelta(seconds=wait_seconds()))
        return cls(group, ranks)

    @property
    def is_open(self) -> bool:
        """True while it has a group: a program may have destroyed all groups itself, and made others since."""
        return self.group is not None and dist.is_initialized() and self.group in dist.distributed_c10d._world.pg_map

    def new_store(self) -> Any:
        """The group's store by a connection of its own, which a thread may use beside this one."""
        return _store_of(self.group).clone()

    def close(self) -> None:
        """Leave the group without waiting; ranks that still wait for this one get an error."""
        open_, group, self.group, self._left = self.is_open, self.group, None, True
        self._roll = None
        if open_:
            dist.destroy_process_group(group)  # whose connections close once nobody holds it

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Around calls that all ranks make in the same order. A rank that is interrupted in their midst leaves, or its
        next call would be taken for this one: the others, and that call, get a GangError at once.
        """
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and self.world_size > 1:
                self.close()
                traceback.clear_frames(error.__traceback__)  # they may hold the group
            raise

    def gather(self, action: Callable[[], T]) -> list[T]:
        """Run ``action`` on every rank; the results by rank, on all of them."""
        if self._alone():
            return [action()]
        mine = _attempt(action, self.rank)
        everyone: list[Any] = [None] * self.world_size
        with self._meeting(self._roll):
            dist.all_gather_object(everyone, mine.portable(), group=self.group)
        everyone[self.rank] = mine if mine.error is None else everyone[self.rank]
        for answer in sorted(everyone, key=lambda answer: isinstance(answer.error, Released)):
            answer.check(mine)  # the cause first, not those that it has released
        return [answer.value for answer in everyone]

    def broadcast(self, action: Callable[[], T]) -> T:
        """Run ``action`` on rank 0 alone; its result, on all ranks."""
        if self._alone():
            return action()
        mine = _attempt(action, 0) if self.rank == 0 else _Answer(0)
        told: list[Any] = [mine.portable()]
        with self._meeting(self._roll):
            dist.broadcast_object_list(told, group_src=0, group=self.group)
        told[0].check(mine)
        value: T = mine.value if self.rank == 0 else told[0].value
        return value

    def same(self, action: Callable[[], T]) -> T:
        """Run ``action`` on every rank; raises RanksDisagree unless all results are the same."""
        everyone = self.gather(action)
        self.check_same(everyone)
        return everyone[self.rank]

    def check_same(self, values: Sequence[Any]) -> None:
        """Raise RanksDisagree unless the ranks' values are all the same."""
        if any(value != values[0] for value in values):
            seen = "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            raise settled(RanksDisagree(self.disagree.format(seen=seen)))

    def any(self, mine: bool) -> bool:
        """True on all ranks if any rank says so. Waits for all of them."""
        if self._alone():
            return mine
        said = torch.tensor([mine], dtype=torch.uint8, device="cpu")  # wherever tensors lie by default
        with self._meeting(self._roll):
            dist.all_reduce(said, dist.ReduceOp.MAX, group=self.group)
        return bool(said.item())

    def barrier(self) -> None:
        """Wait for all ranks. Raises Released if another one has failed on its way here."""
        if self.any(False):
            raise Released("another rank has failed")

    def all_or_none(self, action: Callable[[], T]) -> T:
        """Run ``action``, which may contain barriers, on every rank; this rank's own result.

        If one rank fails, those that wait at a barrier are released, and all raise its error.
        """
        values: list[T] = []
        self.gather(lambda: values.append(self.or_release(action)))
        return values[0]

    def or_release(self, action: Callable[[], T], failed: Callable[[T], bool] = lambda value: False) -> T:
        """Run this rank's part of an action with barriers; on a failure, release the ranks that wait at one.

        A failure is an error, or a value that says so. Raises Released if another rank has failed.
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

    def _alone(self) -> bool:
        """True where there is no other rank. Raises GangError where this one has left the others."""
        if self._left:
            raise GangError(self.interrupted)
        return self.group is None

    @classmethod
    @contextmanager
    def _meeting(cls, roll: _Roll | None) -> Iterator[None]:
        """Around a collective: turns its failure into a GangError that says what it means, and who has not come."""
        assert roll is not None
        begun = time.monotonic()
        try:
            roll.come()
            yield
        except RuntimeError as error:
            seconds = time.monotonic() - begun
            raise GangError(f"{cls.left_alone}. {roll.absent_after(seconds)}: {error}") from error


class _Roll:
    """The roll of a group's ranks, in its store: each counts the collectives to which it has come."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._count = 0

    def come(self) -> None:
        """Say that this rank is at the next collective."""
        self._count = self._store.add(_place(self._rank), 1)

    def absent_after(self, seconds: float) -> str:
        """Name the ranks that have not come while this rank waited."""
        try:
            absent = [rank for rank in range(self._world_size) if self._store.add(_place(rank), 0) < self._count]
        except RuntimeError:  # with rank 0, which may hold it
            return f"After {seconds:.0f} s the store of the process group is gone"
        if not absent:
            return "All ranks have come, the last one too late, or one has left since"
        return f"After {seconds:.0f} s {listed(absent)} {'have' if absent[1:] else 'has'} not come"


def raising(error: Exception) -> Callable[[], NoReturn]:
    """An action that fails by this error."""

    def fail() -> NoReturn:
        raise error

    return fail


def listed(ranks: Sequence[int]) -> str:
    return f"ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else f"rank {ranks[0]}"


def _place(rank: int) -> str:
    return f"autotune/come/{rank}"


def _store_of(group: Any) -> Any:
    return dist.distributed_c10d._get_process_group_store(group)


def _default_store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _next_name(members: list[int]) -> str:
    """A name for these ranks' next group, the same on each of them.

    ``new_group`` names one by its ranks and by how many groups this rank is in. Ranks may be in different numbers; and
    under the name of a group that has been closed the store still has the addresses of its ranks. So here the name has
    the number of the call, which the store counts for each rank.
    """
    told = "_".join(map(str, members))
    return f"autotune_{told}_{_default_store().add(f'autotune/{told}/{dist.get_rank()}', 1)}"


def _group_of(members: list[int], name: Any, timeout: timedelta) -> Any:
    """A gloo group of these ranks, in their order, which alone call this."""
    c10d = dist.distributed_c10d
    group, _ = c10d._new_process_group_helper(
        len(members), members.index(dist.get_rank()), members, dist.Backend("gloo"), _default_store(), name,
        timeout=timeout, device_id=c10d._get_default_group().bound_device_id,
    )  # fmt: skip
    c10d._world.pg_group_ranks[group] = {member: place for place, member in enumerate(members)}
    return group


class _Answer(Generic[T]):
    """One rank's outcome of an action: a value or an error."""

    def __init__(self, rank: int, value: Any = None, error: Exception | None = None) -> None:
        self.rank, self.value, self.error = rank, value, error

    def portable(self) -> _Answer[T]:
        """The answer itself if it can be pickled; otherwise its error as text."""
        if self.error is None:
            return self
        try:
            pickle.loads(pickle.dumps(self.error))
        except Exception:  # noqa: BLE001  an exception's own constructor may raise anything
            return _Answer(self.rank, error=GangError(f"rank {self.rank}: {type(self.error).__name__}: {self.error}"))
        return self

    def check(self, mine: _Answer[T]) -> None:
        """Raise the error if it is one; on its own rank with the original traceback."""
        if self.error is None:
            return
        if self.rank == mine.rank and mine.error is not None and type(mine.error) is type(self.error):
            raise settled(mine.error)
        self.error.add_note(f"raised on rank {self.rank}, and so on every rank")
        raise settled(self.error) from mine.error


def _attempt(action: Callable[[], T], rank: int) -> _Answer[T]:
    try:
        return _Answer(rank, action())
    except Exception as error:  # noqa: BLE001  raised on every rank after the exchange: none may miss it
        return _Answer(rank, error=error)
