"""Functions that the tests of refused calls run on every rank: the last one's call is wrong, the others' are right."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from calls import HEAP

import autotune
from autotune.machine import INTERPRETED
from autotune.runtime import meeting
from autotune.runtime.host_overhead import PUBLIC, arguments_of
from autotune.task import Task
from autotune.workloads import workload

WRONG = {
    "shape": lambda x: x[..., :-1],
    "type": lambda x: x.to(torch.complex64),
    "device": lambda x: x.to("meta"),
    "missing": lambda x: None,
}


class Refused:
    """Calls of an operator on this rank's operands."""

    def __init__(self, context: autotune.Context, name: str) -> None:
        plugin: Any = workload(name)
        problem = plugin.default_problem(INTERPRETED, dist.get_world_size())
        mark = context.heap.mark()
        operation = plugin.operation(Task(problem, context.machine), context.heap, 1)
        operation.refresh(1)
        dist.barrier()  # some rank may draw what another one's operands are
        operands = {name: None if x is None else x.clone() for name, x in operation.operands.items()}
        context.heap.release(mark)
        dist.barrier()
        self._named = arguments_of(plugin, problem, operands)
        self._tensors = [name for name, x in self._named.items() if isinstance(x, torch.Tensor)]
        self.call = partial(PUBLIC[name], context)
        self.last = dist.get_rank() == dist.get_world_size() - 1

    def right(self) -> None:
        self.call(**self._named)

    def leave(self) -> None:
        """The last rank leaves the context, by an error of its program."""
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
"""What may be wrong with a call; beside that, a rank may not make it, but leave the context by an error."""


def refusals(arguments: tuple[str, list[str], bool, int]) -> dict[str, list[Any]]:
    """The error and the seconds of each faulty call: at first calls, after which the context is right, and, in another
    context each, after a warm one. A sample has half of the faults of each operator, of the next one the others.
    """
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
    """The error of a call, and its seconds."""
    begun, told = time.monotonic(), "no error"
    try:
        call()
    except Exception as error:  # noqa: BLE001  whatever it is, all ranks should raise it
        told = f"{type(error).__name__}: {error}"
    return [told, time.monotonic() - begun]
