"""Warp specialization: one launch whose programs push, load and multiply by different warps."""

from __future__ import annotations

import math
from typing import Any

import torch

from autotune.dtypes import SCALES
from autotune.kernels.all_gather_gemm.fused import FusedWay
from autotune.kernels.all_gather_gemm.modes import WarpSpecialized
from autotune.kernels.all_gather_gemm.scratch import Inbox
from autotune.kernels.all_gather_gemm.space import GatherTask, rows_of_consumer, stored_columns
from autotune.kernels.all_gather_gemm.way import GatherCall
from autotune.kernels.launching.plan import Launch
from autotune.kernels.launching.tensors import Allocate

SLOTS = 2


class WarpSpecializedWay(FusedWay[WarpSpecialized, Inbox]):
    def scratch(self, task: GatherTask, mode: WarpSpecialized, shared: Allocate, own: Allocate) -> Inbox:
        units = math.ceil(task.problem.shard[0] / mode.transfer_rows)
        return Inbox.of_units(task.problem, shared, units, slots=SLOTS)

    def launches(self, call: GatherCall[WarpSpecialized, Inbox]) -> list[Launch]:
        """A program for each compute unit, all of them resident: each has a share of every unit that peers wait for."""
        from autotune.kernels.all_gather_gemm.specialized_kernel import specialized_kernel  # Gluon, which few need

        problem, mode, tensors, scratch, task = call.problem, call.knobs, call.tensors, call.scratch, call.task
        programs = call.machine.compute_units
        rows, kn = rows_of_consumer(mode.block_m, mode.consumers), problem.b_order == "kn"
        stored = stored_columns(task, mode.block_m, mode.block_n, mode.num_stages, mode.consumers)
        a_box, b_box = (rows, mode.block_k), (mode.block_n, mode.block_k)
        arguments = call.common() | {
            "a": described(tensors.a, a_box), "inbox": described(scratch.inbox, a_box),
            "b": described(tensors.b, b_box[::-1]) if kn else described(tensors.b.t(), b_box),
            "c": described(tensors.c, (rows, stored)), "shard": tensors.a, "inbox_pointer": scratch.inbox,
            "result": tensors.c, "bias": tensors.bias, "BIAS": tensors.bias is not None,
            "scale_a": None if problem.gathers_scales else tensors.scale_a, "scale_b": tensors.scale_b,
            "scale_shard": tensors.scale_a if problem.gathers_scales else None, "scale_inbox": scratch.scale_inbox,
            "SCALES": SCALES.index(problem.scales), "M": problem.m, "N": problem.n_local, "K": problem.k,
            "shard_rows": problem.shard[0], "transfer_rows": mode.transfer_rows, "group_m": mode.group_m,
            "arrivals": scratch.arrivals, "SLOTS": SLOTS, "PARTS": mode.block_m // rows,
            "TURNS": 2 if mode.consumers == "pingpong" else 1, "ROWS": rows, "COLUMNS": mode.block_n,
            "DEPTH": mode.block_k, "STAGES": mode.num_stages, "KN": kn, "SENDING": mode.sending_warps,
            "PROMOTE": problem.element_size == 1 and not problem.fast_accum,
            "trace": mode.trace_of(programs, tensors.c),
        }  # fmt: skip
        return [Launch(specialized_kernel, programs, arguments, {"num_warps": 4, "maxnreg": 168}, programs)]


def described(tensor: torch.Tensor, box: tuple[int, ...]) -> Any:
    """Gluon's descriptor of a matrix, loaded and stored by boxes through swizzled shared memory."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    kinds = {
        torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv,
        torch.float8_e5m2: gl.float8e5,
    }  # fmt: skip
    layout = gl.NVMMASharedLayout.get_default_for(list(box), kinds[tensor.dtype])
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(box), layout)
