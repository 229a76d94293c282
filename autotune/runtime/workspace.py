"""A workspace: what one config of one problem keeps between calls, and its launches on the addresses seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from autotune.config import Config
from autotune.errors import GangError, HeapExhausted, InvalidProblem
from autotune.kernels.launching.tensors import TORCH_DTYPES, Run
from autotune.problem import Problem

if TYPE_CHECKING:
    from autotune.runtime.context import Context
    from autotune.runtime.operators.operator import Operator

Operands = Sequence[torch.Tensor | None]

MOST_BINDINGS = 1024
"""Sets of addresses that a workspace remembers; a caller with more of them pays for binding them anew."""

ALIGNMENT = 16
"""Bytes: what descriptors and vector loads ask of an operand's address."""


class Workspace:
    """One config's scratch, allocated once. All calls of it come one after another, in the same order on all ranks."""

    def __init__(self, operator: Operator, context: Context, problem: Problem, config: Config) -> None:
        """Collective. Raises HeapExhausted, on every rank alike."""
        # A graph would be bound to fixed addresses; callers who capture graphs capture the eager calls.
        self._config = config.replace(launch="eager") if "launch" in config else config
        self._operator, self._context, self.problem = operator, context, problem
        self._runs: dict[tuple[int, ...], Run] = {}
        self.bound = False
        """Whether it has been compiled, and bound to tensors, on every rank."""
        self.shard: torch.Tensor | None = None
        """Where peers read our first operand from, in the modes in which they do."""
        heap, shape = context.heap, operator.read_by_peers(problem, config)
        try:
            self._scratch = operator.launcher.share_scratch(problem, self._config, context.machine, heap)
            if shape is not None:
                self.shard = heap.allocate(shape, TORCH_DTYPES[problem.dtype])
        except HeapExhausted as error:
            raise HeapExhausted(f"{error}; or give back what other problems hold, by context.release()") from error

    def prepare(self, operands: Operands, out: torch.Tensor) -> None:
        """What can fail at a first call, without the launches. Every rank is here, unless it is ``bound`` already.

        So no rank launches, and waits for its peers, while one still compiles or has to time out.
        """
        if self.bound:
            return
        if self.shard is not None:
            first = operands[0]
            assert first is not None
            if first.data_ptr() != self.shard.data_ptr():
                self._check_copied(first, out)
            operands = (self.shard, *operands[1:])
        operands, out = _checked(operands, out)
        self._compile(operands, out)
        self._bind(operands, out)
        self.bound = True

    def run(self, operands: Operands, out: torch.Tensor) -> None:
        """Enqueue one call on the current stream. Under the interpreter raises GangError where a wait timed out."""
        shard = self.shard
        if shard is not None:
            first = operands[0]
            assert first is not None
            if first.data_ptr() != shard.data_ptr():
                self._check_copied(first, out)
                shard.copy_(first.detach())  # safe to overwrite: these modes end only when every peer has read
            operands = (shard, *operands[1:])
        addresses = tuple([0 if tensor is None else tensor.data_ptr() for tensor in (out, *operands)])
        run = self._runs.get(addresses) or self._bound(operands, out, addresses)
        run()
        if self._context.machine.is_interpreter:
            self.check()

    def check(self) -> None:
        """Raise GangError where a wait in a kernel has timed out since the workspace was made; waits for the device."""
        if self._scratch is not None and self._scratch.status.item():
            raise GangError(
                f"{self.problem.workload} ({self.problem}): a wait in the kernel timed out, and results since then are "
                "wrong. Not all ranks made this call, or one came far too late. To go on, call context.release() on "
                "every rank"
            )

    def _check_copied(self, first: torch.Tensor, out: torch.Tensor) -> None:
        """Raise InvalidProblem where a first operand outside the shard may not be, or overlaps ``out``."""
        if getattr(self.problem, "in_place", False):
            raise InvalidProblem("in_place=True: a is to be the tensor of all_gather_shard, and this is not")
        _check_apart(first, out)  # harmless here, but not with the next config

    def _bound(self, operands: Operands, out: torch.Tensor, addresses: tuple[int, ...]) -> Run:
        """The launches on these addresses. They own none of the memory: what callers free is free."""
        operands, out = _checked(operands, out)
        if self._scratch is None:
            # The library's way takes buffers of its own, from torch's allocator at each call: nothing to remember.
            return self._bind(operands, out)
        if self._context.capturing:
            return self._bind(operands, out)  # the graph keeps the addresses
        borrowed = [_borrow(self._context, tensor) for tensor in operands]
        run = self._bind(borrowed, self._context.heap.borrow(out))
        if len(self._runs) >= MOST_BINDINGS:
            self._runs.clear()
        self._runs[addresses] = run
        return run

    def _bind(self, operands: Operands, out: torch.Tensor) -> Run:
        operator, context = self._operator, self._context
        run: Run = operator.launcher.bind(
            self.problem, self._config, context.machine, operator.tensors(operands, out), self._scratch, context.heap,
            context.spin_limit,
        )  # fmt: skip
        return run

    def _compile(self, operands: Operands, out: torch.Tensor) -> None:
        operator, context = self._operator, self._context
        if context.machine.is_interpreter or self._scratch is None:
            return
        for launch in operator.launcher.plan(
            self.problem, self._config, context.machine, operator.tensors(operands, out), self._scratch,
            context.heap.bases, context.heap.rank, context.spin_limit,
        ):  # fmt: skip
            launch.compile()


def _checked(operands: Operands, out: torch.Tensor) -> tuple[Operands, torch.Tensor]:
    """The tensors as kernels and libraries take them; raises InvalidProblem where they must not lie where they do."""
    for tensor in (out, *operands):
        if tensor is not None:
            _check_alignment(tensor)
    for tensor in operands:
        if tensor is not None:
            _check_apart(tensor, out)
    return [_plain(tensor) for tensor in operands], _plain(out)


def _check_alignment(tensor: torch.Tensor) -> None:
    """Integers are read one by one, wherever they lie."""
    if tensor.is_floating_point() and tensor.data_ptr() % ALIGNMENT:
        raise InvalidProblem(
            f"an operand {list(tensor.shape)} begins at an address that is no multiple of {ALIGNMENT} bytes: clone it"
        )


def _check_apart(tensor: torch.Tensor, out: torch.Tensor) -> None:
    """Both are dense. Kernels write the result while others, on any rank, still read operands."""
    begin, here = out.data_ptr(), tensor.data_ptr()
    if here < begin + out.nbytes and begin < here + tensor.nbytes:
        raise InvalidProblem(
            f"out {list(out.shape)} shares memory with an operand {list(tensor.shape)}: give an out of its own, or none"
        )


def _plain(tensor: torch.Tensor | None) -> Any:
    """A dense tensor as kernels and libraries take it: a part of no autograd graph, and with the strides of its shape.

    A dimension of 1 may have any stride otherwise, which descriptors refuse.
    """
    if tensor is None:
        return None
    if tensor.is_contiguous():
        return tensor.detach().view(-1).view(tensor.shape)
    return _plain(tensor.t()).t()


def _borrow(context: Context, tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None:
        return None
    return context.heap.borrow(tensor) if tensor.is_contiguous() else context.heap.borrow(tensor.t()).t()
