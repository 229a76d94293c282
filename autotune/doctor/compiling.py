"""Compiles one small kernel for a target that need not be here: ``python -m autotune.doctor.compiling KIND ARCH
WARP_SIZE``.
"""

from __future__ import annotations

import dataclasses
import sys

import torch
import triton
import triton.language as tl

from autotune.kernels.launching.plan import Launch, compile_all, compile_offline_for
from autotune.machine import H100


@triton.jit
def scale(x, y, count, BLOCK: tl.constexpr):
    """2 * x: enough to run every stage of the compiler, the assembler included."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count) * 2, mask=at < count)


def main(kind: str, arch: str, warp_size: str) -> None:
    """Compile the kernel; raises CompileError with the compiler's message."""
    compile_offline_for(dataclasses.replace(H100, kind=kind, arch=arch, warp_size=int(warp_size)))
    x = torch.empty(1024, dtype=torch.float32, device="meta")
    compile_all([Launch(scale, 8, {"x": x, "y": x, "count": 1000, "BLOCK": 128})])


if __name__ == "__main__":
    main(*sys.argv[1:])
