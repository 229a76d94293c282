"""Shared by launchers of warp-specialized GEMMs: descriptors, and what the compiler knows."""

from __future__ import annotations

from typing import Any

import torch

from autotune.dtypes import SCALES
from autotune.kernels.gemm.specialized import SpecializedTile, promotes
from autotune.kernels.launching.gemm import GemmTensors
from autotune.task import Task

OPTIONS = {"num_warps": 4, "maxnreg": 168}
"""Registers for twelve warps, of which consumers take more than the others: see ``primitives/specialized.py``."""


def specialized(task: Task[Any], mode: SpecializedTile, tensors: GemmTensors) -> dict[str, Any]:
    """Arguments that every such kernel has."""
    problem, transposed = task.problem, task.problem.b_order == "nk"
    columns = mode.block_n // 2 if problem.gated else mode.block_n
    box = (columns, mode.block_k)
    return {
        "a": described(tensors.a, (mode.rows, mode.block_k)),
        "b": described(tensors.b.t(), box) if transposed else described(tensors.b, box[::-1]),
        "result": tensors.c, "bias": tensors.bias, "BIAS": tensors.bias is not None,
        "scale_b": tensors.scale_b, "SCALES": SCALES.index(problem.scales), "group_m": mode.group_m,
        "PARTS": mode.block_m // mode.rows, "TURNS": 2 if mode.consumers == "pingpong" else 1, "ROWS": mode.rows,
        "COLUMNS": columns, "DEPTH": mode.block_k, "STAGES": mode.num_stages, "PROMOTE": promotes(problem),
        "B_TRANSPOSED": transposed,
    }  # fmt: skip


def described(tensor: torch.Tensor, box: tuple[int, int]) -> Any:
    """Gluon's descriptor of a matrix, moved by boxes through swizzled shared memory."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    kinds = {
        torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv,
        torch.float8_e5m2: gl.float8e5,
    }  # fmt: skip
    layout = gl.NVMMASharedLayout.get_default_for(list(box), kinds[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(box), layout)
