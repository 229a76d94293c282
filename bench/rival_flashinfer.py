"""FlashInfer's operators as serving stacks call them: its all-gather + GEMM in Triton, its all-reduce, behind the
library's GEMM or with residual and norm behind it, and its decode attention.

``pip install flashinfer-python``; it compiles its all-reduce on first use: nvcc was not done after 200 s on 32 cores
(0.7.2, 2026-11-25), longer than ranks may take to answer, so let ``comm.trtllm_ar.get_trtllm_comm_module()`` do it
before. Its workspaces are PyTorch's symmetric memory, without multicast. docs/results.md has what came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autotune.workloads.built_in.all_reduce_norm import AllReduceNormOperation, norm_of
from autotune.workloads.gemm import FACTORS


class Normed(AllReduceNormOperation):
    def expected(self) -> torch.Tensor:
        tensors = self._tensors
        normed, _ = norm_of(self._sum * FACTORS[self._number], tensors.residual, tensors.weight, self._problem.eps)
        return normed


def gather(operation: Any) -> Callable[[], torch.Tensor]:
    """FlashInfer: comm.all_gather_matmul. A lies where its peers read it, and is not copied."""
    from flashinfer.comm.all_gather_matmul import all_gather_matmul
    from torch.distributed import _symmetric_memory

    if not _symmetric_memory.is_nvshmem_available():
        raise NotImplementedError("comm.all_gather_matmul needs NVSHMEM, which this torch lacks or cannot load")
    # Raises RuntimeError in a process that has symmetric memory of another backend already.
    _symmetric_memory.set_backend("NVSHMEM")
    tensors = operation._tensors
    shard = _symmetric_memory.empty(tensors.a.shape, dtype=tensors.a.dtype, device=tensors.a.device)
    shard.copy_(tensors.a)
    return lambda: all_gather_matmul(shard, tensors.b, dist.group.WORLD)


def all_reduce(like: torch.Tensor, one_shot: bool, **fused: Any) -> Callable[[torch.Tensor], None]:
    """FlashInfer: comm.trtllm_allreduce_fusion of tensors [rows, columns] like this one; ``fused`` are its other
    operands and the pattern.
    """
    from flashinfer import comm

    rows, columns = like.shape
    rank, ranks = dist.get_rank(), dist.get_world_size()
    _, workspace = comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(
        rank, ranks, rows, columns, group=dist.group.WORLD
    )
    absent = dict.fromkeys(
        ("allreduce_out", "residual_in", "residual_out", "norm_out", "quant_out", "scale_out", "rms_gamma", "rms_eps",
         "scale_factor", "layout_code")
    )  # fmt: skip

    def run(part: torch.Tensor) -> None:
        comm.trtllm_allreduce_fusion(
            allreduce_in=part, world_size=ranks, world_rank=rank, token_num=rows, hidden_dim=columns,
            workspace_ptrs=workspace, launch_with_pdl=True, trigger_completion_at_end=True, fp32_acc=True,
            use_oneshot=one_shot, **{**absent, **fused},
        )  # fmt: skip

    return run


def reduce(one_shot: bool) -> Callable[[Any], Callable[[], torch.Tensor]]:

    def rival(operation: Any) -> Callable[[], torch.Tensor]:
        from flashinfer.comm import AllReduceFusionPattern

        tensors = operation._tensors
        product, whole = torch.empty_like(tensors.c), torch.empty_like(tensors.c)
        exchange = all_reduce(product, one_shot, pattern_code=AllReduceFusionPattern.kAllReduce, allreduce_out=whole)

        def run() -> torch.Tensor:
            torch.matmul(tensors.a, tensors.b, out=product)
            exchange(product)
            return whole

        return run

    return rival


def reduce_norm(one_shot: bool) -> Callable[[Any], Callable[[], torch.Tensor]]:

    def rival(operation: Any) -> Callable[[], torch.Tensor]:
        from flashinfer.comm import AllReduceFusionPattern

        tensors = operation._tensors
        normed, summed = torch.empty_like(tensors.x), torch.empty_like(tensors.x)
        exchange = all_reduce(
            tensors.x, one_shot, pattern_code=AllReduceFusionPattern.kARResidualRMSNorm, residual_in=tensors.residual,
            residual_out=summed, norm_out=normed, rms_gamma=tensors.weight, rms_eps=operation._problem.eps,
        )  # fmt: skip

        def run() -> torch.Tensor:
            exchange(tensors.x)
            return normed

        return run

    return rival


def decode(tensors: Any, lengths: list[int]) -> Callable[[], torch.Tensor]:
    """FlashInfer: BatchDecodeWithPagedKVCacheWrapper, planned for these lengths, of flash decode's operands on this GPU
    alone; an fp8 cache without its scales.
    """
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    q, keys, values = tensors.q, tensors.k_cache, tensors.v_cache
    page_size, kv_heads = keys.shape[1:3]
    pages = [-(-length // page_size) for length in lengths]
    starts = torch.tensor([0, *pages], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    places = torch.cat([tensors.block_table[place, :count] for place, count in enumerate(pages)])
    last = torch.tensor([(length - 1) % page_size + 1 for length in lengths], dtype=torch.int32)
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device=q.device)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        starts, places, last, q.shape[1], kv_heads, q.shape[2], page_size, q_data_type=q.dtype,
        kv_data_type=keys.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(q, (keys, values))


SHOTS = {"one_shot": True, "two_shot": False}
"""Each rank sums everything, or a share."""

REDUCES = {f"library's GEMM, FlashInfer's {name}": reduce(one_shot) for name, one_shot in SHOTS.items()}
NORMS = {f"FlashInfer's {name}": reduce_norm(one_shot) for name, one_shot in SHOTS.items()}
