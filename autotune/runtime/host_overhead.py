"""Host overhead: what an operator's callers pay beside the bound call that the tuner times (docs/decisions.md)."""

from __future__ import annotations

import functools
import threading
from array import array
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.tensors import TORCH_DTYPES, Run
from autotune.problem import Problem
from autotune.runtime import operators
from autotune.runtime.blocks import NOBODY, Holder
from autotune.runtime.call import OPERATORS, Prepared
from autotune.runtime.context import Context
from autotune.runtime.workspace import Launches, Operands, Results, Workspace
from autotune.task import Task
from autotune.workloads import Workload
from autotune.workloads.interface import Operation
from autotune.workloads.launched import LaunchedOperation, LaunchedWorkload
from autotune.workloads.user_files import BUILT_IN

T = TypeVar("T")

PUBLIC: dict[str, Callable[..., Any]] = {name: vars(operators)[name] for name in BUILT_IN if name in vars(operators)}
"""The public functions by the name of their workload; those with a further result are named by its field, too."""

FURTHER = {"gathered": "_with_gathered", "quantised": "_quantised"}
"""The endings of functions with a further result, by the field of the problem that asks for it."""


def warm_call(
    workload: Workload, task: Task[Problem], operation: Operation, heap: SymmetricHeap
) -> Callable[[], object] | None:
    """A warm operator call that stops before the launch; used to time host overhead.

    It is the operator's own code on ``operation``'s tensors; nothing is looked up, allocated on ``heap`` or launched.
    None where the workload has no operator in this process.
    """
    problem = task.problem
    operator = OPERATORS.get(workload.name)
    if operator is None or not isinstance(workload, LaunchedWorkload) or not isinstance(operation, LaunchedOperation):
        return None
    context, public = _OnNothing(heap, task), public_of(workload, problem)
    if public is None:
        options = tuple(getattr(problem, name) for name in workload.options)
        return functools.partial(operator.all_of, context, tuple(operation.operands.values()), options, None, None)
    return functools.partial(public, context, **arguments_of(workload, problem, operation.operands))


def public_of(workload: Workload, problem: Problem) -> Callable[..., Any] | None:
    """The public function whose calls are instances of the problem; None for a user's workload."""
    endings = (ending for field, ending in FURTHER.items() if getattr(problem, field, "none") not in (False, "none"))
    return vars(operators).get(workload.name + next(endings, "")) if workload.name in PUBLIC else None


def arguments_of(
    workload: LaunchedWorkload, problem: Problem, operands: Mapping[str, torch.Tensor | None]
) -> dict[str, Any]:
    """Arguments as a caller writes them: tensors that are given, and options that are not at their defaults."""
    found: dict[str, Any] = {
        "gates" if name == "row_gates" else name: each
        for name, each in operands.items()
        if each is not None or name == "v_cache"  # None, of a latent cache, is said
    }
    defaults = type(problem).__dataclass_fields__
    for name in workload.options:
        value: Any = getattr(problem, name)
        if value == defaults[name].default:
            continue
        if name == "layout":
            found["gather_dim"] = -1
        else:
            found[name] = TORCH_DTYPES[value] if name == "out_dtype" else value
    if (scales := getattr(problem, "quantised", False)) in ("row", "block"):
        found["scales"] = scales
    return found


class _OnNothing(Context):
    """A context on a heap that others use: all that a warm call meets of one."""

    def __init__(self, heap: SymmetricHeap, task: Task[Problem]) -> None:
        """Opens and allocates nothing; there is nothing to close."""
        machine, self.invariant = task.machine, task.problem.is_invariant
        self.heap, self.machine, self._interpreted = heap, machine, machine.is_interpreter
        self.calls: dict[Any, Prepared] = {}
        self._alarm_words = memoryview(array("q", [0]))
        self._lock = threading.RLock()

    def refuse(self, error: Exception) -> None:
        """No other rank is here."""

    def workspace(
        self, workload: LaunchedWorkload, problem: Problem, config: Config | None, use: Callable[[Workspace], T]
    ) -> T:
        """``use`` of a workspace without launches."""
        return use(_NothingBound(problem))


class _NothingBound(Workspace):
    """A workspace whose calls are bound to nothing."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.bound = problem, False
        self._launches: dict[tuple[Any, ...], Launches] = {}
        self._holder, self._number, self._calls = Holder(), NOBODY, memoryview(array("q", [0]))

    def readable(self, operands: Operands) -> Operands:
        return operands

    def _bound(self, operands: Operands, outs: Results, launches: Launches, addresses: tuple[int, ...]) -> Run:
        launches[addresses] = _nothing
        return _nothing


def _nothing() -> None: ...
