"""Functions that the tests of what follows a GEMM in an operator run on every rank."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from calls import HEAP, WORST, configs, drawn, error, said, schema_arguments

import autotune
from autotune.workloads import workload

IN_FP8 = 0.04
"""Largest relative error of a result in e4m3 with scales."""


SPECIAL = (float("inf"), float("nan"), -float("inf"))

FEW = ("push", "bsp")
"""Modes of a sample: peers write, and the library gathers. The kernels' tests have each in every mode."""


def everything(arguments: tuple[str, bool]) -> dict[str, Any]:
    """Every answer of this module, in one context; or a sample, some of it in a FEW modes."""
    url, sample = arguments
    with autotune.Context(HEAP, url=url) as context:
        functions = (refused, compiled, residual, several, gathered, gathered_bits, infinite)
        found: dict[str, Any] = {function.__name__: function(context) for function in functions}
        found |= {"gated": gated(context, sample), "quantised": quantised(context, sample)}
        context.check()
    return found


def gated_problem(**more: Any) -> autotune.AllGatherGemm:
    ranks = dist.get_world_size()
    fields = {"m": 16 * ranks, "n": 48 * ranks, "k": 64, "b_order": "nk", "bias": True, "epilogue": "swiglu"}
    return autotune.AllGatherGemm(**{**fields, **more}, world_size=ranks)


def gated_operands(context: autotune.Context, problem: autotune.AllGatherGemm, seed: int = 3) -> tuple[Any, ...]:
    """Operands, and the reference in fp32."""
    operands, product = drawn(problem, seed, context.heap.device)
    gate, up = product.chunk(2, 1) if problem.halves else (product[:, ::2], product[:, 1::2])
    activation = torch.nn.functional.silu if problem.epilogue == "swiglu" else torch.nn.functional.gelu
    return operands, activation(gate) * up


def gated(context: autotune.Context, sample: bool) -> dict[str, bool]:
    """By problem and mode: a right result in a given tensor; by the looked-up config in a new one, too."""
    answers = {}
    for more in ({}, {"epilogue": "geglu", "gate_up": "interleaved"}):
        problem = gated_problem(**more)
        operands, expected = gated_operands(context, problem)
        options = {"epilogue": problem.epilogue, "gate_up": problem.gate_up}
        new = autotune.all_gather_gemm(context, *operands, **options)
        chosen = configs(problem, context.machine)
        if sample and more:
            chosen = [config for config in chosen if config["mode"] in FEW]
        for config in (None, *chosen):
            given = torch.full_like(new, float("nan"))
            assert autotune.all_gather_gemm(context, *operands, **options, config=config, out=given) is given
            mode = "looked up" if config is None else str(config["mode"])
            answers[f"{problem.epilogue} {mode}"] = max(error(new, expected), error(given, expected)) < WORST
        context.release()
    return answers


def quantised(context: autotune.Context, sample: bool) -> dict[str, bool]:
    """By mode: C of fp8 times its scales is right, also where C is next to zero; and torch's own checks pass."""
    problem = gated_problem(n=512 * dist.get_world_size(), quantised=True)
    operands, expected = gated_operands(context, problem)
    answers, quantising = {}, autotune.all_gather_gemm_quantised
    chosen = [config for config in configs(problem, context.machine) if not sample or config["mode"] in FEW]
    for config in (None, *chosen):
        c, scales = quantising(context, *operands, epilogue="swiglu", config=config)
        assert c.dtype == torch.float8_e4m3fn and scales.shape == (problem.m, 2) and scales.dtype == torch.float32
        mode = "looked up" if config is None else str(config["mode"])
        answers[mode] = error(c.float() * scales.repeat_interleave(128, 1), expected) < IN_FP8
    a, b, bias = operands
    shard = autotune.all_gather_shard(context, dataclasses.replace(problem, in_place=True)).copy_(a)
    c, scales = quantising(context, shard, b, bias, epilogue="swiglu", in_place=True)
    answers["in place"] = error(c.float() * scales.repeat_interleave(128, 1), expected) < IN_FP8
    c, scales = quantising(context, a * 2.0**-74, b, bias * 0, epilogue="swiglu")
    answers["next to zero"] = bool((scales > 0).all() and (c.float() == 0).all())
    special = bias.clone()
    special[256 : 256 + len(SPECIAL)] = torch.tensor(SPECIAL)
    for config in chosen:
        c, scales = quantising(context, a, b, special, epilogue="swiglu", config=config)
        wide = c.float() * scales.repeat_interleave(128, 1)
        beside = error(wide[:, len(SPECIAL) :], expected[:, len(SPECIAL) :]) < IN_FP8
        answers[f"special {config['mode']}"] = beside and bool(wide[:, : len(SPECIAL)].isnan().all())
    arguments = schema_arguments(context, problem, operands)
    checked = torch.library.opcheck(torch.ops.iris_autotune.all_gather_gemm_quantised.default, arguments)
    return {**answers, "opcheck": set(checked.values()) == {"SUCCESS"}}


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
        for config in configs(problem, context.machine):
            out = getattr(autotune, problem.workload)(context, a, b, wire="fp8", config=config).float()
            near = torch.isclose(out, expected, rtol=IN_FP8, equal_nan=True)
            found[f"{problem.workload} {config['mode']}"] = bool(near.all())
    return found


def refused(context: autotune.Context) -> dict[str, str]:
    (a, b, bias), _ = gated_operands(context, gated_problem())
    call = autotune.all_gather_gemm
    return {
        "word": said(lambda: call(context, a, b, bias, epilogue="relu")),
        "odd": said(lambda: call(context, a, b[:, :47], bias[:47], epilogue="swiglu")),
        "quantise": said(lambda: autotune.all_gather_gemm_quantised(context, a, b, bias, epilogue="swiglu")),
        "layout": said(lambda: call(context, a, b, bias, gate_up="interleaved")),
        "out": said(lambda: call(context, a, b, bias, epilogue="swiglu", out=a.new_empty(a.shape[0], b.shape[1]))),
    }


def compiled(context: autotune.Context) -> dict[str, Any]:
    """A compiled function gives what an eager one does, and torch's own checks pass."""
    problem = gated_problem()
    operands, _ = gated_operands(context, problem)

    def doubled(a: Any, b: Any, bias: Any) -> torch.Tensor:
        return autotune.all_gather_gemm(context, a, b, bias, epilogue="swiglu") * 2

    function = torch.compile(doubled, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        same = torch.equal(doubled(*operands), function(*operands))
        arguments = schema_arguments(context, problem, operands)
        operator = torch.ops.iris_autotune.all_gather_gemm.default
        checked = torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
    return {"same": same, "opcheck": sorted(set(map(str, checked.values())))}


def residual(context: autotune.Context) -> dict[str, bool]:
    """By operator and mode: a result with a residual, near to the reference; and in three dimensions, by ``avg``."""
    ranks, answers = dist.get_world_size(), {}
    size = {"m": 16 * ranks, "n": 32, "k": 32 * ranks, "bias": True, "residual": True, "world_size": ranks}
    for problem in (autotune.GemmReduceScatter(**size), autotune.GemmAllReduce(**size, deterministic=True)):
        (a, b, bias), product = drawn(problem, 5, context.heap.device)
        added = torch.randn_like(product).mul_(4).to(a.dtype)  # of its own on each rank, as its rows are
        if problem.workload == "gemm_all_reduce":
            dist.broadcast(added, 0)
        expected = product + added.float()
        operator = getattr(autotune, problem.workload)
        more = {"deterministic": True} if problem.workload == "gemm_all_reduce" else {}
        for config in (None, *configs(problem, context.machine)):
            found = operator(context, a, b, bias, residual=added, config=config, **more)
            mode = "looked up" if config is None else str(config["mode"])
            answers[f"{problem.workload} {mode}"] = error(found, expected) < WORST
        folded = operator(
            context,
            a[None],
            b,
            bias,
            residual=added[None],
            reduce_op="avg",
            **more,
            **({} if more else {"scatter_dim": 1}),
        )
        mean = (product - bias.float()) / ranks + bias.float() + added.float()
        answers[f"{problem.workload} folded"] = error(folded[0], mean) < WORST
        context.release()
    columns = torch.randn(16 * ranks, 32 // ranks, device=a.device).to(a.dtype)
    plain = autotune.gemm_reduce_scatter(context, a, b, scatter_dim=1)
    found = autotune.gemm_reduce_scatter(context, a, b, residual=columns, scatter_dim=1)
    answers["columns"] = error(found, plain.float() + columns.float()) < WORST
    place = columns.t().contiguous().t()  # where the kernels could write C's columns
    autotune.gemm_reduce_scatter(context, a, b, residual=place, scatter_dim=1, out=place)
    answers["columns in place"] = torch.equal(place, found)
    wrong = {
        "shape": said(lambda: autotune.gemm_all_reduce(context, a, b, residual=added[:-1])),
        "type": said(lambda: autotune.gemm_all_reduce(context, a, b, residual=added.float())),
        "strides": said(lambda: autotune.gemm_all_reduce(context, a, b, residual=added.t().contiguous().t())),
        "folded": said(lambda: autotune.gemm_all_reduce(context, a[None], b, residual=added)),
    }
    for name, text in wrong.items():
        answers[f"{name} refused"] = text.startswith("InvalidProblem: residual is [")
    return answers


WIDTHS = [32, 16, 48]


def several(context: autotune.Context) -> dict[str, Any]:
    """Three Bs and one gather: in both storage orders, folded, compiled; and Bs that do not lie side by side."""
    ranks, found = dist.get_world_size(), {}
    context.release()
    for order in ("kn", "nk"):
        problem = autotune.AllGatherGemm(
            m=16 * ranks, n=sum(WIDTHS) * ranks, k=64, b_order=order, bias=True, world_size=ranks
        )
        (a, b, bias), product = drawn(problem, 4, context.heap.device)
        expected = product.split(WIDTHS, dim=1)
        bs = list(b.split(WIDTHS, dim=1))
        apart = [(each.t().clone().t() if order == "nk" else each.contiguous()) for each in bs]
        again = autotune.side_by_side(apart)
        assert [each.stride() for each in again] == [each.stride() for each in bs]

        def call(a: Any, bs: Any, bias: Any) -> list[torch.Tensor]:
            return autotune.all_gather_gemm_several(context, a, bs, bias)

        results = [call(a, bs, bias), call(a, again, bias)]
        results.append([each[0] for each in autotune.all_gather_gemm_several(context, a[None], bs, bias, gather_dim=1)])
        results.append(torch.compile(call, backend="aot_eager", fullgraph=True)(a, apart, bias))
        errors = [error(mine, right) for each in results for mine, right in zip(each, expected, strict=True)]
        found[order] = max(errors) < WORST and len(errors) == 12
        found[f"{order} is one problem"] = len(context._choices._known) == 1
        context.release()
    call = autotune.all_gather_gemm_several
    found["refused"] = {
        "apart": said(lambda: call(context, a, apart, bias)),
        "order": said(lambda: call(context, a, bs[::-1], bias)),
        "depth": said(lambda: call(context, a, [bs[0], bs[1][:32]], bias)),
        "none": said(lambda: call(context, a, [], bias)),
    }
    return found


def gathered(context: autotune.Context) -> dict[str, Any]:
    """The gathered A beside C: by layout and mode, of fp8, compiled; a tensor of its own."""
    ranks, found = dist.get_world_size(), {}
    context.release()
    gathering = autotune.all_gather_gemm_with_gathered
    for layout, dim in (("rows", 0), ("k", -1)):
        problem = autotune.AllGatherGemm(
            m=16 * ranks, n=32 * ranks, k=32 * ranks, layout=layout, b_order="nk", gathered=True, world_size=ranks
        )
        (a, b, _), product = drawn(problem, 6, context.heap.device)
        shards = [torch.empty_like(a) for _ in range(ranks)]
        dist.all_gather(shards, a)
        whole = torch.cat(shards, dim)
        kept = []
        for config in (None, *configs(problem, context.machine)):
            options = {"gather_dim": dim, "config": config}
            c, mine = gathering(context, a, b, **options)
            twice, again = gathering(context, a * 2, b, **options, out=(torch.empty_like(c), torch.empty_like(mine)))
            right = error(c, product) < WORST and error(twice, product * 2) < WORST
            kept.append((mine, whole, again))
            mode = "looked up" if config is None else str(config["mode"])
            found[f"{layout} {mode}"] = right and torch.equal(mine, whole) and torch.equal(again, whole * 2)
        shard = autotune.all_gather_shard(context, dataclasses.replace(problem, in_place=True)).copy_(a)
        c, mine = gathering(context, shard, b, gather_dim=dim, in_place=True)
        found[f"{layout} in place"] = error(c, product) < WORST and torch.equal(mine, whole)
        found[f"{layout} stays"] = all(torch.equal(mine, right) for mine, right, _ in kept)

        def call(a: Any, b: Any, dim: int = dim) -> Any:
            return gathering(context, a, b, gather_dim=dim)

        if layout == "rows":  # the check of the other one's operator, below, does the same
            c, mine = torch.compile(call, backend="aot_eager", fullgraph=True)(a, b)
            found["rows compiled"] = error(c, product) < WORST and torch.equal(mine, whole)
    arguments = (context.handle, a, b, None, None, None, "k", False, "auto", False, "none", "halves", "")
    with torch.no_grad():
        checked = torch.library.opcheck(torch.ops.iris_autotune.all_gather_gemm_gathered.default, arguments)
    found["opcheck"] = set(map(str, checked.values())) == {"SUCCESS"}
    small, scales = a.to(torch.float8_e4m3fn), torch.ones(1, device=a.device)
    _, mine = gathering(context, small, b.t().to(small.dtype).t(), scale_a=scales, scale_b=scales, gather_dim=-1)
    found["fp8"] = mine.dtype == small.dtype and torch.equal(mine.float(), whole.to(small.dtype).float())
    pull = autotune.Config({
        "mode": "pull", "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2,
        "loads": "pointer", "schedule": "tile",
    })  # fmt: skip
    refusal = said(lambda: gathering(context, a, b, gather_dim=-1, config=pull))
    found["pull refused"] = "there is no gathered A to return" in refusal
    return found


def gathered_bits(context: autotune.Context) -> dict[str, bool]:
    """By mode and protocol: whatever bits A has, every rank gets the same ones, and they are A's, but for which NaN."""
    ranks, found = dist.get_world_size(), {}
    problem = autotune.AllGatherGemm(m=16 * ranks, n=32 * ranks, k=64, gathered=True, world_size=ranks)
    bits = torch.randint(-(1 << 15), 1 << 15, (problem.m, 64), generator=torch.Generator().manual_seed(8))
    bits[:, :8] = torch.tensor([0, -(1 << 15), 0x7F80, 0x7FC0, 0x7FFF, -1, -91, -92])
    bits = bits.to(torch.int16).to(context.heap.device)
    a, whole = (each.view(torch.bfloat16) for each in (bits.view(ranks, 16, 64)[context.heap.rank], bits))
    b = torch.ones(64, 32, device=bits.device).bfloat16()
    for config in workload(problem.workload).first_configs(problem, context.machine):
        way = f"{config['mode']} {config.get('protocol')}"
        if way not in found:
            _, mine = autotune.all_gather_gemm_with_gathered(context, a, b, config=config)
            everyones = torch.empty(ranks, *bits.shape, dtype=mine.dtype, device=mine.device)
            dist.all_gather(list(everyones), mine)
            same = (everyones.view(torch.int16) == mine.view(torch.int16)).all()
            right = (mine.view(torch.int16) == bits) | (mine.isnan() & whole.isnan())
            found[way] = bool(same & right.all())
    return found
