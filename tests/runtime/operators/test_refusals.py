"""A call that one rank cannot make is an error on all of them, within seconds: none is left waiting for that rank."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from calls import HEAP, Calls, url
from ranks_of_functions import run_ranks

import autotune
from autotune.machine import INTERPRETED
from autotune.runtime import meeting
from autotune.runtime.host_overhead import PUBLIC
from autotune.workloads import workload

SECONDS = 200
"""For an error to reach all ranks, however slow the machine is: a third of what ranks wait for each other."""


@pytest.mark.parametrize(
    ("ranks", "gpu", "whole", "hosts"),
    [
        pytest.param(3, "", False, 1, id="three ranks"),
        pytest.param(3, "", False, 2, id="three ranks on two hosts"),
        pytest.param(2, "", True, 1, id="interpreter, all", marks=pytest.mark.slow),
        pytest.param(2, "each", True, 1, id="2 GPUs", marks=pytest.mark.gpu(2)),
        pytest.param(2, "each", False, 2, id="2 GPUs on two hosts", marks=pytest.mark.gpu(2)),
    ],
)
def test_a_call_that_one_rank_cannot_make_raises_its_error_on_all(
    tmp_path: Path, ranks: int, gpu: str, whole: bool, hosts: int
) -> None:
    names = sorted(PUBLIC)[:: 1 if whole else 5 * hosts - 3]
    found = run_ranks(__file__, "refusals", ranks, tmp_path, gpu=gpu, argument=(url(tmp_path), names, whole, hosts))
    assert len(found[0]) == len(names) * (len(FAULTS) * 2 if whole else len(FAULTS) // 2 + 1) + 1
    for case in found[0]:
        told, seconds = zip(*(answers[case] for answers in found), strict=True)
        error = told[-1]
        assert error.startswith(("Invalid", "RanksDisagree", "TypeError")), (case, error)
        if "first call" in case:
            assert set(told) == {error}, case
        else:
            assert all(each.startswith("GangError") and error in each for each in told[:-1]), (case, told)
        assert max(seconds) < SECONDS, (case, seconds)


WRONG = {
    "shape": lambda x: x[..., :-1],
    "type": lambda x: x.to(torch.complex64),
    "device": lambda x: x.to("meta"),
    "missing": lambda x: None,
}


class Refused:
    def __init__(self, context: autotune.Context, name: str) -> None:
        problem = workload(name).default_problem(INTERPRETED, dist.get_world_size())
        mark = context.heap.mark()
        calls = Calls(context, problem)
        self._named = calls.given(calls.copies(1))
        context.heap.release(mark)
        dist.barrier()
        self._tensors = [name for name, x in self._named.items() if isinstance(x, torch.Tensor)]
        self.call = partial(PUBLIC[name], context)
        self.last = dist.get_rank() == dist.get_world_size() - 1

    def right(self) -> None:
        self.call(**self._named)

    def leave(self) -> None:
        if self.last:
            raise TypeError("no operand")

    def faulty(self, fault: str, place: int) -> None:
        """A call in which, on the last rank, the operand of that number is wrong, or the config is, or ``out``."""
        named: dict[str, Any] = dict(self._named)
        if not self.last or fault == "leaves":
            pass
        elif fault == "config":
            named["config"] = autotune.Config({"mode": "no mode"})
        elif fault == "out":
            named["out"] = torch.empty(3, dtype=torch.int8)
        else:
            name = self._tensors[place % len(self._tensors)]
            named[name] = WRONG[fault](named[name])
        self.call(**named)


FAULTS = [*WRONG, "config", "out"]


def refusals(arguments: tuple[str, list[str], bool, int]) -> dict[str, list[Any]]:
    """Error and seconds of each faulty call: a first one, and a later one. A sample has half of the faults."""
    url, names, whole, hosts = arguments
    os.environ["GROUP_RANK"] = str(dist.get_rank() % hosts)
    faults = list(enumerate(FAULTS))
    found: dict[str, list[Any]] = {}
    meeting.REFUSAL_SECONDS = 600.0  # however slow this machine is
    with autotune.Context(HEAP, url=url) as context:
        for number, name in enumerate(names):
            refused = Refused(context, name)
            for place, fault in faults if whole else faults[number % 2 :: 2]:
                found[f"{name}, first call, {fault}"] = said(partial(refused.faulty, fault, place))
            refused.right()
        context.check()
    for number, name in enumerate(names):
        for place, fault in faults:
            if whole or place == number % len(FAULTS):
                found[f"{name}, later call, {fault}"] = said(partial(later, url, name, fault, place + 1))
                dist.barrier()
    found["leaves, later call"] = said(partial(later, url, names[0], "leaves", 0))
    return found


def later(url: str, name: str, fault: str, place: int) -> None:
    """A faulty call after a warm one; on GPUs the others have made theirs, and learn of it once its kernels end."""
    with autotune.Context(HEAP, url=url) as context:
        refused = Refused(context, name)
        refused.right()
        if fault == "leaves":
            refused.leave()
        refused.faulty(fault, place)
        if context.heap.device.type == "cuda":
            torch.cuda.synchronize()
        refused.right()


def said(call: Any) -> list[Any]:
    begun, told = time.monotonic(), "no error"
    try:
        call()
    except Exception as error:  # noqa: BLE001  whatever it is, all ranks should raise it
        told = f"{type(error).__name__}: {error}"
    return [told, time.monotonic() - begun]
