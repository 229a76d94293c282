"""Bytes per second between GPUs by loads and by stores of a kernel: ``python -m autotune.doctor.link_rates``."""

from __future__ import annotations

import itertools
import json

import torch
import triton
import triton.language as tl

BYTES = 64 << 20
BLOCK = 4096
REPEATS = 5


@triton.jit
def copy_kernel(source, target, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + places, tl.load(source + places))


def rate(source: torch.Tensor, target: torch.Tensor) -> float:
    """Bytes per second of the fastest of some copies by the current GPU, after one."""
    found = []
    for _ in range(1 + REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        copy_kernel[(source.numel() // BLOCK,)](source, target, BLOCK=BLOCK)
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return float(1e3 * BYTES / min(found[1:]))


def main() -> None:
    """Print one, other, push and pull for each pair with peer access: one stores to the other's memory, or loads."""
    count = torch.cuda.device_count()
    own = [torch.zeros(BYTES // 8, dtype=torch.int64, device=f"cuda:{index}") for index in range(count)]
    there = [torch.zeros_like(each) for each in own]
    rates = []
    for one, other in itertools.permutations(range(count), 2):
        if not torch.cuda.can_device_access_peer(one, other):
            continue
        there[other][:1].copy_(own[one][:1])  # for this torch lets the source's GPU reach the other's memory
        with torch.cuda.device(one):
            push, pull = rate(own[one], there[other]), rate(there[other], own[one])
        rates.append((one, other, push, pull))
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
