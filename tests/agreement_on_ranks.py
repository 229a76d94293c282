"""The agreement's tests, as each rank runs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch.distributed as dist

from autotune.agreement import Agreement, Released


class TwoWords(Exception):
    """Does not survive pickling: its constructor wants two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def answers(argument: Any) -> dict[str, Any]:
    """What each call of an agreement of all ranks comes to on this one."""
    agreement = Agreement.among()
    rank = agreement.rank
    found: dict[str, Any] = {"size": agreement.world_size}
    found["gather"] = agreement.gather(lambda: rank * 10)
    found["broadcast"] = agreement.broadcast(lambda: rank + 7)
    found["same"] = agreement.same(lambda: "one word")
    found["any"] = [agreement.any(False), agreement.any(rank == 1), agreement.any(True)]
    found["differ"] = told(lambda: agreement.same(lambda: rank))
    found["gather raises"] = told(lambda: agreement.gather(partial(raise_on, 1, ValueError("a bad day"))))
    found["broadcast raises"] = told(lambda: agreement.broadcast(partial(raise_on, 0, KeyError("nothing"))))
    found["cannot travel"] = told(lambda: agreement.gather(partial(raise_on, 1, TwoWords("two", "words"))))
    found["all or none"] = agreement.all_or_none(lambda: [agreement.barrier(), rank][1])
    found["fails before a barrier"] = told(lambda: agreement.all_or_none(lambda: fail_or_wait(agreement)))
    found["says that it failed"] = told(
        lambda: agreement.or_release(lambda: rank, failed=lambda value: value == 1), Released
    )
    found["afterwards"] = agreement.gather(lambda: rank)
    one = Agreement.among(dist.new_group([rank], use_local_synchronization=True))
    found["alone in its group"] = [one.rank, one.world_size, one.gather(lambda: rank)]
    for each in (one, agreement):
        each.close()
    found["one after the other"] = one_after_the_other()
    return found


def one_after_the_other() -> list[list[int]]:
    """The ranks' places in agreements of the same listed ranks, each closed before the next; rank 0 is in more groups
    than the others, and first in none.
    """
    dist.new_group([0])
    listed = dist.new_group([1, 0], sort_ranks=False)
    found = []
    for _ in range(5):
        agreement = Agreement.among(listed, timedelta(seconds=60))
        found.append(agreement.gather(lambda: dist.get_rank()))
        agreement.close()
    return found


def late(argument: Any) -> Any:
    """The last rank does not come within the second that the others wait: to an exchange, and then to an agreement."""
    agreement, patience = Agreement.among(timeout=timedelta(seconds=1)), timedelta(seconds=1)
    if agreement.rank == agreement.world_size - 1:
        time.sleep(5)
        return None
    return [told(lambda: agreement.gather(lambda: 1)), told(lambda: Agreement.among(timeout=patience))]


def fail_or_wait(agreement: Agreement) -> None:
    """Rank 1 fails on its way to where the others wait."""
    raise_on(1, ValueError("on the way"))
    agreement.barrier()


def raise_on(rank: int, error: Exception) -> None:
    if dist.get_rank() == rank:
        raise_it(error)


def raise_it(error: Exception) -> NoReturn:
    raise error


def told(call: Callable[[], Any], kind: type[Exception] = Exception) -> Any:
    """The error's type, text and notes; else the value."""
    try:
        return call()
    except kind as error:
        return [type(error).__name__, str(error), getattr(error, "__notes__", [])]
