"""Each operation twice: in plain torch as a user writes it, and by our operators as a user calls them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import autotune

Tensor = torch.Tensor
Way = Callable[[int], Tensor]
"""One call with the operands of this number."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}

FAR = {"bf16": 1e-2, "fp16": 2e-3, "fp32": 1e-4, "fp8": 2e-2}
"""Largest |ours - plain| / |plain| (Frobenius): both accumulate in fp32, and round sums over the ranks to the dtype.
Of fp8, with results in bf16, the tensor cores lose some, each in its order."""

MOST_SETS = 16
LARGE = 1 << 30
"""Bytes of operands that are far beyond any L2: one set of them is enough."""

NEW_NAMES = hasattr(dist, "all_gather_single")
"""From torch 2.13 on the former ones warn."""


class Collectives:
    """The library's collectives; through the host where ranks share a GPU, which NCCL refuses."""

    def __init__(self, staged: bool) -> None:
        self._staged = staged

    def all_gather(self, whole: Tensor, part: Tensor) -> None:
        self._run(dist.all_gather_single if NEW_NAMES else dist.all_gather_into_tensor, whole, part)

    def reduce_scatter(self, part: Tensor, whole: Tensor) -> None:
        self._run(dist.reduce_scatter_single if NEW_NAMES else dist.reduce_scatter_tensor, part, whole)

    def all_reduce(self, whole: Tensor) -> None:
        if self._staged:
            host = whole.cpu()
            dist.all_reduce(host)
            whole.copy_(host)
        else:
            dist.all_reduce(whole)

    def _run(self, collective: Callable[[Tensor, Tensor], Any], out: Tensor, given: Tensor) -> None:
        if self._staged:
            host = torch.empty(out.shape, dtype=out.dtype)
            collective(host, given.cpu())
            out.copy_(host)
        else:
            collective(out, given)

    def all_to_all(self, out: Tensor, given: Tensor, out_rows: list[int], given_rows: list[int]) -> None:
        """Rows to and from each rank."""
        self._run(lambda whole, part: dist.all_to_all_single(whole, part, out_rows, given_rows), out, given)

    def all_gather_scaled(self, whole: Pair, part: Pair) -> None:
        """All-gather fp8 bytes and their scales, in one launch where the library can."""
        assert whole.scale_a is not None and part.scale_a is not None
        at_once = part.a.is_cuda and not self._staged
        with dist._coalescing_manager(device=part.a.device) if at_once else contextlib.nullcontext():
            self.all_gather(whole.a.view(torch.uint8), part.a.view(torch.uint8))
            self.all_gather(whole.scale_a, part.scale_a)


@dataclass(frozen=True)
class Pair:
    """A and B, and of fp8 their scales by rows and columns."""

    a: Tensor
    b: Tensor
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None

    @property
    def scales(self) -> dict[str, Tensor]:
        """The arguments for scales that our operators take; empty without any."""
        given = {"scale_a": self.scale_a, "scale_b": self.scale_b}
        return {name: scale for name, scale in given.items() if scale is not None}

    def product(self, fast: bool = False) -> Tensor:
        """``fast``: the library's fast accumulation of fp8, where the problem asks for it."""
        if self.scale_a is None or self.scale_b is None:
            return self.a @ self.b
        return torch._scaled_mm(
            self.a, self.b, scale_a=self.scale_a, scale_b=self.scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast
        )


@dataclass(frozen=True)
class Case:
    problem: Any
    sets: int
    plain: dict[str, Way]
    """By name; the fastest counts."""
    ours: Way
    restore: Callable[[], object] = lambda: None
    """Puts the operands back that a plain way has overwritten."""
    counted: dict[str, Way] = field(default_factory=dict)
    """Plain ways of which the host reads sizes, so that no graph holds them."""


class Operands:
    """Random numbers on this rank's device, and how many sets it takes to keep them out of the L2."""

    def __init__(self, problem: Any, device: torch.device, seed: int) -> None:
        self.problem, self.device, self.dtype = problem, device, DTYPES[problem.dtype]
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.empty(shape, dtype=torch.bfloat16 if self.dtype.itemsize == 1 else self.dtype, device=self.device)
        return drawn.normal_(0.0, scale, generator=self._generator).to(self.dtype)

    def scales(self, *shape: int, scale: float = 1.0) -> Tensor:
        """About ``scale``, in fp32, all different."""
        drawn = torch.empty(shape, dtype=torch.float32, device=self.device)
        return drawn.uniform_(0.75 * scale, 1.25 * scale, generator=self._generator)

    def sets(self, elements: int) -> int:
        """Sets of ``elements`` that are four times as large as the L2; at least two, one where they are large."""
        size = elements * self.dtype.itemsize
        if size >= LARGE:
            return 1
        l2 = torch.cuda.get_device_properties(self.device).L2_cache_size if self.device.type == "cuda" else 0
        return min(MOST_SETS, max(2, math.ceil(4 * l2 / size)))


def make(problem: Any, context: autotune.Context, collectives: Collectives) -> Case:
    kinds = {
        "all_gather_gemm": all_gather_gemm, "gemm_reduce_scatter": gemm_summed,
        "gemm_all_reduce": gemm_summed, "flash_decode": flash_decode,
        "all_reduce_norm": all_reduce_norm, "gemm_all_reduce_norm": gemm_all_reduce_norm,
    }  # fmt: skip
    operands = Operands(problem, context.heap.device, 1000 + dist.get_rank())
    return kinds[problem.workload](problem, context, collectives, operands)


def pairs(operands: Operands, a: tuple[int, int], b: tuple[int, int]) -> list[Pair]:
    """Sets of A and B; C is of order 1. B is stored as the problem says, of fp8 transposed."""
    count, scale = operands.sets(math.prod(a) + math.prod(b)), b[0] ** -0.5
    if operands.dtype.itemsize > 1:
        by_columns = operands.problem.b_order == "nk"
        stored = b[::-1] if by_columns else b
        drawn = [(operands.normal(*a), operands.normal(*stored, scale=scale)) for _ in range(count)]
        return [Pair(left, right.t() if by_columns else right) for left, right in drawn]
    return [
        Pair(operands.normal(*a), operands.normal(*b[::-1]).t(), operands.scales(a[0], 1),
             operands.scales(1, b[1], scale=scale))
        for _ in range(count)
    ]  # fmt: skip


def all_gather_gemm(problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands) -> Case:
    world, rows = problem.world_size, problem.layout == "rows"
    shard = (problem.m // world, problem.k) if rows else (problem.m, problem.k // world)
    drawn = pairs(operands, shard, (problem.k, problem.n // world))
    gathered = torch.empty(problem.m * problem.k, dtype=operands.dtype, device=operands.device)
    gathered_scales = torch.empty((problem.m, 1), dtype=torch.float32, device=operands.device)

    def by_rows(number: int) -> Tensor:
        pair = drawn[number % len(drawn)]
        scales = gathered_scales if pair.scales else None
        whole = Pair(gathered.view(problem.m, problem.k), pair.b, scales, pair.scale_b)
        if pair.scales:
            collectives.all_gather_scaled(whole, pair)
        else:
            collectives.all_gather(whole.a, pair.a)
        return whole.product(problem.fast_accum)

    def transposed(number: int) -> Tensor:
        pair = drawn[number % len(drawn)]
        whole = gathered.view(problem.k, problem.m)
        collectives.all_gather(whole, pair.a.t().contiguous())
        return whole.t() @ pair.b

    def put_together(number: int) -> Tensor:
        pair = drawn[number % len(drawn)]
        parts = gathered.view(world, *shard)
        collectives.all_gather(parts.view(world * shard[0], shard[1]), pair.a)
        return parts.transpose(0, 1).reshape(problem.m, problem.k) @ pair.b

    def tuned(number: int, **options: Any) -> Tensor:
        pair = drawn[number % len(drawn)]
        return autotune.all_gather_gemm(
            context, pair.a, pair.b, gather_dim=0 if rows else -1, fast_accum=problem.fast_accum, **pair.scales,
            **options,
        )  # fmt: skip

    plain: dict[str, Way] = {"plain": by_rows} if rows else {"transposed": transposed, "put together": put_together}
    if problem.epilogue == "none":
        return Case(problem, len(drawn), plain, tuned)
    return Case(problem, len(drawn), activated(plain, tuned, operands.device),
                lambda number: tuned(number, epilogue=problem.epilogue))  # fmt: skip


def swiglu(product: Tensor) -> Tensor:
    """SwiGLU; the first half of the columns is the gate, the second is up."""
    gate, up = product.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def activated(plain: dict[str, Way], tuned: Way, device: torch.device) -> dict[str, Way]:
    """Plain torch's ways with SwiGLU behind them, eager and compiled; and our GEMM, tuned without it, with a compiled
    one: the least that having it in the kernel has to gain on.
    """
    found: dict[str, Way] = {name: lambda number, way=way: swiglu(way(number)) for name, way in plain.items()}
    if device.type == "cuda":
        compiled = torch.compile(swiglu)
        found |= {f"{name}, compiled": lambda number, way=way: compiled(way(number)) for name, way in plain.items()}
        found["tuned, then compiled"] = lambda number: compiled(tuned(number))
    return found


def gemm_summed(problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands) -> Case:
    """GEMM + all-reduce, or + reduce-scatter."""
    world = problem.world_size
    drawn = pairs(operands, (problem.m, problem.k // world), (problem.k // world, problem.n))

    def plain(number: int) -> Tensor:
        c = drawn[number % len(drawn)].product(problem.fast_accum)
        if problem.workload == "gemm_all_reduce":
            collectives.all_reduce(c)
            return c
        mine = c.new_empty(problem.m // world, problem.n)
        collectives.reduce_scatter(mine, c)
        return mine

    def ours(number: int) -> Tensor:
        pair, operator = drawn[number % len(drawn)], getattr(autotune, problem.workload)
        result: Tensor = operator(context, pair.a, pair.b, fast_accum=problem.fast_accum, **pair.scales)
        return result

    return Case(problem, len(drawn), {"plain": plain}, ours)


def all_reduce_norm(problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands) -> Case:
    """Plain torch reduces x in place, as where a GEMM has just written it; so x is put back before results count. The
    sum and the norm are two operators, or one compiled function.
    """
    count = operands.sets(2 * problem.m * problem.n)
    common = Operands(problem, operands.device, 7)  # residual and weight are the same on every rank
    drawn = [(operands.normal(problem.m, problem.n), common.normal(problem.m, problem.n)) for _ in range(count)]
    kept, weight = [x.clone() for x, _ in drawn], common.normal(problem.n)

    def summed(number: int) -> tuple[Tensor, Tensor]:
        x, residual = drawn[number % count]
        collectives.all_reduce(x)
        return x, residual

    def ours(number: int) -> Tensor:
        x, residual = drawn[number % count]
        return autotune.all_reduce_norm(context, x, residual, weight, eps=problem.eps)[0]

    def restore() -> None:
        for (x, _), original in zip(drawn, kept, strict=True):
            x.copy_(original)

    return Case(problem, count, normed(problem, operands.device, summed, weight), ours, restore)


def sum_and_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return torch.nn.functional.rms_norm(total, weight.shape, weight, eps), total


def normed(
    problem: Any, device: torch.device, summed: Callable[[int], tuple[Tensor, Tensor]], weight: Tensor
) -> dict[str, Way]:
    """Residual and norm behind a sum as a user writes them, and compiled into one kernel, which takes a GPU."""
    found: dict[str, Way] = {"plain": lambda number: sum_and_norm(*summed(number), weight, problem.eps)[0]}
    if device.type == "cuda":
        compiled = torch.compile(sum_and_norm)
        found["compiled"] = lambda number: compiled(*summed(number), weight, problem.eps)[0]
    return found


def gemm_all_reduce_norm(problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands) -> Case:
    world = problem.world_size
    drawn = pairs(operands, (problem.m, problem.k // world), (problem.k // world, problem.n))
    common = Operands(problem, operands.device, 7)
    residual, weight = common.normal(problem.m, problem.n), common.normal(problem.n)

    def summed(number: int) -> tuple[Tensor, Tensor]:
        c = drawn[number % len(drawn)].product()
        collectives.all_reduce(c)
        return c, residual

    def ours(number: int) -> Tensor:
        pair = drawn[number % len(drawn)]
        return autotune.gemm_all_reduce_norm(context, pair.a, pair.b, residual, weight, eps=problem.eps)[0]

    return Case(problem, len(drawn), normed(problem, operands.device, summed, weight), ours)


def flash_decode(problem: Any, context: autotune.Context, collectives: Collectives, operands: Operands) -> Case:
    """Plain torch has no paged attention: it gets the cache in order, and so does ours, through its block table. It has
    none over sequences of different lengths either: all are alike, and ours gets what was tuned for that.

    Each rank attends to its own tokens by torch's flash attention, the query heads of a KV head as its rows; results
    and log-sum-exps travel in one all-gather.
    """
    world, batch, heads, width = problem.world_size, problem.batch, problem.q_heads, problem.head_dim
    pages = -(-problem.kv_len // problem.page_size)
    cache = (batch * pages, problem.page_size, problem.kv_heads, width)
    common = Operands(problem, operands.device, 7)  # q is the same on every rank
    count = operands.sets(2 * math.prod(cache))
    drawn = [(common.normal(batch, heads, width), operands.normal(*cache), operands.normal(*cache))
             for _ in range(count)]  # fmt: skip
    table = torch.arange(batch * pages, dtype=torch.int32, device=operands.device).view(batch, pages)
    lengths = torch.full((batch,), problem.kv_len, dtype=torch.int32, device=operands.device)
    config = context.choose(problem).config
    gathered = torch.empty(world, batch, heads, width + 1, dtype=torch.float32, device=operands.device)

    def plain(number: int) -> Tensor:
        q, keys, values = drawn[number % count]
        inputs = (each.view(batch, -1, problem.kv_heads, width)[:, : problem.kv_len].transpose(1, 2)
                  for each in (keys, values))  # fmt: skip
        mine, lse = attention(q.view(batch, problem.kv_heads, -1, width), *inputs)
        packed = torch.cat([mine.reshape(batch, heads, width).float(), lse.reshape(batch, heads, 1).float()], dim=-1)
        collectives.all_gather(gathered.view(world * batch, heads, width + 1), packed)
        weights = torch.softmax(gathered[..., width:], dim=0)
        return (gathered[..., :width] * weights).sum(dim=0).to(operands.dtype)

    def ours(number: int) -> Tensor:
        q, keys, values = drawn[number % count]
        return autotune.flash_decode(context, q, keys, values, table, lengths, config=config)

    return Case(problem, count, {"plain": plain}, ours)


def attention(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    if q.device.type == "cpu":
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, keys, values)
    else:
        found = torch.ops.aten._scaled_dot_product_flash_attention(q, keys, values)
    return found[0], found[1]


def distances(case: Case, results: list[Tensor], expected: list[Tensor]) -> Iterator[float]:
    """|found - expected| / |expected| of every set; NaN where there is one."""
    for found, right in zip(results, expected, strict=True):
        yield float((found.float() - right.float()).norm() / right.float().norm()) if right.numel() else 0.0
