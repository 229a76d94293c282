"""Every public function through which gradients go, as a table: its call, and the same by torch without ranks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from calls import error, listed

import autotune
from autotune import symm_mem
from autotune.errors import AutotuneError
from autotune.nn import functional

Tensor = torch.Tensor
DEPTH, COLUMNS = 16, 8


@dataclass(frozen=True)
class Form:
    """A call ``call(context, *operands)`` with one result or several."""

    call: Callable[..., Any]
    truth: Callable[..., list[Any]] | None
    """Each rank's results by the lists of all ranks' operands; None for a call without a backward."""
    shapes: dict[str, tuple[int, ...] | list[tuple[int, ...]]]
    """Those of the operands; a list: rank by rank."""
    shared: tuple[str, ...] = ()
    once: bool = False

    def loss_of(self, rank: int) -> int:
        """The rank whose loss this one has: of one result that all have, it is the same."""
        return 0 if self.once else rank

    def drawn(self, seed: int) -> list[list[Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        everyone: list[list[Tensor]] = [[] for _ in range(dist.get_world_size())]
        for name, shape in self.shapes.items():
            for rank, operands in enumerate(everyone):
                new = rank == 0 or name not in self.shared
                own = shape[rank] if isinstance(shape, list) else shape
                operands.append(torch.randn(own, generator=generator) if new else everyone[0][len(operands)])
        return everyone


def forms() -> dict[str, Form]:
    return {name: form for family in (_gathers, _scatters, _reduces, _layers, _refusals) for name, form in family()}


def _gathers() -> Iterator[tuple[str, Form]]:
    ranks, gather = dist.get_world_size(), autotune.all_gather_gemm

    def truth(dim: int, count: int, bias: bool = False, whole: bool = False) -> Any:
        def results(a: list[Tensor], *others: list[Tensor]) -> list[Any]:
            full = torch.cat(a, dim)
            products = [[full @ b for b in bs] for bs in zip(*others[:count], strict=True)]
            if bias:
                products = [[c + row for c in cs] for cs, row in zip(products, others[count], strict=True)]
            return [[*cs, *[full] * whole] for cs in products]

        return results

    def shapes(dim: int, count: int = 1, bias: bool = False) -> Any:
        depth = DEPTH * (ranks if dim in (-1, 2) else 1)
        bs = {f"b{number}": (depth, COLUMNS * (1 + number)) for number in range(count)}
        return {"a": (2, 4, DEPTH), **bs, **({"bias": (COLUMNS,)} if bias else {})}

    matrices = {"a": (4, DEPTH), "b": (DEPTH, COLUMNS), "bias": (COLUMNS,)}
    for kept in (False, True):
        call = functools.partial(gather, keep_gathered=kept)
        yield f"gather kept {kept}", Form(call, truth(0, 1, True), matrices)
    for dim in (0, 1, -1):
        call = functools.partial(gather, gather_dim=dim)
        yield f"gather {dim}", Form(call, truth(dim, 1, True), shapes(dim, bias=True))
        call = functools.partial(autotune.all_gather_gemm_with_gathered, gather_dim=dim)
        yield f"gather {dim} with A", Form(call, truth(dim, 1, True, whole=True), shapes(dim, bias=True))
    rows = [3 + rank for rank in range(ranks)]
    ragged: Any = {"a": [(each, DEPTH) for each in rows], "b": (DEPTH, COLUMNS)}
    yield "gather rows", Form(lambda *x: gather(*x, rows=rows), truth(0, 1), ragged)

    def several(context: autotune.Context, a: Tensor, *bs: Tensor) -> list[Tensor]:
        if not torch.compiler.is_compiling() and not any(b.requires_grad for b in bs):
            bs = tuple(autotune.side_by_side(bs))
        return autotune.all_gather_gemm_several(context, a, bs, gather_dim=1)

    yield "gather several", Form(several, truth(1, 2), shapes(1, 2))
    for dim in range(3):
        for count in (1, 2):

            def fused(context: autotune.Context, a: Tensor, *bs: Tensor, dim: int = dim) -> list[Tensor]:
                whole, cs = symm_mem.fused_all_gather_matmul(a, bs, dim, context.group_name, return_A=dim > 0)
                return cs if whole is None else [*cs, whole]

            yield f"symm_mem gather {dim} {count}", Form(fused, truth(dim, count, whole=dim > 0), shapes(dim, count))


def _scatters() -> Iterator[tuple[str, Form]]:
    ranks, scatter = dist.get_world_size(), autotune.gemm_reduce_scatter

    def truth(dim: int, average: bool, residual: bool = False) -> Any:
        def results(a: list[Tensor], b: list[Tensor], *more: list[Tensor]) -> list[Tensor]:
            total = torch.stack([x @ y for x, y in zip(a, b, strict=True)]).sum(0)
            total = total / ranks if average else total
            if residual:
                return [part + own for part, own in zip(total.chunk(ranks, dim), more[0], strict=True)]
            return list((total + more[0][0] if more else total).chunk(ranks, dim))

        return results

    matrices = {"a": (4 * ranks, DEPTH), "b": (DEPTH, COLUMNS), "bias": (COLUMNS,)}
    yield "scatter", Form(scatter, truth(0, False), matrices, ("bias",))
    cube = {"a": (ranks, 2 * ranks, DEPTH), "b": (DEPTH, COLUMNS)}
    for dim in range(3):
        for average in (False, True):
            reduce_op, shapes = "avg" if average else "sum", {**cube, "bias": (COLUMNS,)}
            call = functools.partial(scatter, scatter_dim=dim, reduce_op=reduce_op)
            yield f"scatter {dim} {reduce_op}", Form(call, truth(dim, average), shapes, ("bias",))
            if average or dim == 2:  # where the residual is added afterwards
                whole = [ranks, 2 * ranks, COLUMNS]
                whole[dim] //= ranks
                yield f"scatter {dim} {reduce_op} residual", Form(
                    lambda *x, dim=dim, op=reduce_op: scatter(*x[:3], residual=x[3], scatter_dim=dim, reduce_op=op),
                    truth(dim, average, True), {**cube, "residual": tuple(whole)},
                )  # fmt: skip
            yield f"symm_mem scatter {dim} {reduce_op}", Form(
                lambda c, *ab, dim=dim, op=reduce_op: symm_mem.fused_matmul_reduce_scatter(*ab, op, dim, c.group_name),
                truth(dim, average), cube,
            )  # fmt: skip
    empty = {"a": (0, DEPTH), "b": (DEPTH, COLUMNS), "bias": (COLUMNS,)}
    for dim in (0, 1):
        for reduce_op in ("sum", "avg"):
            call = functools.partial(scatter, scatter_dim=dim, reduce_op=reduce_op)
            yield f"scatter {dim} {reduce_op} of no rows", Form(call, truth(dim, False), empty, ("bias",))


def _reduces() -> Iterator[tuple[str, Form]]:
    ranks, reduce = dist.get_world_size(), autotune.gemm_all_reduce

    def truth(average: bool) -> Any:
        def results(a: list[Tensor], b: list[Tensor], *more: list[Tensor]) -> list[Tensor]:
            total = torch.stack([x @ y for x, y in zip(a, b, strict=True)]).sum(0)
            return [sum((each[0] for each in more), total / ranks if average else total)] * ranks

        return results

    for rows in ((4,), (2, 3)):
        shapes: Any = {"a": (*rows, DEPTH), "b": (DEPTH, COLUMNS), "bias": (COLUMNS,)}
        for reduce_op in ("sum", "avg"):
            call = functools.partial(reduce, reduce_op=reduce_op)
            yield f"reduce {len(rows)} {reduce_op}", Form(call, truth(reduce_op == "avg"), shapes, ("bias",), True)
    yield "reduce avg residual", Form(
        lambda *x: reduce(*x[:3], residual=x[3], reduce_op="avg"), truth(True),
        {"a": (2, 3, DEPTH), "b": (DEPTH, COLUMNS), "residual": (2, 3, COLUMNS)}, ("residual",), True,
    )  # fmt: skip


def _layers() -> Iterator[tuple[str, Form]]:
    """The one whose gradients are its own; ``tests/nn`` has the others."""

    def columns(x: list[Tensor], weight: list[Tensor], bias: list[Tensor]) -> list[Tensor]:
        return [x[0] @ w.t() + row for w, row in zip(weight, bias, strict=True)]

    shapes: Any = {"x": (2, 2, DEPTH), "weight": (COLUMNS, DEPTH), "bias": (COLUMNS,)}
    yield "column parallel", Form(functional.column_parallel, columns, shapes, ("x",))


def _refusals() -> Iterator[tuple[str, Form]]:
    """Calls with operands that a gradient could be asked for, and no backward."""
    ranks = dist.get_world_size()
    ab = {"a": (4 * ranks, 32), "b": (32, 16)}
    fp8: Any = {**ab, "scale_a": (1,), "scale_b": (1,)}
    gather, scatter, reduce = autotune.all_gather_gemm, autotune.gemm_reduce_scatter, autotune.gemm_all_reduce

    def small(x: Tensor) -> Tensor:
        return x.to(torch.float8_e4m3fn)

    def scaled(operator: Any) -> Any:
        return lambda c, a, b, x, y: operator(c, small(a), small(b.t().contiguous()).t(), scale_a=x, scale_b=y)

    def fused(count: int) -> Any:
        def call(c: Any, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Any:
            bs, kind = [small(b.t().contiguous()).t()] * count, [torch.bfloat16] * count
            lists = [scale_b] * count, 0, c.group_name, [None] * count, [None] * count, kind, [False] * count
            return symm_mem.fused_all_gather_scaled_matmul(small(a), bs, scale_a, *lists)

        return call

    for name, operator in {"gather": gather, "scatter": scatter, "reduce": reduce}.items():
        yield f"refused fp8 {name}", Form(scaled(operator), None, {**fp8, "a": (16 * ranks, 32)})
    for count in (1, 2):
        yield f"refused fp8 symm_mem gather {count}", Form(fused(count), None, fp8)
    yield "refused fp8 symm_mem scatter", Form(
        lambda c, a, b, x, y: symm_mem.fused_scaled_matmul_reduce_scatter(
            small(a), small(b.t().contiguous()).t(), x, y, "avg", 0, 0, c.group_name, None, None, None, torch.float16
        ), None, fp8,
    )  # fmt: skip
    yield "refused wire", Form(lambda *x: reduce(*x, wire="fp8"), None, ab)
    yield "refused epilogue", Form(lambda *x: gather(*x, epilogue="swiglu"), None, ab)
    for reduce_op in ("sum", "avg"):
        for dim in (0, 1):
            shape = (4, 16) if dim == 0 else (4 * ranks, 16 // ranks)
            yield f"refused out {dim} {reduce_op}", Form(
                lambda *x, op=reduce_op, dim=dim, shape=shape: scatter(
                    *x, reduce_op=op, scatter_dim=dim, out=x[1].new_empty(shape)
                ), None, {**ab, "bias": (16,)}, ("bias",),
            )  # fmt: skip
    yield "refused residual", Form(lambda *x: reduce(*x[:3], residual=x[3]), None, {**ab, "residual": (4 * ranks, 16)})


SAMPLE = {
    "gather several", "gather 1 with A", "symm_mem gather 2 2", "symm_mem scatter 0 sum", "scatter 2 avg residual",
    "reduce 2 avg", "refused out 0 avg",
}  # fmt: skip
"""Forms that a sample compiles, which takes longest, and of whose gradients it takes gradients."""


def every(context: autotune.Context, sample: bool) -> dict[str, Any]:
    """By form, operands that need a gradient, and way: the largest error, or a word. A sample has fewer of each."""
    found: dict[str, Any] = {}
    torch.use_deterministic_algorithms(True, warn_only=True)  # new memory holds no numbers
    for seed, (name, form) in enumerate(forms().items()):
        if sample and name.startswith("symm_mem") and seed % 2 and name not in SAMPLE:
            continue
        everyone = [[x.to(context.heap.device) for x in operands] for operands in form.drawn(seed)]
        sets = [needs for needs in itertools.product((True, False), repeat=len(form.shapes)) if any(needs)]
        if sample:
            alone = [needs for needs in sets if sum(needs) == 1]
            both = list(dict.fromkeys([sets[0], alone[seed % len(alone)]]))
            sets = both if name in SAMPLE else [both[seed % len(both)]]
        eager = functools.partial(form.call, context)
        torch._dynamo.reset()  # forms share code objects
        compiled = torch.compile(eager, backend="aot_eager", fullgraph=form.truth is not None)
        for needs in sets:
            of = f"{name}, of {' '.join(itertools.compress(form.shapes, needs))}"
            found[f"{of}, eager"] = once(form, eager, everyone, needs)
            if not sample or (needs is sets[0] and name in SAMPLE):
                found[f"{of}, compiled"] = once(form, compiled, everyone, needs)
        if form.truth is not None and everyone[0][0].numel() and (name in SAMPLE or not sample):
            found[f"{name}, twice"] = twice(form, eager, everyone)
    torch.use_deterministic_algorithms(False)
    return found


def once(form: Form, function: Any, everyone: list[list[Tensor]], needs: tuple[bool, ...], times: int = 1) -> Any:
    """The largest error of results and of gradients, accumulated over several calls; or why there are none."""
    rank = dist.get_rank()
    own = [x.clone().requires_grad_(needed) for x, needed in zip(everyone[rank], needs, strict=True)]
    try:
        results = listed(function(*own))
    except AutotuneError as refused:
        return str(refused)
    if not any(result.requires_grad for result in results):
        return "lost in silence"
    total(results, form.loss_of(rank)).backward()  # type: ignore[no-untyped-call]
    for _ in range(times - 1):
        total(listed(function(*own)), form.loss_of(rank)).backward()  # type: ignore[no-untyped-call]
    if [x.grad is not None for x in own] != list(needs):
        return f"gradients of {[x.grad is not None for x in own]}"
    if form.truth is None:
        return "there is a backward"
    wide = in_fp64(form, everyone)
    wanted = without_ranks(form, wide)
    ranks_loss(form, wanted).backward()  # type: ignore[no-untyped-call]
    grads = [(x.grad, y.grad) for x, y in zip(own, wide[rank], strict=True) if x.grad is not None]
    errors = [difference(mine / times, right) for mine, right in grads]
    return max(*errors, *(difference(x, y) for x, y in zip(results, wanted[rank], strict=True)))


def twice(form: Form, function: Any, everyone: list[list[Tensor]]) -> float:
    """The largest error of the gradients of gradients, of the operands that each rank has for itself."""
    rank = dist.get_rank()
    mine = [name not in form.shared for name in form.shapes]
    own = [x.clone().requires_grad_(needed) for x, needed in zip(everyone[rank], mine, strict=True)]
    leaves = list(itertools.compress(own, mine))
    squares = [result * result for result in listed(function(*own))]
    first = torch.autograd.grad(total(squares, form.loss_of(rank)), leaves, create_graph=True)
    total(list(first), rank).backward()  # type: ignore[no-untyped-call]
    wide = in_fp64(form, everyone)
    all_leaves = [x for operands in wide for x in itertools.compress(operands, mine)]
    all_squares = [[result * result for result in results] for results in without_ranks(form, wide)]
    grads = torch.autograd.grad(ranks_loss(form, all_squares), all_leaves, create_graph=True)
    parts = [total(list(grads[at * len(leaves) :][: len(leaves)]), at) for at in range(len(wide))]
    torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
    return max(difference(x.grad, y.grad) for x, y in zip(leaves, itertools.compress(wide[rank], mine), strict=True))


def loss(results: list[Tensor], ranks: list[int]) -> Tensor:
    """Of these ranks' results: weighted by small integers, which every type holds."""
    total = torch.zeros((), dtype=results[0].dtype, device=results[0].device)
    for rank, result in zip(ranks, results, strict=True):
        weights = (torch.arange(result.numel(), device=result.device) * 5 + rank) % 7 - 3
        total = total + (result * weights.view(result.shape).to(result.dtype)).sum()
    return total


def total(results: list[Tensor], rank: int) -> Tensor:
    return torch.stack([loss([result], [rank + 3 * number]) for number, result in enumerate(results)]).sum()


def without_ranks(form: Form, wide: list[list[Tensor]]) -> list[list[Tensor]]:
    assert form.truth is not None
    return [listed(each) for each in form.truth(*map(list, zip(*wide, strict=True)))]


def ranks_loss(form: Form, results: list[list[Tensor]]) -> Tensor:
    """The sum of all ranks' losses; of one result that all have, there is one."""
    losses = [total(each, rank) for rank, each in enumerate(results)]
    return torch.stack(losses[: 1 if form.once else None]).sum()


def in_fp64(form: Form, everyone: list[list[Tensor]]) -> list[list[Tensor]]:
    wide = [[x.double().requires_grad_() for x in operands] for operands in everyone]
    return [
        [wide[0 if name in form.shared else rank][at] for at, name in enumerate(form.shapes)]
        for rank in range(len(wide))
    ]


def difference(grad: Any, right: Any) -> float:
    """Relative to what is right, or absolute where that is zero."""
    right = torch.zeros_like(grad) if right is None else right
    return error(grad, right.float()) if right.norm() else float(grad.norm())
