"""A call's way, the same for all operators: checked once for each form of its tensors, then straight to a launch."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.runtime.call import NO_BACKWARD, Form, Prepared, demand_no_gradient, fitting, needs_gradient
from autotune.runtime.context import Context, open_context
from autotune.runtime.listeners import LISTENERS, tell
from autotune.runtime.workspace import Operands, Results, Workspace
from autotune.workloads.launched import LaunchedWorkload

LIBRARY = torch.library.Library("iris_autotune", "DEF")
"""``torch.ops.iris_autotune``: what a compiled graph calls, see ``Operator``."""

REFUSED = "a gradient"
"""In a graph, in the place of a config: a call that autograd would have to go through."""

SCHEMA_TYPES = {
    torch.Tensor: "Tensor", torch.Tensor | None: "Tensor?", int: "int", float: "float", bool: "bool", str: "str",
}  # fmt: skip


class Operator:
    """One workload as a function of tensors: what its launches take, then what its problem leaves to the caller.

    Twice in ``torch.ops.iris_autotune``, by the workload's name: one that returns a new tensor, and its overload
    ``out``. There a context is its ``handle``, an absent config the empty text, and a given one its canonical JSON.
    """

    def __init__(self, workload: LaunchedWorkload) -> None:
        """Registers the operator with torch."""
        self.workload = workload
        name, arguments = workload.name, ", ".join(["int context", *_parameters(workload), "str config"])
        names = workload.kernels.results
        made = ", ".join("Tensor" for _ in names)
        taken = ", ".join(f"Tensor({chr(ord('a') + number)}!) {out}" for number, out in enumerate(_outs(workload)))
        tags = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
        LIBRARY.define(f"{name}({arguments}) -> {made if len(names) == 1 else f'({made})'}", tags=tags)
        LIBRARY.define(f"{name}.out({arguments}, *, {taken}) -> ()", tags=tags)
        LIBRARY.impl(name, self._from_graph, "CompositeExplicitAutograd")
        LIBRARY.impl(f"{name}.out", self._from_graph_into, "CompositeExplicitAutograd")
        LIBRARY.impl(name, self._below_autograd, "Autograd")
        LIBRARY.impl(f"{name}.out", self._below_autograd_into, "Autograd")
        torch.library.register_fake(f"iris_autotune::{name}", self._fake, lib=LIBRARY)
        torch.library.register_fake(f"iris_autotune::{name}.out", _returns_nothing, lib=LIBRARY)
        packet = getattr(torch.ops.iris_autotune, name)
        self._op, self._op_out = packet.default, packet.out
        self._tensors = len(workload.kernels.operands)

    def __call__(
        self, context: Context, operands: Operands, options: tuple[Any, ...], out: torch.Tensor | None,
        config: Config | None,
    ) -> torch.Tensor:  # fmt: skip
        """Enqueue one call with one result, or, under ``torch.compile``, put one into the graph."""
        (result,) = self.all_of(context, operands, options, None if out is None else (out,), config)
        return result

    def all_of(
        self, context: Context, operands: Operands, options: tuple[Any, ...], outs: Results | None,
        config: Config | None,
    ) -> Results:  # fmt: skip
        """The same with all results, in the order of the kernels' ``results``."""
        way = self._into_graph if torch.compiler.is_compiling() else self._enqueue
        return way(context, operands, options, outs, config)

    def _enqueue(
        self, context: Context, operands: Operands, options: tuple[Any, ...], outs: Results | None,
        config: Config | None,
    ) -> Results:  # fmt: skip
        # The operands' forms with their strides, and none of our objects: every call comes through here.
        key = (
            self, options, config, needs_gradient(operands),
            *[x if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in operands],
        )  # fmt: skip
        prepared = context.calls.get(key)
        if prepared is None:
            prepared, results = self._prepare(context, operands, options, outs, config)
            context.calls[key] = prepared
        else:
            results = fitting(prepared.outs, outs)
        if prepared.workspace is None:
            return results
        if prepared.copies:
            operands = prepared.workspace.readable(operands)
        if LISTENERS:
            tell(prepared.workspace.problem)
        context.enqueue(prepared.workspace, operands, results)
        for out in outs or ():
            torch.autograd.graph.increment_version(out)
        return results

    def _prepare(
        self, context: Context, operands: Operands, options: tuple[Any, ...], outs: Results | None,
        config: Config | None,
    ) -> tuple[Prepared, Results]:  # fmt: skip
        """A form of call, checked and set up, and the results that its first call has been bound to."""
        heap, workload = context.heap, self.workload
        filled = workload.filled(heap.world_size, operands)
        problem = workload.problem_of(heap.world_size, operands if filled is None else filled, options)
        shapes = workload.out_shapes(heap.world_size, operands, options)
        dtype = workload.out_dtype(operands, options)
        forms = tuple(Form(shape, dtype, heap.device) for shape in shapes)
        results: list[torch.Tensor] = []
        copies: list[bool] = []

        def empty() -> str:
            demand_no_gradient(operands)
            results[:] = fitting(forms, outs)
            return f"{workload.name} without rows: {problem.to_json()}"

        if filled is not None:
            context.agree(workload.name, empty)
            return Prepared(None, forms, copies=False), results

        def use(workspace: Workspace) -> None:
            """Checks of one rank's tensors alone."""
            for tensor in operands:
                if tensor is not None and tensor.device != heap.device:
                    raise InvalidProblem(f"an operand {list(tensor.shape)} is on {tensor.device}, not on {heap.device}")
            demand_no_gradient(operands)
            results[:] = fitting(forms, outs)
            readable = workspace.readable(operands)
            copies[:] = [any(mine is not given for mine, given in zip(readable, operands, strict=True))]
            workspace.prepare(readable, results)

        workspace = context.workspace(workload, problem, config, use)
        return Prepared(workspace, forms, copies[0]), results

    def _into_graph(
        self, context: Context, operands: Operands, options: tuple[Any, ...], outs: Results | None,
        config: Config | None,
    ) -> Results:  # fmt: skip
        text = "" if config is None else config.to_json()
        if needs_gradient(operands):
            # An error while a graph is traced would be the compiler's; so the graph has one that is ours.
            text, operands = REFUSED, [x if x is None else x.detach() for x in operands]
        if outs is None:
            made = self._op(context.handle, *operands, *options, text)
            return made if isinstance(made, tuple) else (made,)
        named = dict(zip(_outs(self.workload), outs, strict=True))
        self._op_out(context.handle, *operands, *options, text, **named)
        return outs

    def _below_autograd(self, *arguments: Any) -> Any:
        demand_no_gradient(arguments[1 : 1 + self._tensors])
        with torch._C._AutoDispatchBelowAutograd():
            return self._op(*arguments)

    def _below_autograd_into(self, *arguments: Any, **outs: torch.Tensor) -> None:
        demand_no_gradient((*arguments[1 : 1 + self._tensors], *outs.values()))
        with torch._C._AutoDispatchBelowAutograd():
            self._op_out(*arguments, **outs)

    def _from_graph(self, handle: int, *arguments: Any) -> Any:
        results = self._called(handle, arguments, None)
        return results[0] if len(results) == 1 else tuple(results)

    def _from_graph_into(self, handle: int, *arguments: Any, **outs: torch.Tensor) -> None:
        self._called(handle, arguments, [outs[name] for name in _outs(self.workload)])

    def _called(self, handle: int, arguments: tuple[Any, ...], outs: Results | None) -> Results:
        *options, text = arguments[self._tensors :]
        if text == REFUSED:
            raise InvalidProblem(NO_BACKWARD)
        return self._enqueue(open_context(handle), arguments[: self._tensors], tuple(options), outs, _config(text))

    def _fake(self, handle: int, *arguments: Any) -> Any:
        operands, options = arguments[: self._tensors], arguments[self._tensors : -1]
        shapes = self.workload.out_shapes(open_context(handle).heap.world_size, operands, options)
        dtype = self.workload.out_dtype(operands, options)
        made = tuple(operands[0].new_empty(shape, dtype=dtype) for shape in shapes)
        return made[0] if len(made) == 1 else made


def _outs(workload: LaunchedWorkload) -> list[str]:
    """The names of the results in torch's overload: ``out`` where there is one."""
    names = workload.kernels.results
    return ["out"] if len(names) == 1 else [f"out_{name}" for name in names]


def _parameters(workload: LaunchedWorkload) -> Iterator[str]:
    """An operator's parameters as in a torch schema, by the types of its tensors and of its problem's fields."""
    tensors, fields = (typing.get_type_hints(kind) for kind in (workload.kernels.tensors_type, workload.problem_type))
    for name in workload.kernels.operands:
        yield f"{SCHEMA_TYPES[tensors[name]]} {name}"
    for name in workload.options:
        yield f"{SCHEMA_TYPES[fields[name]]} {name}"


def _returns_nothing(*_: Any, **outs: torch.Tensor) -> None:
    """An operator with an ``out`` has no result to describe."""


@functools.cache
def _config(text: str) -> Config | None:
    return Config.from_json(text) if text else None
