"""Functions for a rank: the last programs of a launch, and launches that are not the first."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from autotune.kernels.primitives.counters import EPOCH_SHIFT, finish, finish_unordered, read_epoch

EPOCH = 5


@triton.jit
def count_out_kernel(epoch_counter, programs, found, ORDERED: tl.constexpr):
    """Store the epoch, and whether this program, which must be the only one left, was the last to finish."""
    tl.store(found, read_epoch(epoch_counter))
    if ORDERED:
        tl.store(found + 1, finish(epoch_counter, programs).to(tl.int64))
    else:
        finish_unordered(epoch_counter, programs, True)


def counted(argument: list[int]) -> list[list[int]]:
    """For launches of so many programs, of which all but one have finished: the epoch and if that was the last, both
    ways of finishing; then the epoch and the programs that have finished after it, of each way.
    """
    answers = []
    for programs in argument:
        answer = []
        for ordered in (True, False):
            found = torch.zeros(2, dtype=torch.int64)
            counter = torch.tensor([(EPOCH << EPOCH_SHIFT.value) + programs - 1])
            count_out_kernel[(1,)](counter, programs, found, ordered)
            after, left = divmod(int(counter), 1 << EPOCH_SHIFT.value)
            answer += [*found.tolist()[: 1 + ordered], after, left]
        answers.append(answer)
    return answers
