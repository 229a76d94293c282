"""Functions that the tests of operands of any dimensions and strides run on every rank."""

from __future__ import annotations

from typing import Any

import torch
from calls import HEAP, configs, error

import autotune
from autotune.task import Task

DEPTH = 64
COLUMNS = 32

WAYS: dict[str, tuple[Any, Any]] = {
    "apart": (lambda x: x[::2, DEPTH : 2 * DEPTH], lambda x: x[:DEPTH, COLUMNS:]),
    "transposed": (lambda x: x[::2, :DEPTH].t().contiguous().t(), lambda x: x.t().contiguous().t()[:DEPTH, :COLUMNS]),
    "steps": (lambda x: x[::2, ::3], lambda x: x[:DEPTH, ::2]),
    "at one address": (lambda x: x[: len(x) // 2, :DEPTH], lambda x: x[:DEPTH, :COLUMNS]),
    "at that address, dense": (lambda x: _dense(x, len(x) // 2, DEPTH), lambda x: _dense(x, DEPTH, COLUMNS)),
}
"""A and B from wider matrices, twice as many rows and three times the depth, twice as many columns."""


def _dense(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return x.view(-1)[: rows * columns].view(rows, columns)


def everything(url: str) -> dict[str, Any]:
    with autotune.Context(HEAP, url=url) as context:
        functions = (dimensions, averages, scaled, strides, ragged)
        found: dict[str, Any] = {function.__name__: function(context) for function in functions}
        context.check()
    return found


def normal(context: autotune.Context, seed: int, *shape: int) -> torch.Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.bfloat16().to(context.heap.device)


def parts(context: autotune.Context, seed: int, *shape: int) -> list[torch.Tensor]:
    return list(normal(context, seed, context.heap.world_size, *shape))


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float()


def total(a: list[torch.Tensor], b: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([product(*pair) for pair in zip(a, b, strict=True)]).sum(0)


def dimensions(context: autotune.Context) -> dict[str, float]:
    """Errors by operator and dimension, of new results and given ones; ``gradient_forms`` has every dimension."""
    heap, found = context.heap, {}
    rank, world = heap.rank, heap.world_size

    def keep(name: str, reference: torch.Tensor, call: Any) -> None:
        out = call(None)
        given = torch.full_like(out, float("nan"))
        assert out.shape == reference.shape and call(given) is given
        found[name] = max(error(out, reference), error(given, reference))

    bias = normal(context, 5, COLUMNS)
    for dim in (1, -1, -3):
        a, b = parts(context, 1, 2, 4, DEPTH), normal(context, 2, DEPTH * (world if dim == -1 else 1), COLUMNS)
        reference = product(torch.cat(a, dim), b) + bias.float()
        keep(f"gather {dim}", reference, lambda out, dim=dim, a=a, b=b: autotune.all_gather_gemm(
            context, a[rank], b, bias, gather_dim=dim, out=out))  # fmt: skip
    a, b = parts(context, 3, world, 2 * world, 6, DEPTH), parts(context, 4, DEPTH, COLUMNS)
    whole = total(a, b) + bias.float()
    keep("scatter 3", whole.chunk(world, 3)[rank], lambda out: autotune.gemm_reduce_scatter(
        context, a[rank], b[rank], bias, scatter_dim=3, out=out))  # fmt: skip
    reference = whole.chunk(world, 1)[rank]
    added = normal(context, 7 + rank, *reference.shape)  # of its own on each rank, as its rows are
    keep("scatter 1, residual", reference + added.float(), lambda out: autotune.gemm_reduce_scatter(
        context, a[rank], b[rank], bias, scatter_dim=1, residual=added, out=out))  # fmt: skip
    keep("reduce", whole, lambda out: autotune.gemm_all_reduce(
        context, a[rank], b[rank], bias, out=out))  # fmt: skip
    return found


def averages(context: autotune.Context) -> dict[str, float]:
    """Errors with a bias and a residual, of which fp16 holds the sum, and not the ranks times the sum."""
    rank, world, found = context.heap.rank, context.heap.world_size, {}
    for dtype, level in ((torch.bfloat16, 0.0), (torch.float16, 2.5e4)):

        def cast(x: torch.Tensor, dtype: torch.dtype = dtype, level: float = 0) -> torch.Tensor:
            return (x.float() + level).to(dtype)

        a, b = map(cast, parts(context, 7, 2 * world, 4, DEPTH)), map(cast, parts(context, 8, DEPTH, COLUMNS))
        every_a, every_b = list(a), list(b)
        bias = cast(normal(context, 9, COLUMNS), level=level)
        added = cast(normal(context, 24, 2 * world, 4, COLUMNS), level=level)  # the same on all ranks
        mean = total(every_a, every_b) / world + bias.float() + added.float()
        ours, options = (context, every_a[rank], every_b[rank], bias), {"reduce_op": "avg"}
        found[f"{dtype} all"] = error(autotune.gemm_all_reduce(*ours, residual=added, **options), mean)
        for dim in range(3):
            own = added.chunk(world, dim)[rank].contiguous()
            part = autotune.gemm_reduce_scatter(*ours, residual=own, scatter_dim=dim, **options)
            found[f"{dtype} {dim}"] = error(part, mean.chunk(world, dim)[rank])
        autotune.gemm_all_reduce(*ours, residual=added, out=added, **options)
        found[f"{dtype} into the residual"] = error(added, mean)
    return found


def scaled(context: autotune.Context) -> dict[str, float]:
    """Errors of fp8 whose scales by rows come as a column; those with A's dimensions are compared with torch's."""
    heap = context.heap
    rank, world = heap.rank, heap.world_size
    b8 = [each.to(torch.float8_e4m3fn).t() for each in parts(context, 10, COLUMNS, DEPTH)]
    a8 = [each.to(torch.float8_e4m3fn) for each in parts(context, 11, 2 * world, 8, DEPTH)]
    scale_a = [each.float().abs() + 0.5 for each in parts(context, 12, 2 * world, 8, 1)]
    scale_b = [each.float().abs() + 0.5 for each in parts(context, 13, 1, COLUMNS)]
    wide_a = [x.float() * scale for x, scale in zip(a8, scale_a, strict=True)]
    wide_b = [x.float() * scale for x, scale in zip(b8, scale_b, strict=True)]
    ours = {"scale_a": scale_a[rank].flatten(0, 1), "scale_b": scale_b[rank]}
    by_columns = a8[rank].flatten(0, 1).t().contiguous().t()
    scattered = autotune.gemm_reduce_scatter(context, by_columns, b8[rank], scatter_dim=1, **ours)
    gathered = autotune.all_gather_gemm(context, a8[rank], b8[rank], gather_dim=1, **ours)
    return {
        "scatter 1, A by columns": error(scattered, total(wide_a, wide_b).flatten(0, 1).chunk(world, 1)[rank]),
        "gather 1": error(gathered, product(torch.cat(wide_a, 1), wide_b[rank])),
    }


def strides(context: autotune.Context) -> dict[str, float]:
    heap, found = context.heap, {}
    rank, world = heap.rank, heap.world_size
    ranks: dict[str, Any] = {"world_size": world, "k": DEPTH * world}
    problems = {
        "all_gather_gemm": autotune.AllGatherGemm(m=16 * world, n=COLUMNS * world, **ranks | {"k": DEPTH}),
        "gemm_reduce_scatter": autotune.GemmReduceScatter(m=16 * world, n=COLUMNS, **ranks),
        "gemm_all_reduce": autotune.GemmAllReduce(m=16, n=COLUMNS, **ranks),
    }
    for name, problem in problems.items():
        rows = 16 if name != "gemm_reduce_scatter" else 16 * world
        wide_a, wide_b = parts(context, 14, 2 * rows, 3 * DEPTH), parts(context, 15, 3 * DEPTH, 2 * COLUMNS)
        for config in configs(Task(problem, context.machine)):
            out = normal(context, 16, problem.m if name != "gemm_reduce_scatter" else 16, COLUMNS)
            for way, (of_a, of_b) in WAYS.items():
                a, b = [of_a(x) for x in wide_a], [of_b(x) for x in wide_b]
                if name == "all_gather_gemm":
                    reference = product(torch.cat(a), b[rank])
                else:
                    reference = total(a, b)
                if name == "gemm_reduce_scatter":
                    reference = reference.chunk(world)[rank]
                operator = getattr(autotune, name)
                found[f"{name} {config['mode']} {way}"] = max(
                    error(operator(context, a[rank], b[rank], out=out, config=config), reference)
                    for _ in range(1 + (way == "steps"))
                )
        context.release()
    return found


def ragged(context: autotune.Context) -> dict[str, Any]:
    """Errors of shards with unequal numbers of rows, one of them without any; workspaces that they take."""
    rank, world = context.heap.rank, context.heap.world_size
    b, found = normal(context, 40, DEPTH, COLUMNS), {}
    left = []
    for number, first in enumerate((5, 7, 8, 0)):
        rows = [first, *range(6, 5 + world)]
        shards = [normal(context, 41 + number, each, 4, DEPTH) for each in rows]
        out = torch.full((sum(rows), 4, COLUMNS), float("nan"), dtype=b.dtype, device=b.device)
        assert autotune.all_gather_gemm(context, shards[rank], b, rows=rows, out=out) is out
        left.append(context.heap.left)
        found[f"rows {first}"] = error(out, product(torch.cat(shards), b))
        across = [shard.transpose(0, 1).contiguous() for shard in shards]
        out = autotune.all_gather_gemm(context, across[rank], b, rows=rows, gather_dim=1)
        found[f"across {first}"] = error(out, product(torch.cat(across, 1), b))
    found["one workspace"] = float(len(set(left)) - 1)
    a8 = [normal(context, 50 + each, 3 + each, 2, DEPTH).to(torch.float8_e4m3fn) for each in range(world)]
    scales = [normal(context, 60 + each, 3 + each, 2, 1).float().abs() + 0.5 for each in range(world)]
    b8, scale_b = normal(context, 70, COLUMNS, DEPTH).to(torch.float8_e4m3fn).t(), torch.ones(1, COLUMNS).to(b.device)
    wide = torch.cat([x.float() * scale for x, scale in zip(a8, scales, strict=True)])
    for name, scale_a in {"fp8": scales[rank], "fp8, a column of scales": scales[rank].flatten(0, 1)}.items():
        out = autotune.all_gather_gemm(
            context, a8[rank], b8, rows=[len(each) for each in a8], scale_a=scale_a, scale_b=scale_b
        )
        found[name] = error(out, product(wide, b8))
    return found
