"""One kernel of ours: rows travel to every rank or to their owner, are summed, and normed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.all_reduce_norm import device
from autotune.kernels.all_reduce_norm.library import OF_THE_NORM, NormCall, Tensors, blocks, norm_arguments
from autotune.kernels.all_reduce_norm.modes import NormTask
from autotune.kernels.all_reduce_norm.problem import SLOTS, AllReduceNorm
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.scratch import poison_inbox, wire_type
from autotune.kernels.launching.tensors import TORCH_DTYPES, Allocate
from autotune.kernels.launching.way import Way
from autotune.kernels.primitives.all_reduce import PROTOCOLS

SHOTS = {"one_shot": device.ONE_SHOT, "two_shot": device.TWO_SHOT}


@dataclass(frozen=True)
class Scratch:
    """One config's memory between launches, zero at the start, on the heap."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    arrivals: torch.Tensor
    """int32 [2, blocks]: parts of a block that have arrived, over all launches that used the slot."""
    returns: torch.Tensor
    """int32 [2, blocks], ``two_shot``: sums of a block that have arrived."""
    inbox: torch.Tensor
    """Parts of blocks, one after the other: in the element type, or as words, see ``wire_type``."""
    sums: torch.Tensor
    """Sums of blocks, ``two_shot``, 2 * blocks of them: likewise."""

    def poison(self) -> None:
        """Fill with NaN what a right launch writes before it reads it."""
        for inbox in (self.inbox, self.sums):
            poison_inbox(inbox)


class ExchangingWay(Way[AllReduceNorm, Any, Tensors, Scratch]):
    def shots(self, mode: Any) -> str:
        return str(mode.mode)

    def scratch(self, task: NormTask, mode: Any, shared: Allocate, own: Allocate) -> Scratch:
        problem, ints, shots = task.problem, torch.int32, self.shots(mode)
        wire = wire_type(mode.protocol, TORCH_DTYPES[problem.dtype])
        of_sums = blocks(problem, mode) if shots == "two_shot" else 0
        per_word = 4 // problem.element_size if mode.protocol == "ll" else 1
        in_all = problem.inbox_bytes(shots, mode.norm_rows, mode.protocol) // wire.itemsize
        in_sums = SLOTS * of_sums * mode.norm_rows * problem.n // per_word
        return Scratch(
            epoch_counter=shared((1,), torch.int64),
            arrivals=shared((SLOTS, blocks(problem, mode)), ints),
            returns=shared((SLOTS, of_sums), ints),
            inbox=shared((in_all - in_sums,), wire),
            sums=shared((in_sums,), wire),
        )

    def launches(self, call: NormCall) -> list[Launch]:
        problem, mode, scratch = call.problem, call.knobs, call.scratch
        arguments = {
            **norm_arguments(problem, mode, call.tensors), **call.common(), "inbox": scratch.inbox,
            "sums": scratch.sums, "arrivals": scratch.arrivals, "returns": scratch.returns,
            "MODE": SHOTS[self.shots(mode)].value, "PROTOCOL": PROTOCOLS[mode.protocol].value,
            "SENDERS": mode.senders,
        }  # fmt: skip
        programs = blocks(problem, mode) * (mode.senders + 1)
        return [Launch(device.all_reduce_norm_kernel, programs, arguments, {"num_warps": mode.norm_warps})]

    def roundings(self, problem: AllReduceNorm) -> float:
        """Each part, and the sum; then those of the norm."""
        return 2.0 + OF_THE_NORM
