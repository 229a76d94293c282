"""Calls that all ranks make and no operator takes, by what their error names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from calls import HEAP, said

import autotune
from autotune import all_gather_gemm as gather
from autotune import flash_decode as decode
from autotune import gemm_all_reduce as reduce
from autotune import gemm_reduce_scatter as scatter

Cases = Iterator[tuple[str, Callable[[], Any]]]

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def refused(url: str) -> list[str]:
    with autotune.Context(HEAP, url=url) as context:
        unlike = []
        for cases in (gemms, dimensions, scales, norms, decodes, mixtures):
            for told, call in cases(context):
                answer = said(call)
                if not answer.startswith("InvalidProblem: ") or told not in answer:
                    unlike.append(f"{told}: {answer}")
        a, b = ones(8, 32), ones(32, 16)
        kinds = {
            "InvalidConfig: config=": lambda: reduce(context, a, b, config={"mode": "bsp"}),  # type: ignore[arg-type]
            "InputError: context is a": lambda: reduce(None, a, b),  # type: ignore[arg-type]
        }
        unlike += [told for told, call in kinds.items() if not said(call).startswith(told)]
        assert (reduce(context, a, b) == 32 * dist.get_world_size()).all()
    return unlike


def ones(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.ones(*shape).to(dtype).to("cuda" if torch.cuda.is_available() else "cpu")


def gemms(context: autotune.Context) -> Cases:
    ranks, a, b, bias = dist.get_world_size(), ones(8, 32), ones(32, 16), ones(16)
    yield "b is [31, 16]", lambda: gather(context, a, b[:-1])
    yield "b is [31, 16]", lambda: reduce(context, a[:0], b[:-1])
    yield "all_gather_shard", lambda: gather(context, a, b, in_place=True)
    problem = autotune.AllGatherGemm(m=8 * ranks, n=16 * ranks, k=32, world_size=ranks)
    yield "in_place=True", lambda: autotune.all_gather_shard(context, problem)
    yield "bias [15]", lambda: gather(context, a, b, bias[:-1])
    yield "a is torch.float64", lambda: scatter(context, a.double(), b.double())
    yield "not aligned", lambda: reduce(context, ones(8 * 32 + 1)[1:].view(8, 32), b)
    yield "a is [32]", lambda: reduce(context, a[0], b)
    yield "out is [8, 16] torch.float32", lambda: reduce(context, a, b, out=torch.empty(8, 16))
    yield "out is [4, 17]", lambda: scatter(context, a, b, out=ones(8 // ranks, 17))
    yield "b is a tensor of layout", lambda: gather(context, a, b.to_sparse())
    yield "b is a NoneType", lambda: scatter(context, a, None)  # type: ignore[arg-type]
    yield "out is [8, 16]", lambda: gather(context, a, b, bias, epilogue="swiglu", out=ones(8, 16))
    yield "residual is [", lambda: reduce(context, a, b, residual=ones(7, 16))


def dimensions(context: autotune.Context) -> Cases:
    world, a, b = dist.get_world_size(), ones(2, 4, 64), ones(64, 32)
    like, small = ones(2, 4 * world, 32), ones(128, 128, dtype=FP8)
    yield "gather_dim=3", lambda: gather(context, a, b, gather_dim=3)
    yield "scatter_dim=-4", lambda: scatter(context, a, b, scatter_dim=-4)
    yield "scatter_dim=1", lambda: scatter(context, a[:, :3], b, scatter_dim=1)
    yield "b is [64]", lambda: scatter(context, a, b[:, 0], scatter_dim=2)
    yield "bias [2]", lambda: scatter(context, a, b, b[0, :world], scatter_dim=2)
    yield "rows=[2, 2, 2]", lambda: gather(context, a, b, rows=[2] * (world + 1))
    yield "rows=[3, 3]", lambda: gather(context, a, b, rows=[3] * world)
    yield "rows with in_place", lambda: gather(context, a, b, rows=[2] * world, in_place=True)
    yield "AsyncCollectiveTensor", lambda: scatter(context, functional.all_reduce(a, "sum", dist.group.WORLD), b)
    yield "reduce_op='max'", lambda: scatter(context, a, b, reduce_op="max")
    yield "residual is [1, 2", lambda: reduce(context, a, b, residual=a[..., :32][None])
    yield "out is [2, 8, 32]", lambda: gather(context, a, b, gather_dim=1, out=like)
    yield "out is [2, 8, 32]", lambda: scatter(context, a, b, scatter_dim=2, out=like)
    yield "out is torch.float32", lambda: scatter(context, a, b, scatter_dim=2, out=like[:, :4, ::world].float())
    yield "residual is [2, 8, 32]", lambda: scatter(context, a, b, scatter_dim=2, residual=like)
    one, columns = ones(1, dtype=torch.float32), ones(128, 1, dtype=torch.float32)
    wide: dict[str, Any] = {"scale_a": columns.expand(128, 2), "scale_b": one[None], "scatter_dim": 1}
    yield "scale_a [128, 2]", lambda: scatter(context, small, small.t(), **wide)
    mixed: dict[str, Any] = {"scale_a": one, "scale_b": one, "scatter_dim": 1}
    yield "b torch.float8_e5m2", lambda: scatter(context, small, ones(128, 128, dtype=torch.float8_e5m2).t(), **mixed)


def scales(context: autotune.Context) -> Cases:
    ranks, bias = dist.get_world_size(), ones(32)
    a, b = ones(16, 256, dtype=FP8), ones(32, 256, dtype=FP8).t()
    by_rows, by_columns = ones(16, 1, dtype=torch.float32), ones(1, 32, dtype=torch.float32)
    whole: dict[str, Any] = {"a": a, "b": b, "bias": bias, "scale_a": by_rows, "scale_b": by_columns}
    shapes = "allowed: tensor: [1] and [1]; row: [16, 1] and [1, 32]; block: [16, 2] and [2, 1]"
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("scales=none", {"scale_a": None, "scale_b": None}), ("scale_b is None", {"scale_b": None}),
        (shapes, {"scale_a": by_rows[:-1]}), (shapes, {"scale_a": by_rows.view(-1)}),
        (shapes, {"scale_a": by_columns, "scale_b": by_rows}), (shapes, {"scale_a": by_rows[0]}),
        ("scales must be torch.float32", {"scale_a": by_rows.double()}),
        ("scale_a must be contiguous", {"scale_a": ones(32, 2, dtype=torch.float32)[::2, :1]}),
        ("on meta", {"scale_a": by_rows.to("meta")}), ("b must be torch.float8_e4m3fn", {"b": b.to(BF16)}),
        ("torch.bfloat16", {"bias": bias.half()}), ("stored transposed", {"b": b.contiguous()}),
        ("out_dtype=torch.float64", {"out_dtype": torch.float64}), ("out is [4, 4]", {"out": torch.empty(4, 4)}),
        ("scales=row: with dtype=bf16", {"a": a.to(BF16), "b": b.to(BF16)}),
    ]  # fmt: skip
    for told, other in wrong:
        yield told, lambda other=other: gather(context, **whole | other)  # type: ignore[misc]
    assert gather(context, **whole).shape == (16 * ranks, 32)


def norms(context: autotune.Context) -> Cases:
    x, residual, weight, call = ones(5, 264), ones(5, 264), ones(264), autotune.all_reduce_norm
    like = torch.empty_like(x)
    yield "residual [4, 264]", lambda: call(context, x, residual[:4], weight)
    yield "contiguous", lambda: call(context, x.t().contiguous().t(), residual, weight)
    yield "residual is torch.float32", lambda: call(context, x, residual.float(), weight)
    quantised = autotune.all_reduce_norm_quantised
    for scales in ("none", "tensor"):
        told = f"scales='{scales}': allowed: row, block"
        yield told, lambda scales=scales: quantised(context, x, residual, weight, scales=scales)  # type: ignore[misc]
    yield "shares memory", lambda: call(context, x, residual, weight, out=(like, x))
    yield "out holds 1", lambda: call(context, x, residual, weight, out=(like,))  # type: ignore[arg-type]
    yield "requires a gradient", lambda: call(context, x, residual, weight.clone().requires_grad_())


def decodes(context: autotune.Context) -> Cases:
    q, cache, int32 = ones(2, 4, 64), ones(4, 16, 2, 64), torch.int32
    table, lengths = ones(2, 2, dtype=int32) * 0, ones(2, dtype=int32) * 0
    yield "q is [2, 4, 64]", lambda: decode(context, q, cache, cache, table.long(), lengths)
    yield "q is [4, 2, 64], strides", lambda: decode(context, q.transpose(0, 1), cache, cache, table, lengths)
    yield "q is torch.float32", lambda: decode(context, q.float(), cache.float(), cache.float(), table, lengths)
    yield "result='head'", lambda: decode(context, q, cache, cache, table, lengths, result="head")
    yield "v_cache=None", lambda: decode(context, q, cache, None, table, lengths)
    yield "rope=32 and a v_cache", lambda: decode(context, q, cache, cache, table, lengths, rope=32)
    yield "rope=48", lambda: decode(context, q, cache, None, table, lengths, rope=48)
    yield "head_dim=32 with rope=32", lambda: decode(context, q, cache, None, table, lengths, rope=32)
    yield "q is [2, 4, 64]", lambda: decode(context, q, cache[..., :32].contiguous(), None, table, lengths, rope=32)
    yield "scale=-1", lambda: decode(context, q, cache, cache, table, lengths, scale=-1.0)
    yield "soft_cap=30.5", lambda: decode(context, q, cache, cache, table, lengths, soft_cap=30.5)


def mixtures(context: autotune.Context) -> Cases:
    experts, x, gates = 4 * dist.get_world_size(), ones(6, 64), ones(6, 3, dtype=torch.float32)
    ids = (gates.cumsum(1) - 1).int()
    found = autotune.moe_dispatch(context, x, ids, gates, experts=experts)
    rows, *plan = found

    def there(*operands: torch.Tensor, **more: Any) -> Any:
        return autotune.moe_dispatch(context, *operands, **{"experts": experts, **more})

    def back(*operands: torch.Tensor, **more: Any) -> Any:
        return autotune.moe_combine(context, *operands, **more)

    yield "x is [4", lambda: there(x[:4], ids, gates)
    yield "x is []", lambda: there(x[0, 0], ids, gates)
    yield "torch.float32", lambda: there(x, ids.float(), gates)
    yield "torch.bfloat16", lambda: there(x, ids, gates.bfloat16())
    yield "contiguous", lambda: there(x.t().contiguous().t(), ids, gates)
    yield "scale_x is", lambda: there(x.to(FP8), ids, gates, scale_x=x[:, :2].float())
    yield "requires a gradient", lambda: there(x.clone().requires_grad_(), ids, gates)
    yield "tokens=3", lambda: there(x, ids, gates, tokens=3)
    yield "ids and gates", lambda: there(x[:3], ids[:2], gates[:3], tokens=6)
    for wrong_ids, wrong_gates in ((ids[0], gates), (ids, gates.t().contiguous().t()), (ids, gates.double())):
        yield "gates", lambda ids=wrong_ids, gates=wrong_gates: there(x, ids, gates)  # type: ignore[misc]
    offsets, pairs, of_rows = plan
    for at, wrong in (
        (0, rows[:-1]), (1, offsets[:1]), (1, offsets[:, None]), (2, pairs.long()), (3, of_rows.double()),
        (3, of_rows.repeat(2)[::2]), (4, ids.t().contiguous().t()),
    ):  # fmt: skip
        operands = [rows, *plan, ids]
        operands[at] = wrong
        yield "contiguous", lambda operands=operands: back(*operands)  # type: ignore[misc]
    yield "[capacity, hidden]", lambda: back(rows.t().contiguous().t(), *plan, ids)
    yield "tokens=3", lambda: back(*found, ids, tokens=3)
    few = autotune.moe_dispatch(context, x[:2], ids[:2], gates[:2], experts=experts, tokens=6)
    yield "out is [3", lambda: back(*few, ids[:2], tokens=6, out=torch.empty_like(x[:3]))
    a, b = ones(len(rows), 32), ones(4, 32, 64)
    combine = autotune.moe_gemm_combine
    yield "b is [3", lambda: combine(context, a, b[:-1], *plan, ids)
    yield "bias is [3, 64]", lambda: combine(context, a, b, *plan, ids, bias=ones(3, 64))
    yield "bias is [4, 64], torch.float64", lambda: combine(context, a, b, *plan, ids, bias=ones(4, 64).double())
