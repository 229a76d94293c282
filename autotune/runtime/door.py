"""An operator's door: what its callers pay beside the bound call, which is what the tuner times (decision 12)."""

from __future__ import annotations

import functools
import threading
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.tensors import TORCH_DTYPES, Run
from autotune.machine import Machine
from autotune.problem import Problem
from autotune.runtime import experts, operators
from autotune.runtime.blocks import NOBODY, Turn
from autotune.runtime.call import FirstCall, Prepared
from autotune.runtime.context import Context
from autotune.runtime.operator import OPERATORS
from autotune.runtime.workspace import Bindings, Operands, Results, Workspace
from autotune.workloads import Workload
from autotune.workloads.interface import Operation
from autotune.workloads.launched import LaunchedOperation, LaunchedWorkload
from autotune.workloads.user_files import BUILT_IN

PUBLIC: dict[str, Callable[..., Any]] = {
    name: function for module in (operators, experts) for name, function in vars(module).items() if name in BUILT_IN
}
"""The public functions: each has the name of its workload, one of ours."""

RETURNED = "gathered", "quantised"
"""Fields of a problem that ask for a second result; they are no options of its workload."""

ARGUMENTS = {"gathered": "return_gathered", "quantised": "quantise", "row_gates": "gates"}
"""The names that callers know, where they are others than a problem's fields and the kernels' operands."""


def door(
    workload: Workload, problem: Problem, operation: Operation, heap: SymmetricHeap, machine: Machine
) -> Callable[[], object] | None:
    """A warm operator call that stops before the launch; used to time host overhead.

    It is the operator's own code on ``operation``'s tensors; nothing is looked up, allocated on ``heap`` or launched.
    None where the workload has no operator in this process.
    """
    operator = OPERATORS.get(workload.name)
    if operator is None or not isinstance(workload, LaunchedWorkload) or not isinstance(operation, LaunchedOperation):
        return None
    context, public = _Doorway(heap, machine), PUBLIC.get(workload.name)
    if public is None:
        options = tuple(getattr(problem, name) for name in workload.options)
        return functools.partial(operator.all_of, context, tuple(operation.operands.values()), options, None, None)
    return functools.partial(public, context, **_arguments(workload, problem, operation.operands))


def _arguments(
    workload: LaunchedWorkload, problem: Problem, operands: Mapping[str, torch.Tensor | None]
) -> dict[str, Any]:
    """Arguments as a caller writes them: tensors that are given, and options that are not at their defaults."""
    found: dict[str, Any] = {ARGUMENTS.get(name, name): each for name, each in operands.items() if each is not None}
    defaults = type(problem).__dataclass_fields__
    for name in (*workload.options, *RETURNED):
        value: Any = getattr(problem, name, False)
        if name in defaults and value != defaults[name].default:
            found[ARGUMENTS.get(name, name)] = TORCH_DTYPES[value] if name == "out_dtype" else value
    return found


class _Doorway(Context):
    """A context on a heap that others use: all that a warm call meets of one."""

    def __init__(self, heap: SymmetricHeap, machine: Machine) -> None:
        """Opens and allocates nothing; there is nothing to close."""
        self.heap, self.machine, self._interpreted = heap, machine, machine.is_interpreter
        self.calls: dict[Any, Prepared] = {}
        self._alarm_words = memoryview(array("q", [0]))
        self._faults = torch.zeros((), dtype=torch.int64, device="cpu")
        self._lock = threading.RLock()

    def refuse(self, error: Exception) -> None:
        """No other rank is here."""

    def workspace(
        self, workload: LaunchedWorkload, problem: Problem, config: Config | None, first: FirstCall | None = None
    ) -> Workspace:
        """A workspace without launches."""
        made = _NothingBound(problem)
        if first is not None:
            first.prepare(made)
        return made


class _NothingBound(Workspace):
    """A workspace whose calls are bound to nothing."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.bound = problem, False
        self._bindings: dict[tuple[Any, ...], Bindings] = {}
        self._turn, self._number, self._calls = Turn(), NOBODY, memoryview(array("q", [0]))

    def readable(self, operands: Operands) -> Operands:
        return operands

    def _bound(self, operands: Operands, outs: Results, bindings: Bindings, addresses: tuple[int, ...]) -> Run:
        bindings[addresses] = _nothing
        return _nothing


def _nothing() -> None: ...
