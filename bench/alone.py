"""Exchanges of 2 to 8 ranks on one GPU, without the links: a rank that is its own peers.

    python bench/alone.py [--ranks 2,4,8] [--only norms,gathers,sums,decodes,tails]

Every peer's heap is this rank's, moved by as much as two ranks' parts lie apart in an inbox: what is sent to peer p
lands where p's part is waited for. So kernels send, poll and sum as among so many ranks, at the rate of one memory.
This holds for words in one shot, which nobody signals. Of tails only the signals land so, and rows where nobody reads.
Times of a call in a CUDA graph of 50, microseconds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

from autotune.heap.arena import SymmetricHeap
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.flash_decode.tensors import Records
from autotune.kernels.launching.contract import Setup
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


def drawn(kernels: Any, problem: Any, heap: Alone) -> Any:
    """A call's tensors: numbers drawn, and of what decodes pages in order, of sequences as long as they may be."""
    tensors = kernels.tensors(
        problem, heap.allocate, lambda shape, dtype: torch.empty(shape, dtype=dtype, device="cuda")
    )
    for field in dataclasses.fields(tensors):
        tensor = getattr(tensors, field.name)
        if field.name == "lengths":
            tensor.fill_(problem.kv_len)
        elif field.name == "block_table":
            tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
        elif isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor.normal_()
    return tensors


def fastest(name: str, apart: int, changes: dict[str, Any], **fields: Any) -> str:
    """The fastest of the configs tried first, with ``changes``."""
    found = workload(name)
    task = Task(found.problem_type(**fields), machine())
    kernels = found.kernels_of(task.problem)
    mode = changes.get("mode", "fused")
    configs = (each.replace(**changes) for each in found.first_configs(task) if each["mode"] == mode)
    times = []
    for config in dict.fromkeys(found.space.valid(configs, task)):
        heap = Alone(found.heap_bytes(task.problem) + (64 << 20), fields["world_size"], apart)
        setup = Setup(kernels, task, config, heap, 1 << 18)
        if mode == "warp_specialized":
            setup.scratch.inbox.normal_()  # with zeros a GPU takes less power, and its clock stays up
        times.append((timed(setup.bind(drawn(kernels, task.problem, heap))), str(config)))
        if setup.timed_out():
            raise RuntimeError(f"{config}: a wait timed out, so no peer's part lay where it was sent")
    return "{:8.2f}  {}".format(*min(times)) if times else "no such config is valid"


def norms(world_size: int) -> Iterator[tuple[str, str]]:
    for n, m in itertools.product((4096, 8192, 16384), (1, 16, 128)):
        changes = {"mode": "one_shot", "protocol": "sentinel"}
        yield (
            f"all-reduce + norm m={m} n={n}",
            fastest("all_reduce_norm", m * n * 2, changes, m=m, n=n, world_size=world_size),
        )


def gathers(world_size: int) -> Iterator[tuple[str, str]]:
    for m in (8, 16, 64, 256, 512):
        changes, fields = {"mode": "custom_collective", "protocol": "sentinel"}, {"m": m, "n": 256, "k": 8192}
        yield (
            f"all-gather + small GEMM m={m} k=8192",
            fastest("all_gather_gemm", m // world_size * 8192 * 2, changes, **fields, world_size=world_size),
        )


def sums(world_size: int) -> Iterator[tuple[str, str]]:
    for m, (protocol, size) in itertools.product((16, 64, 128), (("ll", 4), ("sentinel", 2))):
        changes, fields = {"mode": "one_shot", "protocol": protocol}, {"m": m, "n": 8192, "k": 2048}
        yield (
            f"GEMM + all-reduce m={m} n=8192 k=2048 {protocol}",
            fastest("gemm_all_reduce", m * 8192 * size, changes, **fields, world_size=world_size),
        )


def decodes(world_size: int) -> Iterator[tuple[str, str]]:
    latent = {"kv_heads": 1, "head_dim": 512, "rope": 64, "page_size": 64, "scale": 0.135}
    grouped = {"kv_heads": 8, "head_dim": 128, "page_size": 16}
    for (kind, heads), wire, tile in itertools.product(
        {"latent": latent, "8 KV heads": grouped}.items(), ("rounded", "fp32"), (2, 4, 8)
    ):
        changes = {"protocol": "sentinel", "wire": wire, "transfer_heads": tile, "combine_heads": tile}
        problem = {"batch": 32, "q_heads": 64, "kv_len": 1024, "dtype": "bf16", "lengths": "even", **heads}
        problem["world_size"] = world_size
        element, sent_lse = (torch.bfloat16 if wire == "rounded" else torch.float32), torch.int32
        apart = Records.block_bytes(FlashDecode(**problem), element, sent_lse)
        yield f"decode, {kind} {wire} tiles of {tile} heads", fastest("flash_decode", apart, changes, **problem)


def tails(world_size: int) -> Iterator[tuple[str, str]]:
    for m, n, k in ((512, 14336, 8192), (896, 13824, 5120), (864, 4608, 4096), (1024, 14336, 4096), (2048, 5120, 8192)):
        # Counters of a shard take a multiple of 16 bytes, by which rows then move.
        rows = next(each for each in (128, 64, 32, 16) if math.ceil(m / world_size / each) % 4 == 0)
        apart, fields = 4 * math.ceil(m / world_size / rows), {"m": m, "n": n * world_size, "k": k, "b_order": "nk"}
        for split in (False, True):
            changes = {"mode": "warp_specialized", "transfer_rows": rows, "split_tail": split}
            yield (
                f"all-gather + GEMM m={m} n={n} k={k} split_tail={split}",
                fastest("all_gather_gemm", apart, changes, **fields, world_size=world_size),
            )


EXCHANGES = {"norms": norms, "gathers": gathers, "sums": sums, "decodes": decodes, "tails": tails}


def main(
    ranks: Annotated[str, typer.Option(help="numbers of ranks")] = "2,4,8",
    only: Annotated[str, typer.Option(help="some of " + ", ".join(EXCHANGES))] = ",".join(EXCHANGES),
) -> None:
    if unknown := set(only.split(",")) - set(EXCHANGES):
        raise typer.BadParameter(f"--only: {', '.join(sorted(unknown))}: expected some of {', '.join(EXCHANGES)}")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for world_size, exchange in itertools.product(map(int, ranks.split(",")), only.split(",")):
        for what, time in EXCHANGES[exchange](world_size):
            print(f"{world_size} ranks, {what}: {time}", flush=True)


if __name__ == "__main__":
    typer.run(main)
