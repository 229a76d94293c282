"""Functions that the tests of ``all_reduce_norm``, an operator with two results, run on every rank."""

from __future__ import annotations

from typing import Any

import torch
from calls import HEAP, WORST, configs, error, said

import autotune

Pair = tuple[torch.Tensor, torch.Tensor]


def drawn(context: autotune.Context, seed: int, n: int = 264) -> tuple[tuple[torch.Tensor, ...], Pair]:
    """This rank's operands, five rows in bf16, and both references."""
    generator, world = torch.Generator().manual_seed(seed), context.heap.world_size
    parts = torch.randn(world, 5, n, generator=generator).bfloat16()
    residual, weight = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((5, n), (n,)))
    total = parts.float().sum(0) + residual.float()
    normed = torch.nn.functional.rms_norm(total, (n,), weight.float(), 1e-2)
    to = context.heap.device
    return tuple(x.to(to) for x in (parts[context.heap.rank], residual, weight)), (normed.to(to), total.to(to))


def worst(results: Any, references: Pair) -> float:
    return max(error(result, reference) for result, reference in zip(results, references, strict=True))


def calls(url: str) -> dict[str, Any]:
    """Errors of eager, repeated and compiled calls, with outputs given and not; calls in each mode; and what is
    refused.
    """
    with autotune.Context(HEAP, url=url) as context:
        return {
            "eager": eager(context), "compiled": compiled(context), "modes": modes(context),
            "registered": registered(context), "refused": refused(context),
        }  # fmt: skip


def eager(context: autotune.Context) -> float:
    errors = []
    for seed in range(2):
        operands, references = drawn(context, seed)
        kept = operands[0].clone()
        errors.append(worst(autotune.all_reduce_norm(context, *operands, eps=1e-2), references))
        outs = torch.empty_like(kept), torch.empty_like(kept)
        results = autotune.all_reduce_norm(context, *operands, eps=1e-2, out=outs)
        assert results[0] is outs[0] and results[1] is outs[1] and torch.equal(operands[0], kept)
        errors.append(worst(outs, references))
        overwritten = autotune.all_reduce_norm(context, *operands, eps=1e-2, in_place=True)
        errors.append(worst(overwritten, references))
    return max(errors)


def modes(context: autotune.Context) -> dict[str, list[bool]]:
    """By mode: x is as it was after a call, and after one in place; the results of both are right."""
    found = {}
    for config in configs(autotune.AllReduceNorm(m=5, n=264, world_size=context.heap.world_size), context.machine):
        (x, *others), references = drawn(context, 9)
        kept, unchanged = x.clone(), []
        for in_place in (False, True):
            more = {"eps": 1e-2, "in_place": in_place, "config": config}
            assert worst(autotune.all_reduce_norm(context, x, *others, **more), references) < WORST
            unchanged.append(torch.equal(x, kept))
        found[str(config["mode"])] = unchanged
    return found


def compiled(context: autotune.Context) -> float:
    def layer(inputs: Any, outs: Pair) -> Any:
        normed, total = autotune.all_reduce_norm(context, *inputs, eps=1e-2)
        autotune.all_reduce_norm(context, *inputs, eps=1e-2, out=outs)
        return normed * 2, total * 2

    function = torch.compile(layer, backend="inductor" if torch.cuda.is_available() else "aot_eager", fullgraph=True)
    errors = []
    for seed in (20, 21):
        operands, references = drawn(context, seed)
        outs = torch.empty_like(operands[0]), torch.empty_like(operands[0])
        doubled = function(operands, outs)
        errors += [worst([each / 2 for each in doubled], references), worst(outs, references)]
    return max(errors)


def registered(context: autotune.Context) -> list[str]:
    """Verdicts of torch's own checks; what its graphs compute is seen in ``compiled``."""
    operands, _ = drawn(context, 1)
    arguments = (context.handle, *operands, 1e-2, False, "")
    outs = {name: torch.empty_like(operands[0]) for name in ("out_normed", "out_total")}
    operator, verdicts = torch.ops.iris_autotune.all_reduce_norm, set()
    checks = "test_schema", "test_faketensor", "test_autograd_registration"
    for overload, more in ((operator.default, {}), (operator.out, outs)):
        found = torch.library.opcheck(overload, arguments, more, test_utils=checks)
        verdicts |= {str(each) for each in found.values()}
    return sorted(verdicts)


def refused(context: autotune.Context) -> dict[str, str]:
    (x, residual, weight), _ = drawn(context, 2)
    call = autotune.all_reduce_norm
    return {
        "shape": said(lambda: call(context, x, residual[:4], weight)),
        "stride": said(lambda: call(context, x.t().contiguous().t(), residual, weight)),
        "type": said(lambda: call(context, x, residual.float(), weight)),
        "width": said(lambda: call(context, x[:, :100].contiguous(), residual[:, :100].contiguous(), weight[:100])),
        "eps": said(lambda: call(context, x, residual, weight, eps=-1.0)),
        "overlap": said(lambda: call(context, x, residual, weight, out=(torch.empty_like(x), x))),
        "one out": said(lambda: call(context, x, residual, weight, out=(torch.empty_like(x),))),
        "one place": said(lambda: call(context, x, residual, weight, out=(residual.clone(),) * 2)),
        "gradient": said(lambda: call(context, x, residual, weight.clone().requires_grad_())),
    }
