"""What the operators' tests run on every rank."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist

import autotune
from autotune.errors import AutotuneError
from autotune.workloads import workload

SEEDS = itertools.count()


def operands(layout: str, transposed: bool, device: torch.device) -> tuple[torch.Tensor, ...]:
    """This rank's a and b, a bias, and the reference for them."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(next(SEEDS) * 97 + rank)
    m, n_local, k = 24 * world_size, 40, 64 * world_size
    shard = (m // world_size, k) if layout == "rows" else (m, k // world_size)
    a = torch.randn(shard).bfloat16().to(device)
    b = torch.randn(n_local, k).bfloat16().t() if transposed else torch.randn(k, n_local).bfloat16()
    bias = torch.randn(n_local).bfloat16().to(device)
    shards = [torch.empty_like(a) for _ in range(world_size)]
    dist.all_gather(shards, a)
    whole = torch.cat(shards, dim=0 if layout == "rows" else 1)
    b = b.to(device)
    return a, b, bias, whole.float() @ b.float() + bias.float()


def every_mode(url: str) -> dict[str, float]:
    """The worst error of each mode over calls in a row, with nothing between them that would line the ranks up."""
    worst: dict[str, float] = {}
    with autotune.Context(32 << 20, url=url) as context:
        found = workload("all_gather_gemm")
        for layout in ("rows", "k"):
            a, b, bias, _ = operands(layout, False, context.heap.device)
            m, k = (a.shape[0] * dist.get_world_size(), a.shape[1])
            if layout == "k":
                m, k = a.shape[0], a.shape[1] * dist.get_world_size()
            problem = autotune.AllGatherGemm(
                m=m, n=40 * dist.get_world_size(), k=k, layout=layout, bias=True, world_size=dist.get_world_size(),
            )  # fmt: skip
            baselines = found.baselines(problem, context.machine).values()
            for config in [None, *baselines, *found.first_configs(problem, context.machine)]:
                inputs = [operands(layout, False, context.heap.device) for _ in range(4)]
                outputs = []
                for number, (a, b, bias, reference) in enumerate(inputs):
                    out = torch.full_like(reference, float("nan"), dtype=a.dtype) if number % 2 else None
                    result = autotune.all_gather_gemm(context, a, b, bias, layout=layout, out=out, config=config)
                    assert out is None or result is out
                    outputs.append(result)
                for (_, _, _, reference), out in zip(inputs, outputs, strict=True):
                    error = float((out.float() - reference).norm() / reference.norm())
                    name = f"{layout} {'looked up' if config is None else config['mode']}"
                    worst[name] = max(worst.get(name, 0.0), error)
        a, b, bias, reference = operands("rows", True, context.heap.device)
        out = autotune.all_gather_gemm(context, a, b, bias)
        worst["transposed b"] = float((out.float() - reference).norm() / reference.norm())
    return worst


def bad_calls(url: str) -> list[str]:
    """The errors of calls that cannot work, on every rank; none of them hangs the others."""
    said = []

    def attempt(call: Any) -> None:
        try:
            call()
        except AutotuneError as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            said.append("no error")

    with autotune.Context(1 << 20, url=url) as context:
        a, b, bias, reference = operands("rows", False, context.heap.device)
        gather = autotune.all_gather_gemm
        attempt(lambda: gather(context, a, b[:-1]))
        attempt(lambda: gather(context, a.double(), b))
        attempt(lambda: gather(context, a, b, bias[:-1]))
        attempt(lambda: gather(context, a, b, out=reference))
        attempt(lambda: gather(context, a, b, config=autotune.Config({"mode": "teleport"})))
        columns = 8 * (1 + dist.get_rank())
        attempt(lambda: gather(context, a, b[:, :columns].contiguous()))
        large = torch.zeros(512, a.shape[1], dtype=torch.bfloat16, device=a.device)
        attempt(lambda: gather(context, large.repeat(1, 8), b.repeat(8, 1)))
    return said
