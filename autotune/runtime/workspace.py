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

MOST_BINDINGS = 1024
"""Sets of addresses that a workspace remembers; a caller with more of them pays for binding them anew."""

ALIGNMENT = 16
"""Bytes: what descriptors and vector loads ask of an operand's address."""


class Workspace:
    """One config's scratch, allocated once. All calls of it come one after another, in the same order on all ranks."""

    def __init__(self, operator: Operator, context: Context, problem: Problem, config: Config) -> None:
        """Collective. Raises HeapExhausted, on every rank alike, and leaves the heap as it was."""
        # A graph would be bound to fixed addresses; callers who capture graphs capture the eager calls.
        self._config = config.replace(launch="eager") if "launch" in config else config
        self._operator, self._context, self.problem = operator, context, problem
        self._runs: dict[tuple[int, ...], Run] = {}
        self._compiled = context.machine.is_interpreter
        self.shard: torch.Tensor | None = None
        """Where peers read our first operand from, in the modes in which they do."""
        heap, shape = context.heap, operator.read_by_peers(problem, config)
        mark = heap.mark()
        try:
            self._scratch = operator.launcher.share_scratch(problem, self._config, context.machine, heap)
            if shape is not None:
                self.shard = heap.allocate(shape, TORCH_DTYPES[problem.dtype])
        except HeapExhausted as error:
            heap.release(mark)  # on every rank alike: a smaller problem may still fit
            raise HeapExhausted(f"{error}; or give back what other problems hold, by context.release()") from error

    def run(self, operands: Sequence[torch.Tensor | None], out: torch.Tensor) -> None:
        """Enqueue one call on the current stream. Under the interpreter raises GangError where a wait gave up."""
        shard = self.shard
        if shard is not None:
            first = operands[0]
            assert first is not None
            if first.data_ptr() != shard.data_ptr():
                if getattr(self.problem, "in_place", False):
                    raise InvalidProblem("in_place=True: a is to be the tensor of all_gather_shard, and this is not")
                shard.copy_(first.detach())  # safe to overwrite: these modes end only when every peer has read
            operands = (shard, *operands[1:])
        addresses = tuple([0 if tensor is None else tensor.data_ptr() for tensor in (out, *operands)])
        run = self._runs.get(addresses) or self._bound(operands, out, addresses)
        run()
        if self._context.machine.is_interpreter:
            self.check()

    def check(self) -> None:
        """Raise GangError where a wait in a kernel has given up since the workspace was made; waits for the device."""
        if self._scratch is not None and self._scratch.status.item():
            raise GangError(
                f"{self.problem.workload} ({self.problem}): a wait in the kernel gave up, and results since then are "
                "wrong. Not all ranks made this call, or one came far too late. To go on, call context.release() on "
                "every rank"
            )

    def _bound(
        self, operands: Sequence[torch.Tensor | None], out: torch.Tensor, addresses: tuple[int, ...]
    ) -> Run:  # fmt: skip
        """The launches on these addresses. They own none of the memory: what callers free is free."""
        for tensor in (out, *operands):
            _check_alignment(tensor)
        out, *operands = [_plain(tensor) for tensor in (out, *operands)]
        if self._scratch is None:
            # The library's way takes buffers of its own, from torch's allocator at each call: nothing to remember.
            return self._bind(operands, out)
        self._compile(operands, out)
        if self._context.capturing:
            return self._bind(operands, out)  # the graph keeps the addresses
        borrowed = [_borrow(self._context, tensor) for tensor in operands]
        run = self._bind(borrowed, self._context.heap.borrow(out))
        if len(self._runs) >= MOST_BINDINGS:
            self._runs.clear()
        self._runs[addresses] = run
        return run

    def _bind(self, operands: Sequence[torch.Tensor | None], out: torch.Tensor) -> Run:
        operator, context = self._operator, self._context
        run: Run = operator.launcher.bind(
            self.problem, self._config, context.machine, operator.tensors(operands, out), self._scratch, context.heap,
            context.spin_limit,
        )  # fmt: skip
        return run

    def _compile(self, operands: Sequence[torch.Tensor | None], out: torch.Tensor) -> None:
        """Collective at the first call: no rank launches, and waits for its peers, while one still compiles."""
        if self._compiled:
            return
        operator, context = self._operator, self._context
        for launch in operator.launcher.plan(
            self.problem, self._config, context.machine, operator.tensors(operands, out), self._scratch,
            context.heap.bases, context.heap.rank, context.spin_limit,
        ):  # fmt: skip
            launch.compile()
        context.heap.barrier()
        self._compiled = True


def _check_alignment(tensor: torch.Tensor | None) -> None:
    """Integers are read one by one, wherever they lie."""
    if tensor is not None and tensor.is_floating_point() and tensor.data_ptr() % ALIGNMENT:
        raise InvalidProblem(
            f"an operand {list(tensor.shape)} begins at an address that is no multiple of {ALIGNMENT} bytes: clone it"
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
