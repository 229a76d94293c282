"""Shared by launchers of warp-specialized GEMMs: descriptors, and what the compiler knows."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl

from autotune.dtypes import DTYPES, SCALES
from autotune.kernels.gemm.problem import GemmProblem
from autotune.kernels.gemm.specialized import SpecializedTile, promotes
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.gemm import GemmTensors, SummedTensors
from autotune.kernels.launching.plan import Launch
from autotune.kernels.primitives.all_reduce import SCATTER
from autotune.task import Task

OPTIONS = {"num_warps": 4, "maxnreg": 168}
"""Registers for twelve warps, of which consumers take more than the others: see ``primitives/specialized.py``."""


SENDING_WARPS = 2
"""Of each program; a single one spills."""


def specialized(task: Task[GemmProblem], mode: SpecializedTile, tensors: GemmTensors) -> dict[str, Any]:
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


def sending_gemm(call: Call[Any, Any, SummedTensors, Any], exchange: tl.constexpr) -> Launch:
    """The GEMM whose tiles are sent to those who sum them, of whose rows an owner has ``problem.rows``; ``exchange``:
    ONE_SHOT, TWO_SHOT or SCATTER. ``scratch`` has an ``inbox`` and ``arrivals``.
    """
    from autotune.kernels.gemm.specialized_kernel import multiply_and_send_kernel  # Gluon, which few need

    problem, mode, tensors, scratch = call.problem, call.knobs, call.tensors, call.scratch
    owners = problem.m // problem.rows
    programs = min(owners * mode.tiles(problem.rows, problem.n), call.machine.compute_units)
    arguments = call.common() | specialized(call.task, mode, tensors) | {
        "c": tensors.c, "scale_a": tensors.scale_a, "residual": tensors.residual, "inbox": scratch.inbox,
        "arrivals": scratch.arrivals, "M": problem.m, "N": problem.n, "K": problem.k_local, "owned": problem.rows,
        "TYPE": getattr(tl, DTYPES[problem.result_dtype].triton), "MODE": exchange.value,
        "STORED": mode.stored(call.task), "SENDING": SENDING_WARPS,
        "ALIGNED": aligned(problem.n, tensors.c, tensors.residual), "trace": mode.trace_of(programs, tensors.c),
    }  # fmt: skip
    its = {name: value for name, value in arguments.items() if name in multiply_and_send_kernel.arg_names}
    return Launch(
        multiply_and_send_kernel, programs, its, OPTIONS, programs if exchange.value == SCATTER.value else None
    )


def aligned(columns: int, *matrices: torch.Tensor | None) -> int:
    """Elements of which the places of all rows are multiples, up to a vector of 8."""
    given = [each for each in matrices if each is not None]
    return math.gcd(8, columns, *(each.data_ptr() // each.element_size() for each in given))
