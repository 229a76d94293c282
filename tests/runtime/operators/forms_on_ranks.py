"""Gradients through every public function, on every rank: of all sets of operands, against torch without ranks."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
import torch.distributed as dist
from calls import error, listed
from gradient_forms import Form, Tensor, forms

import autotune
from autotune.errors import AutotuneError

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
