"""Functions that the tests of the operators of mixtures of experts run on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from calls import HEAP, WORST, configs, error, said

import autotune
from autotune.kernels.moe.routing import Kind, drawn_routing, planned

KINDS: tuple[Kind, ...] = ("plain", "holes", "one expert")
REPLAYS = 1000
FP8 = torch.float8_e4m3fn
TWICE = 5
"""A seed whose tokens name one expert twice."""


class Tokens:
    """A small problem, and draws of its operands on this rank with what a dispatch of them gives."""

    def __init__(self, context: autotune.Context) -> None:
        heap = context.heap
        size = 8 if heap.device.type == "cuda" else 1
        self.rank, self.device = heap.rank, heap.device
        self.problem = autotune.MoeDispatch(
            tokens=6 * size, hidden=64 * size, experts=4 * heap.world_size, top_k=3, world_size=heap.world_size
        )
        generator = torch.Generator().manual_seed(5)
        shape = heap.world_size, self.problem.tokens, self.problem.hidden
        self.every = torch.randn(shape, generator=generator).bfloat16().to(heap.device)

    def drawn(self, seed: int, kind: Kind = "plain") -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
        """This rank's x, ids and gates; the rows that it gets, their offsets, pairs and gates."""
        routing = drawn_routing(self.problem, self.device, seed, kind)
        if seed == TWICE:
            routing.ids[..., 2] = routing.ids[..., 0]
        plan = planned(self.problem, routing, self.rank)
        end = int(plan.offsets[-1])
        every = self.every * 2.0 ** (seed % 3)  # what earlier calls have left in an inbox is wrong
        rows = every.flatten(0, 1)[plan.pairs[:end] // self.problem.top_k]
        operands = every[self.rank], routing.ids[self.rank].clone(), routing.gates[self.rank].clone()
        return operands, [rows, plan.offsets, plan.pairs[:end], plan.gates[:end]]

    def same(self, found: Any, expected: list[torch.Tensor]) -> bool:
        """True if all that exists is the same to the bit."""
        return all(torch.equal(each[: one.shape[0]], one) for each, one in zip(found, expected, strict=True))


class Multiplied(Tokens):
    """The same with a grouped GEMM behind it."""

    def __init__(self, context: autotune.Context) -> None:
        super().__init__(context)
        sizes = {name: getattr(self.problem, name) for name in ("tokens", "hidden", "experts", "top_k", "world_size")}
        self.problem: Any = autotune.MoeDispatchGemm(width=self.problem.hidden // 2, **sizes)
        shape = self.problem.local_experts, self.problem.columns, self.problem.hidden
        b = torch.randn(shape, generator=torch.Generator().manual_seed(6 + self.rank)) * self.problem.hidden**-0.5
        self.b = b.bfloat16().to(self.device).transpose(1, 2)

    def drawn(self, seed: int, kind: Kind = "plain") -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
        operands, (rows, offsets, *others) = super().drawn(seed, kind)
        bounds = offsets.tolist()
        parts = [rows[begin:end].float() @ self.b[e].float() for e, (begin, end) in enumerate(pairwise(bounds))]
        gate, up = torch.cat(parts).chunk(2, dim=1)
        return (*operands, self.b), [torch.nn.functional.silu(gate) * up, offsets, *others]

    def same(self, found: Any, expected: list[torch.Tensor]) -> bool:
        """The plan to the bit, rows as near as they are rounded."""
        rows = expected[0]
        near = not len(rows) or error(found[0][: len(rows)], rows) < WORST
        return near and super().same(found[1:], expected[1:])


def calls(url: str) -> dict[str, Any]:
    """Whether eager, compiled and later calls are right, by mode; and what is refused."""
    with autotune.Context(HEAP, url=url) as context:
        tokens = Tokens(context)
        return {
            "eager": eager(context, tokens), "modes": modes(context, tokens),
            "gemm modes": modes(context, Multiplied(context)), "too many rows": too_many(context),
        }  # fmt: skip


def eager(context: autotune.Context, tokens: Tokens) -> bool:
    right = []
    for seed, kind in enumerate(KINDS):
        operands, expected = tokens.drawn(seed, kind)
        found = autotune.moe_dispatch(context, *operands, experts=tokens.problem.experts)
        right.append(tokens.same(found, expected))
        outs = tuple(torch.empty_like(each) for each in found)
        again = autotune.moe_dispatch(context, *operands, experts=tokens.problem.experts, out=outs)
        right.append(all(a is b for a, b in zip(again, outs, strict=True)) and tokens.same(outs, expected))
    return all(right)


def each_mode(context: autotune.Context, tokens: Tokens) -> Iterator[tuple[str, Any]]:
    """A mode, and the operator by a config of it."""
    for config in configs(tokens.problem, context.machine):

        def call(*operands: torch.Tensor, chosen: autotune.Config = config) -> Any:
            operator = getattr(autotune, tokens.problem.workload)
            found: Any = operator(context, *operands, experts=tokens.problem.experts, config=chosen)
            return found

        yield str(config["mode"]), call


def modes(context: autotune.Context, tokens: Tokens) -> dict[str, bool]:
    """By mode whether it is right where tokens name an expert twice, and for a routing of another kind for each mode;
    the kernels' tests have all in each.
    """
    found = {}
    for number, (mode, call) in enumerate(each_mode(context, tokens)):
        routings = tokens.drawn(number, KINDS[number % len(KINDS)]), tokens.drawn(TWICE)
        right = [tokens.same(call(*operands), expected) for operands, expected in routings]  # all ranks call both
        found[mode] = all(right)
    return found


def too_many(context: autotune.Context) -> dict[str, list[Any]]:
    """By the ways to dispatch: the error where every token names the first rank's only expert twice, what the next call
    says of it, and whether this rank's rows, or their gates, are NaN.
    """
    world, device, found = context.heap.world_size, context.heap.device, {}
    x, ids, gates = (torch.ones(4, width, device=device) for width in (64, 2, 2))
    problem = autotune.MoeDispatch(tokens=4, hidden=64, experts=world, top_k=2, world_size=world)
    outs = [torch.zeros(problem.capacity, 64, device=device).bfloat16()]
    outs += [torch.zeros(size, dtype=torch.int32, device=device) for size in (2, problem.capacity)]
    outs += [torch.zeros(problem.capacity, device=device)]
    for config in configs(problem, context.machine):

        def call(config: Any = config) -> None:
            given = context, x.bfloat16(), ids.int() * 0, gates
            autotune.moe_dispatch(*given, experts=world, config=config, out=outs)

        first = said(call)  # under the interpreter a call of ours checks itself
        if device.type == "cuda":
            torch.cuda.synchronize()
        context.heap.barrier()
        checked = said(context.check)
        again = said(call) if config["mode"] != "bsp" else None
        found[f"{config['mode']} {config.get('exchange', '')}".strip()] = [
            first, checked, again, any(bool(each.isnan().all()) for each in (outs[0], outs[-1])),
        ]  # fmt: skip
        context.release()
    return found


def replays(url: str) -> dict[str, int]:
    """By mode: how many replays of one captured call, each with other routing, were right."""
    with autotune.Context(HEAP, url=url) as context:
        found = {}
        for tokens in (Tokens(context), Multiplied(context)):
            for mode, call in each_mode(context, tokens):
                if mode != "bsp":
                    found[f"{tokens.problem.workload} {mode}"] = _replayed(tokens, call)
        return found


def _replayed(tokens: Tokens, call: Any) -> int:
    operands, _ = tokens.drawn(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(*operands)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(*operands)
    right = 0
    for seed in range(REPLAYS):
        given, expected = tokens.drawn(100 + seed, KINDS[seed % 3])
        for place, value in zip(operands, given, strict=True):
            place.copy_(value)
        graph.replay()
        right += tokens.same(found, expected)
    return right
