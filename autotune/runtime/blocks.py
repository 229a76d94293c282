"""Blocks of memory that workspaces share: those of one problem that differ in its free sizes alone, as a length.

A block serves all sizes that need more than half of it, so any number of lengths takes the memory of a few. One place
in it is in use at a time. Where another one comes, a launch among the ranks clears the memory first
(``kernels/primitives/hand_over.py``), on the stream and on the device: no host waits, and calls of one length after the
other pay nothing.

A captured graph is replayed unseen. So where a place is alone in its block when it is captured, nobody else gets into
the block any more. Where it is not, each of its calls in a graph, and from then on each call outside of one, asks the
device who held the block: a launch of one or two microseconds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from autotune.config import Config
from autotune.heap.arena import ALIGNMENT, SymmetricHeap
from autotune.kernels.launching import scratch
from autotune.kernels.launching.contract import Kept, Kernels
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.streams import capturing
from autotune.kernels.launching.tensors import meta
from autotune.kernels.primitives.hand_over import hand_over_kernel
from autotune.machine import Machine
from autotune.problem import Problem
from autotune.sizes import round_up
from autotune.task import Task

NOBODY = 0
"""In the stead of a place's number, while none has the block."""

CLEARING = {True: 1, False: 32}
"""Programs that clear memory, under the interpreter and on GPUs."""

WORDS = 4096
"""int64 that a program clears at once."""

BESIDE = 3 * ALIGNMENT
"""Bytes on the heap beside a block: its counters."""

_NUMBERS = itertools.count(1)


@dataclass
class Holder:
    """The place that has the block, as far as the host knows."""

    place: int = NOBODY


@dataclass(frozen=True)
class Need:
    """Bytes of a workspace, on the heap and in ordinary memory."""

    shared: int = 0
    own: int = 0

    @property
    def bucket(self) -> int:
        """The power of two from it on; on the heap, where memory is scarce, unless it needs none there."""
        return round_up(self.shared or self.own)

    @property
    def rounded(self) -> Need:
        """Need of the largest workspace of its bucket, whose ordinary memory grows no more than twice as fast."""
        own = round_up(self.own * self.bucket // (self.shared or self.own)) if self.own else 0
        return Need(self.bucket if self.shared else 0, own)

    def fits(self, other: Need) -> bool:
        return self.shared <= other.shared and self.own <= other.own


class Cut:
    """Cuts tensors out of memory one after the other; without memory it counts, and gives meta tensors."""

    def __init__(self, memory: torch.Tensor | None = None) -> None:
        self._memory = memory
        self.size = 0

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        begin, bytes_ = self.size, math.prod(shape) * dtype.itemsize
        self.size += -(-bytes_ // ALIGNMENT) * ALIGNMENT
        if self._memory is None:
            return meta(shape, dtype)
        return self._memory[begin : begin + bytes_].view(dtype).view(shape)


class Block:
    """Memory at the same place on every rank's heap, ordinary memory beside it, and the state of its handing over."""

    def __init__(self, heap: SymmetricHeap, size: Need) -> None:
        """Allocate all of it, zero; a barrier has to follow. Raises HeapExhausted."""
        self.size, self.heap = size, heap
        self.epoch_counter = heap.allocate((1,), torch.int64).zero_()
        self.ready, self.done = (heap.allocate((heap.world_size,), torch.int32).zero_() for _ in range(2))
        self.shared = heap.allocate((size.shared,), torch.uint8).zero_()
        self.own = scratch.zeros(heap.device, (max(size.own, ALIGNMENT),), torch.uint8)
        self.holder = torch.zeros(1, dtype=torch.int64, device=heap.device)
        self.known = Holder()
        self.places = 0
        self.closed = False
        """True if nobody else may get in."""
        self.captured = False
        """True if a graph may change the holder."""

    @property
    def is_clear(self) -> bool:
        """Wait for the device, then look."""
        return not (bool(self.shared.any()) or bool(self.own.any()))


@dataclass
class Place:
    """A workspace's memory: its tensors in a block, or in none."""

    kept: Kept[Any]
    holder: Holder = field(default_factory=Holder)
    number: int = NOBODY
    block: Block | None = None
    need: Need = Need()
    family: Hashable = None
    launch: Launch | None = None
    """Hands the block over to it."""

    def take(self) -> None:
        """Take a block that is not known to be ours: enqueue what clears the memory, unless the device knows better."""
        assert self.block is not None and self.launch is not None
        if capturing(self.block.heap.device):
            return  # ``captured`` comes next
        self.launch.run()
        if not self.block.captured:
            self.holder.place = self.number

    def captured(self) -> None:
        """A call of ours is about to be captured by the caller."""
        assert self.block is not None and self.launch is not None
        if self.block.closed or (self.block.places == 1 and self.holder.place == self.number):
            self.block.closed = True
            return
        self.block.captured = True
        self.holder.place = NOBODY
        self.launch.run()

    def leave(self) -> None:
        if self.block is not None:
            self.block.places -= 1

    @property
    def lasts(self) -> bool:
        """True if no other workspace can ever have this memory."""
        return self.block is not None and self.block.closed


class Blocks:
    """The blocks of a context. All ranks ask for the same places in the same order."""

    def __init__(self, heap: SymmetricHeap, machine: Machine, status: torch.Tensor) -> None:
        self._heap, self._machine, self._status = heap, machine, status
        self._blocks: dict[Hashable, list[Block]] = {}
        """Blocks by kernels and problem, without the sizes that vary; other sizes may well have another config."""

    def place(
        self, kernels: Kernels[Any, Any, Any, Any], task: Task[Problem], config: Config, spin_limit: int
    ) -> Place:
        """Memory for a workspace. Collective. Raises HeapExhausted, on every rank alike.

        A new block is nobody else's before ``keep``: until then the caller may give back what was allocated.
        """
        of = functools.partial(Kept.of, kernels, task, kernels.knobs.of(config))
        shared, own = Cut(), Cut()
        kept: Kept[Any] = of(shared, own)
        need = Need(shared.size, own.size)
        if need == Need():
            return Place(kept)
        alone = kept.shard is not None and getattr(task.problem, "in_place", False)  # it is the caller's between calls
        free, fields = task.problem.free, task.problem.as_dict()
        family = (kernels, tuple((name, value) for name, value in fields.items() if name not in free))
        others = [] if alone else [each for each in self._blocks.get(family, ()) if not each.closed]
        block = self._open(others, need)
        joins = block is not None
        block = block or Block(self._heap, self._size(others, need))
        kept = of(Cut(block.shared), Cut(block.own))
        place = Place(kept, block.known, next(_NUMBERS), block, need, family)
        place.launch = self._hand_over(place, spin_limit)
        if not joins:
            self._heap.barrier()
            block.closed = alone or not block.is_clear  # clearing would lose what a user's scratch begins with
            block.known.place = place.number
            block.holder.fill_(place.number)
        elif not self._machine.is_interpreter:
            place.launch.compile()
        return place

    def keep(self, place: Place) -> None:
        """From now on others may get into a place's block."""
        if place.block is not None:
            place.block.places += 1
            blocks = self._blocks.setdefault(place.family, [])
            blocks[:] = [each for each in blocks if not each.closed and each is not place.block] + [place.block]

    def _open(self, others: list[Block], need: Need) -> Block | None:
        """A block that serves it, or any that can once the heap has no room for another one."""
        fitting = [block for block in others if need.fits(block.size)]
        near = [block for block in fitting if block.size.bucket == need.bucket]
        if not near and not self._has_room(need):
            near = sorted(fitting, key=lambda block: block.size.shared)
        return near[0] if near else None

    def _size(self, others: list[Block], need: Need) -> Need:
        """A new block's: the first of a family is for one length, as in most programs, and has no room to spare."""
        return need.rounded if others and self._has_room(need.rounded) else need

    def _has_room(self, need: Need) -> bool:
        return need.shared + BESIDE <= self._heap.left

    def _hand_over(self, place: Place, spin_limit: int) -> Launch:
        block, heap = place.block, self._heap
        assert block is not None
        arguments = {
            "holder": block.holder, "place": place.number, "shared": block.shared.view(torch.int64),
            "shared_words": place.need.shared // 8, "own": block.own.view(torch.int64),
            "own_words": place.need.own // 8, "ready": block.ready, "done": block.done, "rank": heap.rank,
            "heap_bases": heap.bases, "epoch_counter": block.epoch_counter, "status": self._status,
            "spin_limit": spin_limit, "WORLD": heap.world_size, "BLOCK": WORDS,
        }  # fmt: skip
        return Launch(hand_over_kernel, CLEARING[self._machine.is_interpreter], arguments, {"num_warps": 8})
