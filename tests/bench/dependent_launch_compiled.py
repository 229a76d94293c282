"""Run as a program: compiles the probe's kernels for Hopper; prints how often each controls dependent launches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.kernels.launching.plan import Launch, compile_offline_for
from autotune.machine import H100

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import dependent_launch as bench

M, N, K = 16, 512, 1024


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def controls(kernel: Any, arguments: dict[str, Any], options: dict[str, int]) -> int:
    ptx: str = Launch(kernel, 1, arguments, options).compile().asm["ptx"]
    return ptx.count("griddepcontrol")


def main() -> None:
    compile_offline_for(H100)
    blocks = {"BLOCK_M": bench.BLOCK_M, "BLOCK_N": bench.BLOCK_N, "BLOCK_K": bench.BLOCK_K}
    operands = {
        "a": TensorDescriptor.from_tensor(meta(M, K), [bench.BLOCK_M, bench.BLOCK_K]),
        "b": TensorDescriptor.from_tensor(meta(N, K), [bench.BLOCK_N, bench.BLOCK_K]),
        "c": meta(M, N), "M": M, "N": N, "K": K, **blocks,
    }  # fmt: skip
    rows = {name: meta(M, N) for name in ("x", "residual", "normed", "total")}
    norm = {**rows, "weight": meta(N), "M": M, "N": N, "eps": 1e-6, "BLOCK_N": N}
    gemms = [
        controls(bench.gemm_kernel, {**operands, "TRIGGER": trigger}, {"num_warps": 4, "num_stages": bench.STAGES})
        for trigger in (bench.ALONE, *range(len(bench.TRIGGERS)))
    ]
    norms = [
        controls(bench.norm_kernel, {**norm, "WAIT": wait}, {"num_warps": 8, "launch_pdl": wait != bench.ALONE})
        for wait in (bench.ALONE, *range(len(bench.WAITS)))
    ]
    print(json.dumps({"gemm": gemms, "norm": norms}))


if __name__ == "__main__":
    main()
