"""Functions that the tests of invariant contexts run on every rank."""

from __future__ import annotations

from typing import Any

import torch
from calls import HEAP

import autotune
from autotune.db import CacheKey, Store, Winner
from autotune.outcome import Latency
from autotune.runtime.host_overhead import arguments_of, public_of
from autotune.runtime.lookup import forget_lookups
from autotune.task import Task
from autotune.workloads import provenance_of, workload


class Calls:
    """Calls of a problem's public operator, on inputs that are drawn or cut from a larger batch."""

    def __init__(self, context: autotune.Context, problem: Any) -> None:
        self._context, self._problem, self.found = context, problem, workload(problem.workload)
        self.operation: Any = self.found.operation(Task(problem, context.machine), context.heap, context.spin_limit)
        self.operation.refresh(7)

    def __call__(self) -> None:
        """Make a call, whose results then are the operation's."""
        public: Any = public_of(self.found, self._problem)
        arguments = arguments_of(self.found, self._problem, self.operation.operands)  # type: ignore[arg-type]
        made = public(self._context, **arguments)
        results = made if isinstance(made, tuple) else (made,)
        for place, result in zip(self.operation.outputs(), results, strict=True):
            place.copy_(result)


def same_bits(argument: tuple[str, list[tuple[str, dict[str, Any], list[tuple[int, int]]]]]) -> dict[str, list[str]]:
    """By workload: differences between calls of these sizes, each on the rows of a larger one from a first one on; and
    whether the config is the tuned one.
    """
    url, problems = argument
    found = {}
    for name, fields, cuts in problems:
        with autotune.Context(HEAP, url=url, invariant=True) as context:
            found[name] = differences(context, workload(name).problem_type(**fields), cuts)
    return found


def differences(context: autotune.Context, problem: Any, cuts: list[tuple[int, int]]) -> list[str]:
    whole = Calls(context, problem)
    whole()
    batch, told = whole.operation.batch(), []
    for part in whole.operation.parts().values():  # the library's, whose bits may vary
        part()
    for rows, first in cuts:
        calls = Calls(context, problem.with_rows(rows))
        for number in range(2):
            calls.operation.take_rows(batch, first)
            calls()
            if unlike := calls.operation.unlike_rows(batch, first):
                told.append(f"call {number} of {rows} rows from {first} on: {unlike}")
    return [*told, *{context.choose(each).source for each in (problem, problem.with_rows(cuts[0][0]))}]


def first_answer_stays(argument: tuple[str, dict[str, Any]]) -> list[str]:
    """The sources and a knob of choices: untuned; after another config was tuned and the context released; of another
    size; and in another context.
    """
    url, fields = argument
    problem, found = autotune.GemmReduceScatter(**fields), workload("gemm_reduce_scatter")
    told = []

    def look(context: autotune.Context, rows: int) -> None:
        chosen = context.choose(problem.with_rows(rows))
        told.append(f"{chosen.source} {chosen.config['group_m']}")

    with autotune.Context(HEAP, url=url, invariant=True) as context:
        look(context, problem.m)
        other = context.choose(problem).config.replace(group_m=2)
        if torch.distributed.get_rank() == 0:
            with Store.open(url) as store:
                key = CacheKey.of(Task(problem, context.machine))
                study = store.study(key, provenance_of(found), seed=0, space_size=1)
                store.finish(study.id, Winner(other, Latency(1.0, 1.0, 1.0, 0.0, 1)))
        torch.distributed.barrier()
        forget_lookups()
        context.release()
        look(context, problem.m)
        look(context, 2)
    with autotune.Context(HEAP, url=url, invariant=True) as context:
        look(context, 2)
    return told


def refused(url: str) -> list[str]:
    """The form of a problem in an invariant context, and the pass's error for such a context."""
    problem = autotune.GemmAllReduce(m=4, n=32, k=32 * torch.distributed.get_world_size(), world_size=2)
    with autotune.Context(HEAP, url=url, invariant=True) as context:
        told = [str(context.problem(problem).is_invariant)]
        try:
            torch.compile(lambda x: x, backend=autotune.fusing(context))(torch.zeros(1))
        except Exception as error:  # noqa: BLE001  whatever the compiler makes of it
            told.append(str(error))
    return told
