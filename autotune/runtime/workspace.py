"""A workspace: what one config of one problem keeps between calls, and its launches on the addresses seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import HeapExhausted, InvalidProblem
from autotune.heap.arena import SymmetricHeap, extent
from autotune.kernels.launching.contract import Kernels, Setup
from autotune.kernels.launching.graphs import watched
from autotune.kernels.launching.streams import capturing
from autotune.kernels.launching.tensors import Run
from autotune.problem import Problem
from autotune.runtime.blocks import Blocks
from autotune.task import Task

Operands = Sequence[torch.Tensor | None]
Results = Sequence[torch.Tensor]

Launches = dict[tuple[int, ...], Run]
"""A workspace's bound launches by the addresses of results and operands."""

MOST_BOUND = 1024
"""Sets of addresses that are remembered; a caller with more of them pays for binding them anew."""

ALIGNMENT = 16
"""Bytes: what descriptors and vector loads ask of an operand's address."""


class Workspace:
    """One config's scratch, at one place. All calls of it come one after another, in the same order on all ranks."""

    def __init__(
        self, kernels: Kernels[Any, Any, Any, Any], task: Task[Problem], config: Config, heap: SymmetricHeap,
        blocks: Blocks, spin_limit: int, status: torch.Tensor, calls: memoryview,
    ) -> None:  # fmt: skip
        """Collective. Raises HeapExhausted, on every rank alike. All workspaces of a heap have one ``status``, and one
        word in which they count their ``calls``.
        """
        # A graph would be bound to fixed addresses; callers who capture graphs capture the eager calls.
        config = config.replace(launch="eager") if "launch" in config else config
        self._kernels, self._heap, self._calls, self.problem = kernels, heap, calls, task.problem
        self._launches: dict[tuple[Any, ...], Launches] = {}
        self.bound = False
        """True once it is compiled, and bound to tensors, on every rank."""
        try:
            with torch.inference_mode(False):  # as in ``_bound``
                self.place = blocks.place(kernels, task, config, spin_limit)
            self._holder, self._number = self.place.holder, self.place.number
            self._setup = Setup(kernels, task, config, heap, spin_limit, kept=self.place.kept, status=status)
        except HeapExhausted as error:
            raise HeapExhausted(f"{error}; or free other problems' workspaces with context.release()") from error

    def readable(self, operands: Operands) -> Operands:
        """The operands as the launches read them; copied where these cannot go by their strides, or where torch has yet
        to change their sign.
        """
        kernels, knobs = self._kernels, self._setup.knobs
        named = zip(kernels.operands, operands, strict=True)
        return [
            None if each is None else kernels.readable(self.problem, knobs, name, each.resolve_neg())
            for name, each in named
        ]

    def launches(self, operands: Operands) -> Launches:
        """Bound launches by the operands' shapes and strides: memory that was freed comes back as another tensor."""
        forms = tuple([None if tensor is None else (tensor.shape, tensor.stride()) for tensor in operands])
        return self._launches.setdefault(forms, {})

    def prepare(self, operands: Operands, outs: Results, launches: Launches) -> None:
        """The parts of a first call that can fail, without the launches. Every rank is here, unless it is ``bound``
        already.

        So no rank launches, and waits for its peers, while one still compiles or has to time out.
        """
        if not self.bound:
            addresses = tuple([0 if tensor is None else tensor.data_ptr() for tensor in (*outs, *operands)])
            self._bound(operands, outs, launches, addresses)
            self.bound = True

    def run(self, operands: Operands, outs: Results, launches: Launches) -> None:
        """Enqueue one call on the current stream; ``launches`` are those of its operands."""
        addresses = tuple([0 if tensor is None else tensor.data_ptr() for tensor in (*outs, *operands)])
        run = launches.get(addresses) or self._bound(operands, outs, launches, addresses)
        if self._holder.place != self._number:
            self.place.take()
        self._calls[0] += 1  # nothing refuses it any more; and an interpreted call waits for the others in there
        run()

    @property
    def shard(self) -> torch.Tensor | None:
        """The shard from which peers read our first operand, in the modes in which they do."""
        return self._setup.shard

    @torch.inference_mode(False)
    def _bound(self, operands: Operands, outs: Results, launches: Launches, addresses: tuple[int, ...]) -> Run:
        """The launches on these addresses. They own none of the memory: what callers free is free. Out of a caller's
        inference mode: a later call outside of it could not write tensors that are made in it.
        """
        self._check_in_place(operands[0])
        operands, outs = _checked(operands, outs, self._heap.device)
        if capturing(self._heap.device):  # the graph keeps the addresses
            return self._watched(self._setup.bind(self._kernels.bound(operands, outs)))
        borrowed = [None if tensor is None else self._heap.borrow(tensor) for tensor in operands]
        tensors = self._kernels.bound(borrowed, [self._heap.borrow(out) for out in outs])
        run = self._watched(self._setup.bind(tensors, ahead=not self.bound))
        if len(launches) >= MOST_BOUND:
            launches.clear()
        launches[addresses] = run
        return run

    def _watched(self, run: Run) -> Run:
        return run if self.place.block is None else watched(run, self._heap, self.place.captured)

    def _check_in_place(self, first: torch.Tensor | None) -> None:
        shard = self.shard
        if first is not shard and shard is not None and getattr(self.problem, "in_place", False):
            assert first is not None
            if first.data_ptr() != shard.data_ptr():
                raise InvalidProblem("in_place=True: a must be the tensor of all_gather_shard")


def _checked(operands: Operands, outs: Results, device: torch.device) -> tuple[Operands, Results]:
    """The tensors as kernels and libraries take them; raises InvalidProblem where they must not lie where they do."""
    given = [tensor for tensor in operands if tensor is not None]
    for tensor in (*outs, *given):
        _check_place(tensor, device)
    for number, out in enumerate(outs):
        for tensor in (*given, *outs[:number]):
            _check_apart(tensor, out)
    return [_plain(tensor) for tensor in operands], [_plain(out) for out in outs]


def _check_place(tensor: torch.Tensor, device: torch.device) -> None:
    """Integers are read one by one, wherever they lie on the device."""
    if tensor.device != device:
        raise InvalidProblem(f"an operand {list(tensor.shape)} is on {tensor.device}, not on {device}")
    if tensor.numel() and not tensor.data_ptr():
        raise InvalidProblem(
            f"an operand {list(tensor.shape)} is a {type(tensor).__name__}, which has no memory of its own: pass the "
            "tensor that it stands for, such as to_local() of a DTensor, or wait() of an AsyncCollectiveTensor"
        )
    if tensor.is_floating_point() and tensor.data_ptr() % ALIGNMENT:
        raise InvalidProblem(f"an operand {list(tensor.shape)} is not aligned to {ALIGNMENT} bytes; clone it")


def _check_apart(tensor: torch.Tensor, out: torch.Tensor) -> None:
    """Kernels write a result while others, on any rank, still read operands."""
    begin, here = out.data_ptr(), tensor.data_ptr()
    if here < begin + out.nbytes and begin < here + extent(tensor) * tensor.element_size():
        raise InvalidProblem(
            f"out {list(out.shape)} shares memory with another tensor of the call {list(tensor.shape)}; "
            "pass a separate out, or none"
        )


def _plain(tensor: torch.Tensor | None) -> Any:
    """A tensor as kernels and libraries take it: a part of no autograd graph, and dense with the strides of its shape.

    A dimension of 1 may have any stride otherwise, which descriptors refuse.
    """
    if tensor is None:
        return None
    if tensor.is_contiguous():
        return tensor.detach().view(-1).view(tensor.shape)
    if tensor.dim() > 1 and tensor.mT.is_contiguous():
        return _plain(tensor.mT).mT
    return tensor.detach()
