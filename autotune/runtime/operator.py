"""A call's way, the same for all operators: checked once for each form of its tensors, then straight to a launch."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from autotune.config import Config
from autotune.errors import AutotuneError, InputError, InvalidConfig, InvalidProblem
from autotune.problem import Problem
from autotune.runtime.call import (
    LISTENERS,
    NO_BACKWARD,
    OPERATORS,
    Form,
    Prepared,
    aligned,
    demand_no_gradient,
    demand_no_tangent,
    demand_the_same,
    dispatched,
    fitting,
    needs_gradient,
)
from autotune.runtime.context import Context, check_context, open_context
from autotune.runtime.folding import Folding
from autotune.runtime.gradients import Forward, GemmBackward, autocast
from autotune.runtime.workspace import Operands, Results
from autotune.workloads.launched import LaunchedWorkload

LIBRARY = torch.library.Library("iris_autotune", "DEF")
"""``torch.ops.iris_autotune``: what a compiled graph calls, see ``Operator``."""

REFUSED = "a gradient"
"""Stands for a config in a graph whose call autograd would have to go through."""

ADDING_THE_SAME = "the same on every rank"
"""Stands for no config in a graph whose first call demands that all ranks add the same to a sum."""

ADDED = ("residual", "weight")
"""Operands with which one rank finishes a sum for all."""

AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)

SCHEMA_TYPES = {
    torch.Tensor: "Tensor", torch.Tensor | None: "Tensor?", int: "int", float: "float", bool: "bool", str: "str",
}  # fmt: skip


class Operator:
    """One workload as a function of tensors: what its launches take, then what its problem leaves to the caller.

    Twice in ``torch.ops.iris_autotune``, by the workload's name: one that returns a new tensor, and its overload
    ``out``. There a context is its ``handle``, an absent config the empty text, and a given one its canonical JSON.
    """

    def __init__(self, workload: LaunchedWorkload, backward: GemmBackward | None = None, *, name: str = "") -> None:
        """Registers the operator with torch, and with ``OPERATORS``, by the workload's name unless one is given.

        Raises InputError for a name that there is already: torch takes none twice.
        """
        self.workload = workload
        self._backward = backward
        name, arguments = name or workload.name, ", ".join(["int context", *_parameters(workload), "str config"])
        if name in OPERATORS:
            raise InputError(
                f"this process has an operator torch.ops.iris_autotune.{name} already: keep it in a module that is "
                "imported once; name= tells a variant apart; changed kernels need a new process"
            )
        names = workload.kernels.results
        made = ", ".join("Tensor" for _ in names)
        taken = ", ".join(f"Tensor({chr(ord('a') + number)}!) {out}" for number, out in enumerate(_outs(workload)))
        tags = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
        LIBRARY.define(f"{name}({arguments}) -> {made if len(names) == 1 else f'({made})'}", tags=tags)
        LIBRARY.define(f"{name}.out({arguments}, *, {taken}) -> ()", tags=tags)
        LIBRARY.impl(name, self._from_graph, "CompositeExplicitAutograd")
        LIBRARY.impl(f"{name}.out", self._from_graph_into, "CompositeExplicitAutograd")
        LIBRARY.impl(f"{name}.out", self._below_autograd_into, "Autograd")
        if backward is None:
            LIBRARY.impl(name, self._below_autograd, "Autograd")
        else:
            qualified = f"iris_autotune::{name}"
            torch.library.register_autograd(qualified, self._gradients, setup_context=self._save, lib=LIBRARY)
            for device in ("CPU", "CUDA"):
                LIBRARY.impl(name, functools.partial(self._autocast, device.lower()), f"Autocast{device}")
        torch.library.register_fake(f"iris_autotune::{name}", self._fake, lib=LIBRARY)
        torch.library.register_fake(f"iris_autotune::{name}.out", _returns_nothing, lib=LIBRARY)
        packet: torch._ops.OpOverloadPacket = getattr(torch.ops.iris_autotune, name)
        self.in_graphs, self._op_out = packet.default, packet.out
        self._names = tuple(workload.kernels.operands)
        self._tensors = len(self._names)
        fields = {field.name: field.default for field in dataclasses.fields(workload.problem_type)}
        self._defaults = {option: fields[option] for option in workload.options}
        OPERATORS[name] = self

    def __call__(
        self, context: Context, operands: Operands, options: tuple[Any, ...], out: torch.Tensor | None,
        config: Config | None, folding: Folding | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """``all_of`` with the first result alone."""
        return self.all_of(context, operands, options, None if out is None else (out,), config, folding)[0]

    def all_of(
        self, context: Context, operands: Operands, options: tuple[Any, ...], outs: Results | None,
        config: Config | None, folding: Folding | None = None,
    ) -> Results:  # fmt: skip
        """Enqueue one call, or, under ``torch.compile``, put one into the graph: all results, in the order of the
        kernels' ``results``. With ``folding`` the first operand, its scales and the results have its dimensions.
        """
        if folding is not None:
            places = None if outs is None else [folding.place(out) for out in outs]
            made = self.all_of(context, folding.operands(operands), options, places, config)
            return [folding.unfolded(each) for each in made] if outs is None else outs
        if torch.compiler.is_compiling():
            return self._into_graph(context, operands, options, outs, config)
        try:
            if forward_ad._current_level >= 0:
                demand_no_tangent(operands)
            if dispatched():
                return self._into_graph(context, operands, options, outs, config)
            needs = needs_gradient(operands)
            if needs and self.differentiable(operands, options, outs):
                self._agree(context, operands, options)
                return self._by_torch(context, operands, options, _text(config))
            if torch._C._is_any_autocast_enabled() and self._backward is not None and outs is None and not needs:
                return self._by_torch(context, operands, options, _text(config))
            return self._enqueue(context, operands, options, outs, config, needs)
        except Exception as error:  # whatever it is: the other ranks wait
            self.refuse(context, operands, outs, config, error)
            raise

    def refuse(
        self, context: object, operands: Operands, outs: torch.Tensor | Results | None, config: object,
        error: Exception,
    ) -> None:  # fmt: skip
        """Tell the other ranks of the error of a call, in our words where it was given what it does not take."""
        outs = (outs,) if isinstance(outs, torch.Tensor) else outs
        if torch.compiler.is_compiling():
            return  # nothing has been called
        ours = isinstance(error, AutotuneError)
        found = None if ours else self._wrong_kind(context, operands, outs, config)
        if isinstance(context, Context):
            context.refuse(found or error)
        if found is not None:
            raise found from error

    def _wrong_kind(
        self, context: object, operands: Operands, outs: Results | None, config: object
    ) -> InputError | None:
        """The error of a call that was given another kind of thing than it takes; None where it was not."""
        try:
            check_context(context)
        except InputError as error:
            return error
        if config is not None and not isinstance(config, Config):
            return InvalidConfig(f"config={config!r}: expected None, for the tuned one, or autotune.Config({{…}})")
        kinds = typing.get_type_hints(self.workload.kernels.tensors_type)
        given = [
            (name, each)
            for name, each in zip(self._names, operands, strict=True)
            if each is not None or kinds[name] is torch.Tensor
        ]
        for name, each in [*given, *(("out", out) for out in outs or ())]:
            if not isinstance(each, torch.Tensor):
                return InvalidProblem(f"{name} is a {type(each).__name__}; expected a tensor")
            if each.layout is not torch.strided or each.is_nested:
                return InvalidProblem(
                    f"{name} is a tensor of layout {each.layout}; expected a dense one: call to_dense()"
                )
        return None

    def dispatched(self, handle: int, *operands: torch.Tensor, **options: Any) -> Any:
        """A call by torch's dispatcher, as a graph makes it; operands and options that are not given have defaults.

        A tensor, or a tuple of them where the workload has several results.
        """
        missing = (None,) * (self._tensors - len(operands))
        return self.in_graphs(handle, *operands, *missing, *{**self._defaults, **options}.values(), "")

    def _enqueue(
        self, context: Context, operands: Operands, options: tuple[Any, ...], outs: Results | None,
        config: Config | None, needs: bool,
    ) -> Results:  # fmt: skip
        # The operands' forms with their strides, and none of our objects: every call comes through here. Addresses say
        # on which device an operand lies: a workspace checks that when it meets new ones. They do not say that torch
        # has put a change of sign off, as in the imaginary part of a conjugate.
        forms = [x if x is None else (x.shape, x.stride(), x.dtype, x.is_neg()) for x in operands]
        key = (self, options, config, needs, *forms)
        prepared = context.calls.get(key)
        if prepared is None:
            prepared, results = self._prepare(context, operands, options, outs, config)
            context.calls[key] = prepared
        else:
            results = fitting(prepared.results, outs)
        if prepared.workspace is None:
            for each in results:
                if each.numel():  # the offsets of a dispatch: no expert has rows
                    each.zero_()
            return results
        if prepared.copies:
            operands = prepared.workspace.readable(operands)
        for listener in LISTENERS:
            listener.called(prepared.workspace.problem)
        context.enqueue(prepared.workspace, operands, results, prepared.launches)
        if outs is not None:
            torch.autograd.graph.increment_version(outs)
        return results

    def _prepare(
        self, context: Context, operands: Operands, options: tuple[Any, ...], outs: Results | None,
        config: Config | None,
    ) -> tuple[Prepared, Results]:  # fmt: skip
        """A form of call, checked and set up, and the results that its first call has been bound to."""
        heap, workload = context.heap, self.workload
        problem, runs = self._problem(context, operands, options)
        made = workload.out_forms(heap.world_size, operands, options)
        forms = tuple(Form(shape, dtype, heap.device) for shape, dtype in made)
        prepared, results = Prepared(forms), list[torch.Tensor]()
        if runs:
            results = context.workspace(workload, problem, config, functools.partial(prepared.bind, operands, outs))
        else:

            def check() -> str:
                results.extend(prepared.check(operands, outs))
                return f"{workload.name} without rows: {problem.to_json()}"

            context.agree(workload.name, check)
        return prepared, results

    def _problem(self, context: Context, operands: Operands, options: tuple[Any, ...]) -> tuple[Problem, bool]:
        """The problem of a call, and whether it runs: not if its results have no rows. Raises InvalidProblem."""
        ranks = context.heap.world_size
        filled = self.workload.filled(ranks, operands, options)
        problem = self.workload.problem_of(ranks, operands if filled is None else filled, options)
        return context.problem(problem), filled is None

    def _into_graph(
        self, context: Context, operands: Operands, options: tuple[Any, ...], outs: Results | None,
        config: Config | None,
    ) -> Results:  # fmt: skip
        text = _text(config)
        if needs_gradient(operands) and not self.differentiable(operands, options, outs):
            # An error while a graph is traced would be the compiler's; so the graph has one that is ours.
            text, operands = REFUSED, [x if x is None else x.detach() for x in operands]
        if outs is None:
            return self._by_torch(context, operands, options, text)
        named = dict(zip(_outs(self.workload), outs, strict=True))
        self._op_out(context.handle, *operands, *options, text, **named)
        return outs

    def _by_torch(self, context: Context, operands: Operands, options: tuple[Any, ...], text: str) -> Results:
        """A call that autocast, autograd or a compiler sees."""
        made = self.in_graphs(context.handle, *operands, *options, text)
        return made if isinstance(made, tuple) else (made,)

    def differentiable(self, operands: Operands, options: tuple[Any, ...], outs: object) -> bool:
        """True if autograd goes through such a call."""
        if self._backward is None or outs is not None:
            return False
        named = dict(zip(self._names, operands, strict=True))
        pairs = zip(self._defaults.items(), options, strict=True)
        return self._backward.covers(named, [name for (name, default), value in pairs if value != default])

    def _agree(self, context: Context, operands: Operands, options: tuple[Any, ...]) -> None:
        """A backward with collectives has to be the same on every rank.

        Raises InvalidProblem before that: a rank that needs no gradient raises it and comes to no agreement.
        """
        if self._backward is not None and self._backward.collective:
            named = zip(self._names, operands, strict=True)
            needed = [(name, *x.shape) for name, x in named if x is not None and x.requires_grad]

            def check() -> None:
                self._problem(context, autocast(operands, context.heap.device.type), options)

            context.agree_once(self.workload.name, "with gradients of", *needed, check=check)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keeps the tensors that a backward takes, and no others."""
        assert self._backward is not None
        handle, *arguments = inputs
        operands, options = arguments[: self._tensors], tuple(arguments[self._tensors : -1])
        if not self.differentiable(operands, options, None):
            raise InvalidProblem(NO_BACKWARD)
        results = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*self._backward.save(operands, results, ctx.needs_input_grad[1 : 1 + self._tensors]))
        ctx.set_materialize_grads(False)
        ctx.handle, ctx.options = handle, dict(zip(self._defaults, options, strict=True))
        ctx.shapes = [None if x is None else x.shape for x in operands]
        ctx.strides = [None if x is None else x.stride() for x in operands]
        ctx.first = {"size": results[0].shape, "dtype": results[0].dtype, "device": results[0].device}

    def _gradients(self, ctx: Any, grad: torch.Tensor | None, *others: torch.Tensor | None) -> tuple[Any, ...]:
        """Gradients of all arguments from the results'. A missing first one is zeros: all ranks exchange the same."""
        assert self._backward is not None
        needs = ctx.needs_input_grad[1 : 1 + self._tensors]
        grad = torch.zeros(**ctx.first) if grad is None else grad
        if grad.numel() == 0:
            pairs = zip(ctx.shapes, needs, strict=True)
            made: Operands = [grad.new_zeros(shape) if needed else None for shape, needed in pairs]
        else:
            call = Forward(ctx.handle, ctx.options, ctx.saved_tensors, needs, ctx.strides)
            made = self._backward.all_of(call, grad, *others)
        return (None, *made, *[None] * (len(self._defaults) + 1))

    def _autocast(self, device: str, handle: int, *arguments: Any) -> Any:
        operands = autocast(arguments[: self._tensors], device)
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            return self.in_graphs(handle, *operands, *arguments[self._tensors :])

    def _below_autograd(self, *arguments: Any) -> Any:
        demand_no_gradient(arguments[1 : 1 + self._tensors])
        with torch._C._AutoDispatchBelowAutograd():
            return self.in_graphs(*arguments)

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
        context = open_context(handle)
        try:
            if text == REFUSED:
                raise InvalidProblem(NO_BACKWARD)
            operands = [aligned(x) for x in arguments[: self._tensors]]
            if text == ADDING_THE_SAME:
                text = ""
                if not context.capturing:
                    named = zip(self._names, operands, strict=True)
                    demand_the_same(context, self.workload.name, {name: x for name, x in named if name in ADDED})
            return self._enqueue(context, operands, tuple(options), outs, _config(text), needs=False)
        except Exception as error:  # whatever it is: the other ranks wait
            context.refuse(error)
            raise

    def _fake(self, handle: int, *arguments: Any) -> Any:
        operands, options = arguments[: self._tensors], arguments[self._tensors : -1]
        devices = {str(each.device) for each in operands if each is not None}
        if len(devices) > 1:  # of a call without a compiler, too, if one of them is meta
            raise InvalidProblem(f"operands are on {' and '.join(sorted(devices))}: they must be on one device")
        forms = self.workload.out_forms(open_context(handle).heap.world_size, operands, options)
        made = tuple(operands[0].new_empty(shape, dtype=dtype) for shape, dtype in forms)
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


def _text(config: Config | None) -> str:
    return "" if config is None else config.to_json()


@functools.cache
def _config(text: str) -> Config | None:
    return Config.from_json(text) if text else None
