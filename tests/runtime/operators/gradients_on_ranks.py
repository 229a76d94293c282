"""Functions that the tests of gradients run on every rank."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from calls import HEAP, call, said
from forms_on_ranks import every
from gradient_cases import Operands, Tensor, drawn, expected, few, in_fp64, kinds, loss, own_loss, worst
from torch.utils.checkpoint import checkpoint

import autotune


def gradients(arguments: tuple[str, bool]) -> dict[str, Any]:
    """All of it, on the same ranks and in the same context; or a sample, with checkpoints and ``gradcheck`` of one
    operator alone.
    """
    url, sample = arguments
    with autotune.Context(HEAP, url=url) as context:
        return {
            "every": every(context, sample),
            "wider": wider(context),
            "gathered": dict(gathered(context)),
            "stored": stored(context),
            "ways": ways(context, sample),
            "autocast": autocast(context),
            "refused": refused(context),
        }


def wider(context: autotune.Context) -> float:
    """The error of gradients of bf16 where the result is fp32."""
    problem = next(each for each in kinds("bf16") if not each.bias)
    everyone = drawn(context, problem)
    a, b, _ = own = everyone[dist.get_rank()]
    assert a is not None and b is not None
    own_loss(problem, autotune.all_gather_gemm(context, a, b, out_dtype=torch.float32)).backward()
    return worst(own, expected(problem, everyone))


def gathered(context: autotune.Context) -> Iterator[tuple[str, float]]:
    """Errors of gradients where each rank's loss comes from C, from the gathered A that is returned with it, or from
    both; other ranks' losses may come from others.
    """
    ranks, rank = range(dist.get_world_size()), dist.get_rank()

    def total(results: tuple[Tensor, Tensor], of: str, rank: int) -> Tensor:
        parts = [loss([result], [rank + 3 * which]) for which, result in enumerate(results) if "CA"[which] in of]
        return torch.stack(parts).sum()

    for problem in (each for each in kinds("fp32") if each.workload == "all_gather_gemm" and each.bias):
        for chosen in itertools.product(("C", "A", "CA"), repeat=len(ranks)):
            everyone = drawn(context, problem)
            own = everyone[rank]
            dim = 0 if problem.rows_layout else -1
            results = autotune.all_gather_gemm_with_gathered(context, *own, gather_dim=dim)  # type: ignore[arg-type]
            total(results, chosen[rank], rank).backward()
            wide = [in_fp64(each) for each in everyone]
            whole = torch.cat([a for a, *_ in wide if a is not None], dim)
            products = [whole @ b if bias is None else whole @ b + bias for _, b, bias in wide]
            losses = [total((c, whole), of, each) for each, of, c in zip(ranks, chosen, products, strict=True)]  # type: ignore[arg-type]
            torch.stack(losses).sum().backward()
            right = tuple(None if x is None else x.grad for x in wide[rank])
            yield f"{problem.layout} {' '.join(chosen)}", worst(own, right)


def stored(context: autotune.Context) -> list[str]:
    """The problems whose B has a gradient that does not lie in memory as B does, and so is copied."""
    found = []
    for problem in kinds("fp32"):
        own = drawn(context, problem)[dist.get_rank()]
        b = own[1]
        assert b is not None
        kept = {"keep_gathered": True} if problem.workload == "all_gather_gemm" else {}
        (grad,) = torch.autograd.grad(own_loss(problem, call(context, problem, own, **kept)), [b])
        if grad.stride() != b.stride():
            found.append(f"{problem}: {grad.stride()}, B {b.stride()}")
    return found


def ways(context: autotune.Context, sample: bool) -> dict[str, float]:
    """Errors through a checkpoint, in a compiled function, and after two calls."""
    found = {}
    for problem in few():

        def once(*operands: Any, problem: Any = problem, **more: Any) -> Tensor:
            return own_loss(problem, torch.nn.functional.relu(call(context, problem, operands, **more)) * 2)

        def reset(problem: Any = problem) -> Operands:
            return drawn(context, problem)[dist.get_rank()]

        own = reset()
        once(*own).backward()
        right = tuple(None if x is None else x.grad for x in own)
        compiled = torch.compile(once, backend="aot_eager", fullgraph=True)
        attempts: dict[str, Callable[..., Tensor]] = {
            "compiled": compiled,
            "checkpoint": lambda *x, once=once: checkpoint(once, *x, use_reentrant=False),
            "kept": lambda *x, once=once: once(*x, keep_gathered=True),
            "compiled kept": lambda *x, compiled=compiled: compiled(*x, keep_gathered=True),
            "compiled checkpoint": lambda *x, compiled=compiled: checkpoint(compiled, *x, use_reentrant=False),
        }
        for name, attempt in attempts.items():
            if ("kept" in name or ("checkpoint" in name and sample)) and problem.workload != "all_gather_gemm":
                continue
            own = reset()
            attempt(*own).backward()
            attempt(*own).backward()
            found[f"{problem.workload} {name}"] = worst(own, right, times=2)
    return found


def autocast(context: autotune.Context) -> dict[str, float]:
    """Errors of results and gradients of fp32 operands under autocast, eager and compiled; their types are checked."""
    found = {}
    kind = context.heap.device.type
    backend = "inductor" if kind == "cuda" else "aot_eager"
    for problem in few():
        everyone = drawn(context, problem)

        def cast(*operands: Any, problem: Any = problem, **more: Any) -> Tensor:
            with torch.autocast(kind, dtype=torch.bfloat16):
                return call(context, problem, operands, **more)

        functions: dict[str, Any] = {"eager": cast}
        if problem.workload == "all_gather_gemm":
            functions["compiled"] = torch.compile(cast, backend=backend)
            functions["kept"] = functools.partial(cast, keep_gathered=True)
        for name, function in functions.items():
            own = tuple(None if x is None else x.detach().clone().requires_grad_() for x in everyone[dist.get_rank()])
            result = function(*own)
            assert result.dtype == torch.bfloat16
            own_loss(problem, result.float()).backward()
            key = f"{problem.workload} {name}"
            found[key] = max(found.get(key, 0.0), worst(own, expected(problem, everyone)))
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
    whole, part = torch.empty(sum(rows), 16, device=device), torch.empty(8, 16 // ranks, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        double = said(lambda: autotune.gemm_all_reduce(context, a, b, torch.ones(16, device=device).double()))
    found = {
        "autocast of fp64": double,
        "fp8 op": said(lambda: _dispatched(*fp8, **scaled)),
        "in place": said(lambda: autotune.all_gather_gemm(context, shard, b.clone().requires_grad_(), in_place=True)),
        "out of rows": said(lambda: autotune.all_gather_gemm(context, needy[rank:], b, rows=rows, out=whole)),
        "out of columns": said(lambda: autotune.gemm_reduce_scatter(context, needy, b, scatter_dim=1, out=part)),
        "invalid": said(lambda: autotune.gemm_reduce_scatter(context, needy if last else a, b[1:])),
        "ranks": said(lambda: autotune.gemm_reduce_scatter(context, needy if last else a, b)),
        "a alone": said(lambda: autotune.gemm_all_reduce(context, needy if last else a, b)),
    }
    empty = torch.ones(0, 32, device=device, requires_grad=True)
    weight = b.clone().requires_grad_()
    autotune.gemm_reduce_scatter(context, empty, weight).sum().backward()
    assert empty.grad is not None and weight.grad is not None
    found["empty"] = str((list(empty.grad.shape), float(weight.grad.norm())))
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
