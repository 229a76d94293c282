"""Functions that the tests of what follows a GEMM in an operator run on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from calls import HEAP, WORST, configs, drawn, error, said

import autotune
from autotune.task import Task
from autotune.workloads import workload

IN_FP8 = 0.04


SPECIAL = (float("inf"), float("nan"), -float("inf"))


def everything(url: str) -> dict[str, Any]:
    with autotune.Context(HEAP, url=url) as context:
        functions = (quantised, residual, several, gathered, gathered_bits, infinite)
        found: dict[str, Any] = {function.__name__: function(context) for function in functions}
        context.check()
    return found


def quantised(context: autotune.Context) -> dict[str, bool]:
    """By mode: what is infinite or no number stays in its block; scales of what is next to zero are above zero."""
    ranks, answers, quantise = dist.get_world_size(), {}, autotune.all_gather_gemm_quantised
    fields: dict[str, Any] = {"m": 16 * ranks, "n": 512 * ranks, "k": 64, "world_size": ranks}
    problem = autotune.AllGatherGemm(**fields, b_order="nk", bias=True, epilogue="swiglu", quantised=True)
    (a, b, bias), product = drawn(problem, 3, context.heap.device)
    gate, up = product.chunk(2, 1)
    expected = torch.nn.functional.silu(gate) * up
    c, scales = quantise(context, a * 2.0**-74, b, bias * 0, epilogue="swiglu")
    answers["next to zero"] = bool((scales > 0).all() and (c.float() == 0).all())
    special = bias.clone()
    special[256 : 256 + len(SPECIAL)] = torch.tensor(SPECIAL)
    for config in configs(Task(problem, context.machine)):
        c, scales = quantise(context, a, b, special, epilogue="swiglu", config=config)
        wide = c.float() * scales.repeat_interleave(128, 1)
        beside = error(wide[:, len(SPECIAL) :], expected[:, len(SPECIAL) :]) < IN_FP8
        answers[str(config["mode"])] = beside and bool(wide[:, : len(SPECIAL)].isnan().all())
    return answers


def residual(context: autotune.Context) -> dict[str, bool]:
    """A residual that the call writes, where the kernels could write C's columns; and one that it does not."""
    ranks = dist.get_world_size()
    a, b = (torch.randn(16 * ranks, 32, device=context.heap.device).bfloat16() for _ in range(2))
    place = torch.randn(32 // ranks, 16 * ranks, device=a.device).bfloat16().t()
    expected = autotune.gemm_reduce_scatter(context, a, b[:32], scatter_dim=1).float() + place.float()
    new = autotune.gemm_reduce_scatter(context, a, b[:32], residual=place, scatter_dim=1)
    autotune.gemm_reduce_scatter(context, a, b[:32], residual=place, scatter_dim=1, out=place)
    return {"columns": error(new, expected) < WORST, "columns in place": torch.equal(place, new)}


def infinite(context: autotune.Context) -> dict[str, bool]:
    """By operator and mode: infinities and NaN of parts that travel in fp8 arrive, and change nothing beside them."""
    ranks, found = dist.get_world_size(), {}
    fields = {"m": 16 * ranks, "n": 64, "k": 32 * ranks, "wire": "fp8", "world_size": ranks}
    for problem in (autotune.GemmAllReduce(**fields), autotune.GemmReduceScatter(**fields)):
        a, b = (torch.ones(size, device=context.heap.device).bfloat16() for size in ((problem.m, 32), (32, 64)))
        if context.heap.rank == 0:
            b[0, : len(SPECIAL)] = torch.tensor(SPECIAL)
        expected = torch.full((64,), float(problem.k), device=a.device)
        expected[: len(SPECIAL)] = torch.tensor(SPECIAL)
        for config in configs(Task(problem, context.machine)):
            out = getattr(autotune, problem.workload)(context, a, b, wire="fp8", config=config).float()
            near = torch.isclose(out, expected, rtol=IN_FP8, equal_nan=True)
            found[f"{problem.workload} {config['mode']}"] = bool(near.all())
    return found


WIDTHS = [32, 16, 48]


def several(context: autotune.Context) -> dict[str, bool]:
    """Three Bs that lie apart, which a compiled call copies side by side; ``gradient_forms`` has the other ways."""
    ranks = dist.get_world_size()
    problem = autotune.AllGatherGemm(m=16 * ranks, n=sum(WIDTHS) * ranks, k=64, bias=True, world_size=ranks)
    (a, b, bias), product = drawn(problem, 4, context.heap.device)

    def call(a: Any, bs: Any, bias: Any) -> list[torch.Tensor]:
        return autotune.all_gather_gemm_several(context, a, bs, bias)

    apart = [each.contiguous() for each in b.split(WIDTHS, dim=1)]
    results = torch.compile(call, backend="aot_eager", fullgraph=True)(a, apart, bias)
    pairs = zip(results, product.split(WIDTHS, dim=1), strict=True)
    return {"compiled": max(error(mine, right) for mine, right in pairs) < WORST}


def gathered(context: autotune.Context) -> dict[str, Any]:
    """The gathered A by layout and mode: no later call touches it; ``pull`` has none."""
    ranks, found = dist.get_world_size(), {}
    gathering = autotune.all_gather_gemm_with_gathered
    for layout, dim in (("rows", 0), ("k", -1)):
        context.release()
        problem = autotune.AllGatherGemm(
            m=16 * ranks, n=32 * ranks, k=32 * ranks, layout=layout, b_order="nk", gathered=True, world_size=ranks
        )
        (a, b, _), _ = drawn(problem, 6, context.heap.device)
        shards = [torch.empty_like(a) for _ in range(ranks)]
        dist.all_gather(shards, a)
        whole = torch.cat(shards, dim)
        for config in configs(Task(problem, context.machine)):
            mine = [gathering(context, a * factor, b, gather_dim=dim, config=config)[1] for factor in (1, 2)]
            found[f"{layout} {config['mode']}"] = torch.equal(mine[0], whole) and torch.equal(mine[1], whole * 2)
    pull = autotune.Config({
        "mode": "pull", "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2,
        "loads": "pointer", "schedule": "tile",
    })  # fmt: skip
    refusal = said(lambda: gathering(context, a, b, gather_dim=-1, config=pull))
    return {**found, "pull refused": refusal.startswith("Invalid")}


def gathered_bits(context: autotune.Context) -> dict[str, bool]:
    """By mode and protocol: whatever bits A has, every rank gets the same ones, and they are A's, but for which NaN."""
    ranks, found = dist.get_world_size(), {}
    problem = autotune.AllGatherGemm(m=16 * ranks, n=32 * ranks, k=64, gathered=True, world_size=ranks)
    bits = torch.randint(-(1 << 15), 1 << 15, (problem.m, 64), generator=torch.Generator().manual_seed(8))
    bits[:, :8] = torch.tensor([0, -(1 << 15), 0x7F80, 0x7FC0, 0x7FFF, -1, -91, -92])
    bits = bits.to(torch.int16).to(context.heap.device)
    a, whole = (each.view(torch.bfloat16) for each in (bits.view(ranks, 16, 64)[context.heap.rank], bits))
    b = torch.ones(64, 32, device=bits.device).bfloat16()
    for config in workload(problem.workload).first_configs(Task(problem, context.machine)):
        way = f"{config['mode']} {config.get('protocol')}"
        if way not in found:
            _, mine = autotune.all_gather_gemm_with_gathered(context, a, b, config=config)
            everyones = torch.empty(ranks, *bits.shape, dtype=mine.dtype, device=mine.device)
            dist.all_gather(list(everyones), mine)
            same = (everyones.view(torch.int16) == mine.view(torch.int16)).all()
            right = (mine.view(torch.int16) == bits) | (mine.isnan() & whole.isnan())
            found[way] = bool(same & right.all())
    return found
