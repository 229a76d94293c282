"""PyTorch's dispatch of tokens to the ranks of their experts: symm_mem.all_to_all_vdev, and what it takes beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from autotune.kernels.moe.routing import Routing, planned, reached_ranks
from autotune.kernels.moe_dispatch.library import gathered_routing
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.workloads.built_in.moe_dispatch import MoeDispatchOperation


class Dispatch(MoeDispatchOperation):
    def expected(self) -> torch.Tensor:
        plan = planned(self._problem, self.drawn.routings[self._number], self._heap.rank)
        return self.drawn.numbers(self._number, plan.pairs[: int(plan.offsets[-1])] // self._problem.top_k)


def leaving(problem: MoeDispatch, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's tokens by the rank that they go to, each once per rank, and their number for each, int64: by fixed
    shapes, so that the host waits for no count. What lies behind the last of them means nothing.
    """
    reached = reached_ranks(problem, ids).T  # [rank, token]
    first = torch.argsort(reached.flatten().logical_not(), stable=True)
    most = problem.tokens * min(problem.world_size, problem.top_k)
    return x[first[:most] % problem.tokens], reached.sum(1)


def laid_out(problem: MoeDispatch, arrived: torch.Tensor, routing: Routing, rank: int) -> torch.Tensor:
    """Rows [capacity, hidden] by expert, of tokens that have ``arrived`` by source, with no gap between sources."""
    plan = planned(problem, routing, rank)
    place = reached_ranks(problem, routing.ids)[:, :, rank].flatten().cumsum(0) - 1
    return arrived[place[plan.pairs // problem.top_k]]


def symm_mem_dispatch(operation: Any) -> Callable[[], torch.Tensor]:
    """PyTorch: symm_mem.all_to_all_vdev, whose counts stay on the device; before and behind it what a dispatch needs
    beside: the tokens by rank, everybody's routing, the rows by expert.
    """
    from torch.distributed import _symmetric_memory

    exchange = torch.ops.symm_mem.all_to_all_vdev
    if not _symmetric_memory.is_nvshmem_available():
        raise NotImplementedError("symm_mem.all_to_all_vdev needs NVSHMEM, which this torch lacks or cannot load")
    # Raises RuntimeError in a process that has symmetric memory of another backend already.
    _symmetric_memory.set_backend("NVSHMEM")
    tensors, problem, heap = operation._tensors, operation._problem, operation._heap
    sent, counts = leaving(problem, tensors.x, tensors.ids)
    most = problem.world_size * problem.tokens

    def symmetric(like: torch.Tensor, *shape: int) -> torch.Tensor:
        return _symmetric_memory.empty(shape, dtype=like.dtype, device=like.device)

    own, arrived = symmetric(sent, *sent.shape), symmetric(sent, most, problem.hidden)
    own_counts, received = symmetric(counts, len(counts)), symmetric(counts, 2, len(counts))
    exist = len(operation.expected())

    def run() -> torch.Tensor:
        sent, counts = leaving(problem, tensors.x, tensors.ids)
        own.copy_(sent)
        own_counts.copy_(counts)
        exchange(own, arrived, own_counts, received, dist.group.WORLD.group_name)
        routing = gathered_routing(problem, tensors.ids, tensors.gates, heap.library_group)
        return laid_out(problem, arrived, routing, heap.rank)[:exist]

    return run
