"""Functions that the tests of the operators that combine run on every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from calls import HEAP, configs, said

import autotune
from autotune.kernels.moe.routing import Kind, drawn_routing
from autotune.task import Task
from autotune.workloads import workload

KINDS: tuple[Kind, ...] = ("plain", "holes", "one expert")
REPLAYS = 1000

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Layer:
    """A small mixture of experts: SwiGLU between two matrices of each expert; every rank knows all of them."""

    def __init__(self, context: autotune.Context) -> None:
        heap = context.heap
        self.context, self.rank, self.device = context, heap.rank, heap.device
        size = 8 if heap.device.type == "cuda" else 1
        self.sizes = {"tokens": 6 * size, "hidden": 64 * size, "experts": 3 * heap.world_size, "top_k": 3}
        self.problem = autotune.MoeCombine(**self.sizes, world_size=heap.world_size)
        self.fused = autotune.MoeGemmCombine(**self.sizes, width=32 * size, world_size=heap.world_size)
        generator = torch.Generator().manual_seed(7)
        hidden, width, experts = self.problem.hidden, self.fused.width, self.problem.experts

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).bfloat16().to(self.device)

        self.every = drawn(heap.world_size, self.problem.tokens, hidden)
        self.up = drawn(experts, 2 * width, hidden).mul_(hidden**-0.5)
        self.down = drawn(experts, hidden, width).mul_(width**-0.5)
        first = self.rank * self.problem.local_experts
        self.own_up, self.own_down = (
            each[first : first + self.problem.local_experts].clone().mT for each in (self.up, self.down)
        )

    def drawn(self, seed: int) -> Operands:
        routing = drawn_routing(self.problem, self.device, seed, KINDS[seed % len(KINDS)])
        return self.every[self.rank].clone(), routing.ids[self.rank].clone(), routing.gates[self.rank].clone()

    def gathered(self, operands: Operands) -> torch.Tensor:
        """Each token times the sum of its gates, by dispatch and combine."""
        return combining(self, operands, fused=False)()

    def mixed(
        self, operands: Operands, config: autotune.Config | None = None, there: autotune.Config | None = None
    ) -> torch.Tensor:
        return combining(self, operands, fused=True, there=there)(config=config)

    def wrong_gathered(self, out: torch.Tensor, operands: Operands) -> float:
        x, ids, gates = operands
        weight = torch.where((ids >= 0) & (ids < self.problem.experts), gates, 0.0).double().sum(1, keepdim=True)
        return _distance(out, x.double() * weight)

    def wrong_mixed(self, out: torch.Tensor, operands: Operands) -> float:
        x, ids, gates = operands
        expected = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
        for expert in range(self.problem.experts):
            token, place = (ids == expert).nonzero(as_tuple=True)
            gate, up = (x[token].double() @ self.up[expert].double().T).chunk(2, 1)
            product = (torch.nn.functional.silu(gate) * up) @ self.down[expert].double().T
            expected.index_add_(0, token, product * gates[token, place, None].double())
        return _distance(out, expected)


def _distance(out: torch.Tensor, expected: torch.Tensor) -> float:
    norm = expected.norm()
    return float((out.double() - expected).norm() / norm) if norm > 0 else float(out.norm())


def calls(url: str) -> dict[str, Any]:
    """The largest errors of each way to call, and by mode; whether a mode gives the same bits again; refusals."""
    with autotune.Context(HEAP, url=url) as context:
        layer = Layer(context)
        drawn = [layer.drawn(seed) for seed in range(len(KINDS))]
        x, ids, gates = layer.drawn(len(KINDS))
        drawn.append((x, ids[:, (0, 1, 0)].contiguous(), gates))  # an expert twice: its gates add up
        found: dict[str, Any] = {
            "compiled": grown(layer, drawn[0]),
            "beyond": beyond(layer, drawn[0]),
            "too many": too_many(context),
            "too many rows": too_many_rows(context),
            "rows left out": rows_left_out(context),
        }
        for problem in (layer.problem, layer.fused):
            found[problem.workload] = by_mode(layer, problem, drawn)
        return found


def grown(layer: Layer, operands: Operands) -> float:
    """The largest error of a compiled call whose numbers of tokens differ, so that they are a symbol in its graph."""
    compiled = torch.compile(layer.gathered, backend="aot_eager", fullgraph=True)
    tokens = len(operands[0])
    several = [tuple(each[:count] for each in operands) for count in (tokens, tokens // 2, tokens - 1)]
    return max(layer.wrong_gathered(compiled(each), each) for each in several)  # type: ignore[arg-type]  # three of them


def by_mode(layer: Layer, problem: Any, drawn: list[Operands]) -> dict[str, list[Any]]:
    """The error, and whether a second call gives the same bits, for one of the draws after the other."""
    fused, found = problem is layer.fused, {}
    calls = [combining(layer, operands, fused=fused) for operands in drawn]
    wrong = layer.wrong_mixed if fused else layer.wrong_gathered
    for turn, config in enumerate(configs(Task(problem, layer.context.machine))):
        call, operands = calls[turn % len(drawn)], drawn[turn % len(drawn)]
        first = call(config=config)
        found[str(config["mode"])] = [wrong(first, operands), torch.equal(call(config=config), first)]
    return found


def beyond(layer: Layer, operands: Operands) -> float:
    """The largest error where some ids are numbers of no expert, behind calls that leave rows in their places."""
    x, ids, gates = operands
    none = ids.clone()
    none[:, 0] = layer.problem.experts
    before, call = (combining(layer, (x, each, gates), fused=False) for each in (ids, none))
    given, worst = configs(Task(layer.problem, layer.context.machine)), 0.0
    of_rows = [each.replace(protocol=way) for each in given if each["mode"] == "one_shot" for way in ("signal", "ll")]
    for config in (*(each for each in given if each["mode"] != "one_shot"), *of_rows):
        before(config=config)
        before(config=config)  # an inbox has two slots
        worst = max(worst, layer.wrong_gathered(call(config=config), (x, none, gates)))
    return worst


def each_way(problem: Any, context: autotune.Context) -> dict[str, autotune.Config]:
    """A config of each mode, and of each way of the library's; none by LL words, of which a reader misses some."""
    known = configs(Task(problem, context.machine))
    if any(config["mode"] == "bsp" for config in known):
        known += workload(problem.workload).baselines(Task(problem, context.machine)).values()
    known = [config.replace(protocol="signal") if "protocol" in config else config for config in known]
    return {f"{problem.workload} {config['mode']} {config.get('exchange', '')}": config for config in known}


def too_many_rows(context: autotune.Context) -> dict[str, bool]:
    """By way to dispatch and combine: True if all tokens are NaN where rank 0 gets twice the rows it has room for."""
    world, device, found = context.heap.world_size, context.heap.device, {}
    sizes = {"tokens": 4, "hidden": 64, "experts": world, "top_k": 2, "world_size": world}
    x, ids = torch.ones(4, 64, device=device).bfloat16(), torch.zeros(4, 2, dtype=torch.int32, device=device)
    gates, up, down = (torch.ones(size, device=device) for size in ((4, 2), (1, 64, 64), (1, 32, 64)))
    given = context, x, ids, gates
    alone = autotune.MoeDispatch(**sizes), autotune.MoeCombine(**sizes)
    fused = (
        autotune.MoeDispatchGemm(**sizes, width=32, b_order="kn"),
        autotune.MoeGemmCombine(**sizes, width=32, b_order="kn"),
    )
    for dispatch, combine in (alone, fused):
        for way, config in each_way(dispatch, context).items():
            if config["mode"] != "bsp":
                continue
            operand = [] if combine is alone[1] else [up.bfloat16()]
            rows, *plan = getattr(autotune, dispatch.workload)(*given, *operand, experts=world, config=config)
            rows = [rows] if combine is alone[1] else [rows, down.bfloat16()]
            for last, chosen in each_way(combine, context).items():
                out = getattr(autotune, combine.workload)(context, *rows, *plan, ids, config=chosen)
                found[f"{way}, {last}"] = bool(out.isnan().all())
    return found


def too_many(context: autotune.Context) -> dict[str, list[Any]]:
    """By way to dispatch, with twice the rows that rank 0 has room for: errors then and later; whether rows are NaN."""
    world, device, found = context.heap.world_size, context.heap.device, {}
    x, ids, gates = (torch.ones(4, width, device=device) for width in (64, 2, 2))
    problem = autotune.MoeDispatch(tokens=4, hidden=64, experts=world, top_k=2, world_size=world)
    outs = [torch.zeros(problem.capacity, 64, device=device).bfloat16()]
    outs += [torch.zeros(size, dtype=torch.int32, device=device) for size in (2, problem.capacity)]
    outs += [torch.zeros(problem.capacity, device=device)]
    for config in configs(Task(problem, context.machine)):

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


def rows_left_out(context: autotune.Context) -> bool | None:
    """True if an all-to-all ends, and tokens without rows are NaN, where a plan has rows for the first rank's alone."""
    world, device = context.heap.world_size, context.heap.device
    problem = autotune.MoeCombine(tokens=4, hidden=64, experts=world, top_k=2, world_size=world)
    ways = [c for c in each_way(problem, context).values() if c.get("exchange") == "all_to_all"]
    if not ways:
        return None
    rows, gates = (
        torch.ones(problem.capacity, 64, device=device).bfloat16(),
        torch.ones(problem.capacity, device=device),
    )
    ids, pairs = torch.zeros(4, 2, dtype=torch.int32, device=device), torch.arange(problem.capacity, dtype=torch.int32)
    ends = [0, 8 if context.heap.rank == 0 else 0]
    plan = torch.tensor(ends, dtype=torch.int32, device=device), pairs.to(device), gates
    out = autotune.moe_combine(context, rows, *plan, ids, config=ways[0])
    return bool((out == 2).all() if context.heap.rank == 0 else out.isnan().all())


def combining(
    layer: Layer, operands: Operands, *, fused: bool, there: autotune.Config | None = None
) -> Callable[..., torch.Tensor]:
    """The combine behind a dispatch, by the config ``there``, which is made now."""
    x, ids, gates = operands
    by: dict[str, Any] = {"experts": layer.problem.experts, "config": there}
    if fused:
        a, *plan = autotune.moe_dispatch_gemm(layer.context, x, ids, gates, layer.own_up, **by)
        return functools.partial(autotune.moe_gemm_combine, layer.context, a, layer.own_down, *plan, ids)
    found = autotune.moe_dispatch(layer.context, x, ids, gates, **by)
    return functools.partial(autotune.moe_combine, layer.context, *found, ids)


def replays(url: str) -> dict[str, int]:
    """By modes: how many replays of the whole layer, captured once, each with other routing, were right."""
    with autotune.Context(HEAP, url=url) as context:
        layer, found = Layer(context), {}
        sizes: dict[str, Any] = {**layer.sizes, "width": layer.fused.width, "world_size": context.heap.world_size}
        pairs = [[c for c in configs(Task(each, context.machine)) if c["mode"] != "bsp"]
                 for each in (autotune.MoeDispatchGemm(**sizes), layer.fused)]  # fmt: skip
        for number in range(max(map(len, pairs))):
            there, back = (each[number % len(each)] for each in pairs)
            found[f"{there['mode']} {back['mode']}"] = _replayed(layer, there, back)
        return found


def _replayed(layer: Layer, there: autotune.Config, back: autotune.Config) -> int:
    operands = layer.drawn(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layer.mixed(operands, back, there)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer.mixed(operands, back, there)
    right = 0
    for seed in range(REPLAYS):
        for place, value in zip(operands, layer.drawn(100 + seed), strict=True):
            place.copy_(value)
        graph.replay()
        right += layer.wrong_mixed(out, operands) < 2e-2
    return right
