"""Exchanges of 2 to 8 ranks on one GPU, without the links: a rank that is its own peers.

    python bench/alone.py [--ranks 2,4,8]

Every peer's heap is this rank's, moved by as much as two ranks' parts lie apart in an inbox: what is sent to peer p
lands where p's part is waited for. So kernels send, poll and sum as among so many ranks, at the rate of one memory.
This holds for words in one shot, which nobody signals. Times of a call in a CUDA graph of 50, microseconds.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from autotune.heap.arena import SymmetricHeap
from autotune.machine import machine
from autotune.task import Task
from autotune.workloads import workload

CALLS, REPLAYS = 50, 25


class Alone(SymmetricHeap):
    """``ranks`` heaps in one memory, ``apart`` bytes from each other, all of them rank 0's."""

    def __init__(self, size: int, ranks: int, apart: int) -> None:
        arena = torch.zeros(size, dtype=torch.uint8, device="cuda")
        super().__init__(arena, [arena.data_ptr() + rank * apart for rank in range(ranks)], None)
        self.world_size = ranks

    def view(self, address: int, like: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def timed(run: Any) -> float:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / CALLS * 1e3)
    return sorted(times)[REPLAYS // 4]


def fastest(name: str, apart: int, changes: dict[str, Any], **fields: Any) -> str:
    """The first config of a search that has ``changes`` and is fastest here."""
    found = workload(name)
    task = Task(found.problem_type(**fields), machine())
    times = []
    for config in found.first_configs(task):
        if any(config.get(key) != value for key, value in changes.items()):
            continue
        heap = Alone(found.heap_bytes(task.problem) + (64 << 20), fields["world_size"], apart)
        operation = found.operation(task, heap, 1 << 18)
        times.append((timed(operation.prepare(config)), str(config)))
        if operation.timed_out():
            raise RuntimeError(f"{config}: a wait timed out, so no peer's part lay where it was sent")
    return "{:8.2f}  {}".format(*min(times)) if times else "no such config is valid"


def main(ranks: Annotated[str, typer.Option(help="numbers of ranks")] = "2,4,8") -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    words = {"protocol": "sentinel"}
    for world_size in map(int, ranks.split(",")):
        for n in (4096, 8192, 16384):
            for m in (1, 16, 128):
                norm = fastest(
                    "all_reduce_norm", m * n * 2, {"mode": "one_shot", **words}, m=m, n=n, world_size=world_size
                )
                print(f"{world_size} ranks, all-reduce + norm m={m} n={n}: {norm}", flush=True)
        for m in (8, 16, 64, 256, 512):
            shard = m // world_size * 8192 * 2
            problem = {"m": m, "n": 256, "k": 8192, "world_size": world_size}
            gather = fastest("all_gather_gemm", shard, {"mode": "custom_collective", **words}, **problem)
            print(f"{world_size} ranks, all-gather + small GEMM m={m} k=8192: {gather}", flush=True)


if __name__ == "__main__":
    typer.run(main)
