"""A call's way, the same for all operators: checked once for each form of its tensors, then straight to a launch."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.problem import Problem
from autotune.runtime.context import Context, open_context
from autotune.runtime.workspace import Workspace

LIBRARY = torch.library.Library("iris_autotune", "DEF")
"""``torch.ops.iris_autotune``: what a compiled graph calls, see ``Operator``."""

REFUSED = "a gradient"
"""In a graph, in the place of a config: a call that autograd would have to go through."""

NO_BACKWARD = (
    "a tensor requires a gradient, and the operators have no backward: call them within torch.no_grad() or "
    "torch.inference_mode(), or give tensor.detach()"
)

Operands = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class Form:
    """What the checks of a tensor depend on, its address apart."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def fitting(self, given: torch.Tensor | None) -> torch.Tensor:
        """A tensor of this form: the one that is given, or a new one. Raises InvalidProblem."""
        if given is None:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        fits = given.shape == self.shape and given.dtype == self.dtype and given.device == self.device
        if not fits or not given.is_contiguous():
            raise InvalidProblem(
                f"out is {list(given.shape)} {given.dtype} on {given.device}, strides {given.stride()}; "
                f"{list(self.shape)} {self.dtype} on {self.device}, contiguous, is needed"
            )
        if given.requires_grad:
            demand_no_gradient((given,))
        return given


@dataclass(frozen=True)
class Prepared:
    """A form of call that has been checked: where it runs, and what it returns."""

    workspace: Workspace
    out: Form


class Operator(ABC):
    """One workload as a function of tensors. A subclass checks the operands and says how to launch.

    Twice in ``torch.ops.iris_autotune``, by ``name``: one that returns a new tensor, and its overload ``out``. There a
    context is its ``handle``, an absent config the empty text, and a given one its canonical JSON.
    """

    name: ClassVar[str]
    operands: ClassVar[str]
    """The tensors, as in an operator's schema; the first one's type is that of the result."""
    options: ClassVar[str]
    """What comes after them, likewise."""
    launcher: ClassVar[Any]
    """The module with ``share_scratch``, ``plan`` and ``bind``."""

    def __init__(self) -> None:
        """Registers the operator with torch."""
        arguments = ", ".join(filter(None, ["int context", self.operands, self.options, "str config"]))
        tags = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
        LIBRARY.define(f"{self.name}({arguments}) -> Tensor", tags=tags)
        LIBRARY.define(f"{self.name}.out({arguments}, *, Tensor(a!) out) -> ()", tags=tags)
        LIBRARY.impl(self.name, self._from_graph, "CompositeExplicitAutograd")
        LIBRARY.impl(f"{self.name}.out", self._from_graph_into, "CompositeExplicitAutograd")
        LIBRARY.impl(self.name, self._below_autograd, "Autograd")
        LIBRARY.impl(f"{self.name}.out", self._below_autograd_into, "Autograd")
        torch.library.register_fake(f"iris_autotune::{self.name}", self._fake, lib=LIBRARY)
        torch.library.register_fake(f"iris_autotune::{self.name}.out", _returns_nothing, lib=LIBRARY)
        packet = getattr(torch.ops.iris_autotune, self.name)
        self._op, self._op_out = packet.default, packet.out
        self._tensors = self.operands.count(",") + 1

    @abstractmethod
    def problem(self, world_size: int, operands: Operands, options: Sequence[Any]) -> Problem:
        """The problem that a call is an instance of; raises InvalidProblem where shapes, strides, types do not fit."""

    @abstractmethod
    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        """The result's shape, of operands that fit each other; dimensions may be symbolic."""

    @abstractmethod
    def tensors(self, operands: Operands, out: torch.Tensor) -> Any:
        """The operands as the launcher takes them."""

    def read_by_peers(self, problem: Any, config: Config) -> tuple[int, ...] | None:
        """Shape of the first operand where the config's kernels read the peers' where it lies, else None."""
        return None

    def __call__(
        self, context: Context, operands: Operands, options: tuple[Any, ...], out: torch.Tensor | None,
        config: Config | None,
    ) -> torch.Tensor:  # fmt: skip
        """Enqueue one call, or, under ``torch.compile``, put one into the graph."""
        way = self._into_graph if torch.compiler.is_compiling() else self._enqueue
        return way(context, operands, options, out, config)

    def _enqueue(
        self, context: Context, operands: Operands, options: tuple[Any, ...], out: torch.Tensor | None,
        config: Config | None,
    ) -> torch.Tensor:  # fmt: skip
        # The operands' forms with their strides, and no object of ours: this is every call's way.
        key = (
            self, options, config, needs_gradient(operands),
            *[x if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in operands],
        )  # fmt: skip
        prepared = context.calls.get(key)
        if prepared is None:
            prepared = context.calls[key] = self._prepare(context, operands, options, out, config)
        result = prepared.out.fitting(out)
        context.enqueue(prepared.workspace, operands, result)
        if out is not None:
            torch.autograd.graph.increment_version(out)
        return result

    def _prepare(
        self, context: Context, operands: Operands, options: tuple[Any, ...], out: torch.Tensor | None,
        config: Config | None,
    ) -> Prepared:  # fmt: skip
        heap = context.heap
        problem = self.problem(heap.world_size, operands, options)
        first = operands[0]
        assert first is not None
        form = Form(self.out_shape(heap.world_size, operands, options), first.dtype, heap.device)

        def use(workspace: Workspace) -> None:
            """What one rank's tensors alone can be wrong in."""
            for tensor in operands:
                if tensor is not None and tensor.device != heap.device:
                    raise InvalidProblem(f"an operand {list(tensor.shape)} is on {tensor.device}, not on {heap.device}")
            demand_no_gradient(operands)
            workspace.prepare(operands, form.fitting(out))

        return Prepared(context.workspace(self, problem, config, use), form)

    def _into_graph(
        self, context: Context, operands: Operands, options: tuple[Any, ...], out: torch.Tensor | None,
        config: Config | None,
    ) -> torch.Tensor:  # fmt: skip
        text = "" if config is None else config.to_json()
        if needs_gradient(operands):
            # An error while a graph is traced would be the compiler's; so the graph has one that is ours.
            text, operands = REFUSED, [x if x is None else x.detach() for x in operands]
        if out is None:
            made: torch.Tensor = self._op(context.handle, *operands, *options, text)
            return made
        self._op_out(context.handle, *operands, *options, text, out=out)
        return out

    def _below_autograd(self, *arguments: Any) -> torch.Tensor:
        demand_no_gradient(arguments[1 : 1 + self._tensors])
        with torch._C._AutoDispatchBelowAutograd():
            made: torch.Tensor = self._op(*arguments)
        return made

    def _below_autograd_into(self, *arguments: Any, out: torch.Tensor) -> None:
        demand_no_gradient((*arguments[1 : 1 + self._tensors], out))
        with torch._C._AutoDispatchBelowAutograd():
            self._op_out(*arguments, out=out)

    def _from_graph(self, handle: int, *arguments: Any) -> torch.Tensor:
        return self._called(handle, arguments, None)

    def _from_graph_into(self, handle: int, *arguments: Any, out: torch.Tensor) -> None:
        self._called(handle, arguments, out)

    def _called(self, handle: int, arguments: tuple[Any, ...], out: torch.Tensor | None) -> torch.Tensor:
        *options, text = arguments[self._tensors :]
        if text == REFUSED:
            raise InvalidProblem(NO_BACKWARD)
        return self._enqueue(open_context(handle), arguments[: self._tensors], tuple(options), out, _config(text))

    def _fake(self, handle: int, *arguments: Any) -> torch.Tensor:
        operands, options = arguments[: self._tensors], arguments[self._tensors : -1]
        shape = self.out_shape(open_context(handle).heap.world_size, operands, options)
        made: torch.Tensor = operands[0].new_empty(shape)
        return made


def needs_gradient(tensors: Operands) -> bool:
    """Whether autograd would have to go through a call."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def demand_no_gradient(tensors: Operands) -> None:
    """Raise InvalidProblem where autograd would have to go through a call."""
    if needs_gradient(tensors):
        raise InvalidProblem(NO_BACKWARD)


def _returns_nothing(*_: Any, out: torch.Tensor) -> None:
    """An operator with an ``out`` has no result to describe."""


@functools.cache
def _config(text: str) -> Config | None:
    return Config.from_json(text) if text else None


def element_type(tensors: dict[str, torch.Tensor | None], allowed: Collection[str]) -> str:
    """Our name of the element type that all tensors have; raises InvalidProblem where it is none of ``allowed``."""
    found = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    names = {TORCH_DTYPES[name]: name for name in allowed}
    types = set(found.values())
    if len(types) != 1 or not types <= set(names):
        said = ", ".join(f"{name} is {dtype}" for name, dtype in found.items())
        raise InvalidProblem(f"{said}: allowed is one of {', '.join(map(str, names))} for all")
    return names[types.pop()]
