"""Gradients of the operators with a GEMM: right in every way that torch computes them, or refused."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from calls import HEAP, WORST, listed, said, url
from gradient_forms import (
    COLUMNS,
    DEPTH,
    Form,
    Tensor,
    difference,
    every,
    forms,
    in_fp64,
    loss,
    once,
    total,
    without_ranks,
)
from ranks_of_functions import run_ranks
from torch.utils.checkpoint import checkpoint
from two_ranks import A_GPU_EACH, sampled

import autotune

OPERATORS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")
FP32 = 1e-5

Pair = dict[str, list[Any]]


@pytest.fixture(scope="module", params=sampled(A_GPU_EACH))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    gpu, sample = request.param
    answers = run_ranks(__file__, "gradients", 2, folder, gpu=gpu, argument=(url(folder), sample))
    return {"sample": [sample], **{name: [answer[name] for answer in answers] for name in answers[0]}}


def test_gradients_through_every_public_function_are_torchs_or_refused(pair: Pair) -> None:
    for found in pair["every"]:
        right = {name: each for name, each in found.items() if isinstance(each, float) and each < FP32}
        rest = {name: each for name, each in found.items() if name not in right}
        assert all(name.startswith("refused ") and "no backward" in str(each) for name, each in rest.items()), rest
        assert not any(name.startswith("refused ") for name in right)


def test_a_result_of_a_wider_type_has_gradients(pair: Pair) -> None:
    assert max(pair["wider"]) < WORST


def test_each_rank_takes_its_loss_from_c_from_the_gathered_a_or_from_both(pair: Pair) -> None:
    for errors in pair["gathered"]:
        assert len(errors) == 2 * 3**2
        assert max(errors.values()) < FP32, errors


def test_the_gradient_of_b_lies_as_b_does_where_nothing_is_gathered_for_it(pair: Pair) -> None:
    assert pair["stored"] == [[], []]


def test_checkpoints_accumulation_and_compilers_change_nothing(pair: Pair) -> None:
    for errors in pair["ways"]:
        ways = {f"{name} compiled" for name in OPERATORS}
        ways |= {f"all_gather_gemm {way}" for way in ("kept", "compiled kept")}
        checkpointed = OPERATORS[: 1 if pair["sample"][0] else None]
        ways |= {f"{name} {way}" for name in checkpointed for way in ("checkpoint", "compiled checkpoint")}
        assert set(errors) == ways
        assert max(errors.values()) < FP32, errors


def test_autocast_takes_operands_as_for_a_matmul(pair: Pair) -> None:
    for errors in pair["autocast"]:
        ways = {f"{name} eager" for name in (*OPERATORS, "residual")}
        assert set(errors) == ways | {
            "all_gather_gemm compiled",
            "all_gather_gemm kept",
            "residual compiled",
            "residual avg",
        }
        assert min(errors.values()) > FP32 and max(errors.values()) < WORST, errors


def test_calls_without_a_backward_are_refused_and_ranks_that_differ_are_told_so(pair: Pair) -> None:
    for told in pair["refused"]:
        for name in ("fp8 op", "in place", "out of rows"):
            assert told[name].startswith("InvalidProblem") and "requires a gradient" in told[name], told
        for name in ("invalid", "autocast of fp64"):
            assert told[name].startswith("InvalidProblem"), "on all ranks, whichever need a gradient"
        assert told["ranks"].startswith("RanksDisagree") and told["ranks of a bias"].startswith("RanksDisagree"), told
        assert told["a alone"] == "no error"  # its backward exchanges nothing
        assert told["right"] == "True"


FEW = {"all_gather_gemm": "gather kept False", "gemm_reduce_scatter": "scatter", "gemm_all_reduce": "reduce 1 sum"}


def gradients(arguments: tuple[str, bool]) -> dict[str, Any]:
    """All of it in one context; a sample has checkpoints and gradients of gradients of one operator alone."""
    url, sample = arguments
    with autotune.Context(HEAP, url=url) as context:
        return {
            "every": every(context, sample),
            "wider": wider(context),
            "gathered": gathered(context),
            "stored": stored(context),
            "ways": ways(context, sample),
            "autocast": autocast(context),
            "refused": refused(context),
        }


def on_device(context: autotune.Context, form: Form) -> list[list[Tensor]]:
    return [[x.to(context.heap.device) for x in operands] for operands in form.drawn(1)]


def wider(context: autotune.Context) -> float:
    form = forms()[FEW["all_gather_gemm"]]
    everyone = [[a.bfloat16(), b.bfloat16(), bias] for a, b, bias in on_device(context, form)]
    call = functools.partial(autotune.all_gather_gemm, context, out_dtype=torch.float32)
    return float(once(form, call, everyone, (True, True, True)))


def gathered(context: autotune.Context) -> dict[str, float]:
    """Errors of gradients where each rank's loss is of C, of the gathered A, or of both, in all combinations."""
    ranks, rank, found = range(dist.get_world_size()), dist.get_rank(), {}
    for name in ("gather 0 with A", "gather -1 with A"):
        form = forms()[name]
        everyone = on_device(context, form)
        for chosen in itertools.product(("C", "A", "CA"), repeat=len(ranks)):

            def loss_of(results: list[Tensor], at: int, chosen: tuple[str, ...] = chosen) -> Tensor:
                return total([each for each, kind in zip(results, "CA", strict=True) if kind in chosen[at]], at)

            own = [x.clone().requires_grad_() for x in everyone[rank]]
            loss_of(listed(form.call(context, *own)), rank).backward()  # type: ignore[no-untyped-call]
            wide = in_fp64(form, everyone)
            losses = [loss_of(*pair) for pair in zip(without_ranks(form, wide), ranks, strict=True)]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            errors = [difference(x.grad, y.grad) for x, y in zip(own, wide[rank], strict=True)]
            found[f"{name} {' '.join(chosen)}"] = max(errors)
    return found


def stored(context: autotune.Context) -> list[str]:
    """The calls whose B has a gradient that does not lie in memory as B does, and so is copied."""
    device, depth = context.heap.device, DEPTH * dist.get_world_size()
    gather = functools.partial(autotune.all_gather_gemm, context, keep_gathered=True)
    calls = {
        "gather": (gather, DEPTH),
        "gather k": (functools.partial(gather, gather_dim=-1), depth),
        "scatter": (functools.partial(autotune.gemm_reduce_scatter, context), DEPTH),
        "reduce": (functools.partial(autotune.gemm_all_reduce, context), DEPTH),
    }
    found = []
    for name, (call, rows) in calls.items():
        a = torch.ones(8, DEPTH, device=device, requires_grad=True)
        for b in (torch.ones(rows, COLUMNS, device=device), torch.ones(COLUMNS, rows, device=device).t()):
            (grad,) = torch.autograd.grad(loss([call(a, b.requires_grad_())], [0]), [b])
            if grad.stride() != b.stride():
                found.append(f"{name}: {grad.stride()}, B {b.stride()}")
    return found


def ways(context: autotune.Context, sample: bool) -> dict[str, float]:
    """Errors through a checkpoint, in a compiled function, and after two calls, with a ReLU behind the operator."""
    found = {}
    for operator, name in FEW.items():
        plain, kept = forms()[name], forms()["gather kept True"]
        form = dataclasses.replace(
            plain, truth=lambda *x, of=plain.truth: [[_relu(c) for c in listed(r)] for r in of(*x)]
        )
        once_more = functools.partial(_relued, plain.call, context)
        torch._dynamo.reset()
        compiled = torch.compile(once_more, backend="aot_eager", fullgraph=True)
        attempts: dict[str, Any] = {"compiled": compiled}
        if not sample or operator == "all_gather_gemm":
            attempts["checkpoint"] = functools.partial(checkpoint, once_more, use_reentrant=False)
            attempts["compiled checkpoint"] = functools.partial(checkpoint, compiled, use_reentrant=False)
        if operator == "all_gather_gemm":
            attempts["kept"] = functools.partial(_relued, kept.call, context)
            attempts["compiled kept"] = torch.compile(attempts["kept"], backend="aot_eager", fullgraph=True)
        for way, attempt in attempts.items():
            needs = (True,) * len(form.shapes)
            found[f"{operator} {way}"] = once(form, attempt, on_device(context, form), needs, times=2)
    return found


def _relued(call: Any, *operands: Any) -> Tensor:
    return _relu(call(*operands))


def _relu(result: Tensor) -> Tensor:
    return torch.nn.functional.relu(result) * 2


def autocast(context: autotune.Context) -> dict[str, float]:
    """Errors of results and gradients of fp32 operands under autocast, eager and compiled; their types are checked."""
    found = {}
    kind = context.heap.device.type
    backend = "inductor" if kind == "cuda" else "aot_eager"
    for operator, name in FEW.items():
        form = forms()[name]

        def cast(*operands: Any, of: str = operator, **more: Any) -> Tensor:
            with torch.autocast(kind, dtype=torch.bfloat16):
                result: Tensor = getattr(autotune, of)(context, *operands, **more)
            assert result.dtype == torch.bfloat16
            return result

        functions: dict[str, Any] = {"eager": cast}
        if operator == "all_gather_gemm":
            functions["compiled"] = torch.compile(cast, backend=backend)
            functions["kept"] = functools.partial(cast, keep_gathered=True)
        for way, function in functions.items():
            found[f"{operator} {way}"] = once(form, function, on_device(context, form), (True,) * len(form.shapes))
    generator = torch.Generator().manual_seed(5)
    a, b, residual = (torch.randn(*shape, generator=generator).to(kind) for shape in ((8, 32), (32, 16), (8, 16)))

    def without_backward(a: Tensor, b: Tensor, residual: Tensor, reduce_op: str = "sum") -> Tensor:
        with torch.autocast(kind, dtype=torch.bfloat16):
            return autotune.gemm_all_reduce(context, a, b, residual=residual, reduce_op=reduce_op)

    for name, function, times in (
        ("eager", without_backward, dist.get_world_size()),
        ("compiled", torch.compile(without_backward, backend=backend), dist.get_world_size()),
        ("avg", functools.partial(without_backward, reduce_op="avg"), 1),
    ):
        result = function(a.bfloat16(), b, residual)
        assert result.dtype == torch.bfloat16
        total = a @ b * times + residual
        found[f"residual {name}"] = float((result.float() - total).norm() / total.norm())
    return found


def refused(context: autotune.Context) -> dict[str, str]:
    """The errors of calls that have no backward, and of ranks that need different gradients."""
    ranks, device = dist.get_world_size(), context.heap.device
    a, b = torch.ones(8, 32, device=device), torch.ones(32, 16, device=device)
    needy = a.clone().requires_grad_()
    small = torch.ones(8, 32, device=device).to(torch.float8_e4m3fn)
    scaled = {"scale_a": torch.ones(1, device=device).requires_grad_(), "scale_b": torch.ones(1, device=device)}
    fp8 = (context, small, torch.ones(16, 32, device=device).to(torch.float8_e4m3fn).t())
    problem = autotune.AllGatherGemm(m=8 * ranks, n=16 * ranks, k=32, world_size=ranks, dtype="fp32", in_place=True)
    shard = autotune.all_gather_shard(context, problem)
    rank = dist.get_rank()
    last, rows = rank == ranks - 1, [8 - each for each in range(ranks)]
    whole = torch.empty(sum(rows), 16, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        double = said(lambda: autotune.gemm_all_reduce(context, a, b, torch.ones(16, device=device).double()))
    found = {
        "autocast of fp64": double,
        "fp8 op": said(lambda: _dispatched(*fp8, **scaled)),
        "in place": said(lambda: autotune.all_gather_gemm(context, shard, b.clone().requires_grad_(), in_place=True)),
        "out of rows": said(lambda: autotune.all_gather_gemm(context, needy[rank:], b, rows=rows, out=whole)),
        "invalid": said(lambda: autotune.gemm_reduce_scatter(context, needy if last else a, b[1:])),
        "ranks": said(lambda: autotune.gemm_reduce_scatter(context, needy if last else a, b)),
        "a alone": said(lambda: autotune.gemm_all_reduce(context, needy if last else a, b)),
    }
    if ranks > 1:
        wide = torch.ones(32, 32, device=device)
        bias = torch.ones(32, device=device, requires_grad=last)
        found["ranks of a bias"] = said(lambda: (  # type: ignore[arg-type,return-value]
            autotune.gemm_reduce_scatter(context, a, wide, bias, scatter_dim=1),
            autotune.gemm_all_reduce(context, a, wide),
        ))  # fmt: skip
        found["right"] = str(bool((autotune.gemm_reduce_scatter(context, a, b) == 32 * ranks).all()))
    return found


def _dispatched(context: autotune.Context, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    from autotune.runtime.operator import OPERATORS

    return OPERATORS["gemm_all_reduce"].dispatched(context.handle, a, b, None, scale_a, scale_b)  # type: ignore[arg-type]
