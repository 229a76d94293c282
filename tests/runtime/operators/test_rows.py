"""Calls without rows, in every operator and layer; tokens whose number differs from rank to rank, in every mode."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from calls import HEAP, Calls, listed, said, url
from moe_layer_on_ranks import Layer
from ranks_of_functions import run_ranks
from test_contract import operator_of, problems
from two_ranks import A_GPU_EACH

import autotune
from autotune.runtime.operator import OPERATORS
from autotune.task import Task
from autotune.workloads import workload

WORST = 2e-2


@pytest.fixture(scope="module", params=A_GPU_EACH)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("rows")
    return run_ranks(__file__, "everything", 2, folder, gpu=request.param, argument=url(folder))


def test_a_call_without_rows_has_none_in_its_results_and_runs_nothing(ranks: list[dict[str, Any]]) -> None:
    for found in (each["without rows"] for each in ranks):
        wanted = found["wanted"]
        assert set(found["operators"]) == set(wanted)
        assert {name: found["shapes"][name] for name in wanted} == wanted
        layers = {name: shapes for name, shapes in found["shapes"].items() if name not in wanted}
        assert len(layers) == 7 and all(shapes[0][:2] == [1, 0] for shapes in layers.values()), layers
        assert found["alike"] and found["zero"] and found["out"] and found["left"] and found["problems"] == 0, found
        assert found["gradients"] == [[[0, 128], 0.0]] * 6
        assert re.match("RanksDisagree: .*tokens= to the operators of a mixture", found["one alone"])


def test_tokens_may_differ_from_rank_to_rank(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert len(found["uneven"]) >= 5 + 7
        assert max(found["uneven"].values()) < WORST and found["compiled"] < WORST, found


WHOLE = {"b", "bias", "weight", "k_cache", "v_cache", "k_scale", "v_scale", "scale_b"}
"""Operands without rows."""
K, N, TOP_K, LOCAL = 128, 256, 2, 3
MOST_EXPERTS = 100

Tensor = torch.Tensor
Call = Callable[..., Any]

INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)


def everything(url: str) -> dict[str, Any]:
    with autotune.Context(HEAP, url=url) as context:
        return {"without rows": without_rows(context), "uneven": uneven(context), "compiled": compiled(Layer(context))}


def without_rows(context: autotune.Context) -> dict[str, Any]:
    """By operator and layer: shapes of results, whether all ways agree, and what else a call without rows does."""
    left, layers = context.heap.left, dict(layers_without_rows(context))
    calls, wanted = dict[str, Call](), {}
    for name, call, shapes in calls_without_rows(context):
        calls[name], wanted[name] = call, shapes

    def all_of(given: dict[str, Any]) -> dict[str, list[Tensor]]:
        return {name: listed(call()) for name, call in given.items()}

    with autotune.collect() as problems, torch.no_grad():
        first = all_of({**calls, **layers})
        ways = [first, all_of({**calls, **layers})]
        outs = {name: [torch.full_like(each, 7) for each in results] for name, results in first.items()}
        ways.append({name: listed(call(*outs[name])) for name, call in calls.items()})
        same = [ways[-1][name][0] is outs[name][0] for name in calls if name != "all_gather_gemm_quantised"]
        ways.append(torch.compile(all_of, backend="aot_eager", fullgraph=True)({**calls, **layers}))
    made = {name: [list(each.shape) for each in results] for name, results in first.items()}
    zero = not any(each.float().any() for way in ways for results in way.values() for each in results)
    alike = all([list(x.shape) for x in results] == made[name] for way in ways for name, results in way.items())
    return {
        "shapes": made, "wanted": wanted, "alike": alike, "zero": zero, "out": all(same),
        "left": context.heap.left == left, "problems": len(problems),
        "operators": sorted({*OPERATORS} - {"all_gather_gemm_kept"}),
        "gradients": gradients_without_rows(context),
        "one alone": one_alone(context),
    }  # fmt: skip


def calls_without_rows(context: autotune.Context) -> Iterator[tuple[str, Call, list[list[int]]]]:
    """By operator: a call, of its results where they are to be given, and their shapes."""
    first = {operator_of(problem): problem for problem, _ in reversed(list(problems()))}
    for name, problem in ((name, first.get(operator)) for name, operator in OPERATORS.items()):
        if problem is None:  # no public function ends there
            continue
        mark = context.heap.mark()
        calls = Calls(context, problem)
        operands = {each: without_rows_of(each, x) for each, x in calls.copies(1).items()}
        function = functools.partial(calls.function, context, **calls.given(operands))
        shapes = [list(x.shape) for x in calls.operation.outputs()]
        context.heap.release(mark)
        takes_out = "out" in inspect.signature(calls.function).parameters

        def call(*outs: Tensor, function: Call = function, takes_out: bool = takes_out) -> Any:
            return function(out=outs if len(outs) > 1 else outs[0]) if outs and takes_out else function()

        ends = 1 if "dispatch" in problem.workload else None  # of the experts' rows; there are as many as experts
        yield name, call, [[0, *shape[1:]] if at != ends else shape for at, shape in enumerate(shapes)]


def without_rows_of(name: str, operand: Tensor | None) -> Tensor | None:
    if operand is None or name in WHOLE or (name == "scale_a" and operand.dim() == 1):
        return operand
    return operand * 0 if name == "offsets" else operand[:0]


def layers_without_rows(context: autotune.Context) -> Iterator[tuple[str, Call]]:
    ranks, device, bf16 = context.heap.world_size, context.heap.device, torch.bfloat16
    x, part = (torch.ones(1, 0, columns, dtype=bf16, device=device) for columns in (K, K // ranks))
    ids, gates = (torch.ones(1, 0, TOP_K, dtype=kind, device=device) for kind in (torch.int64, torch.float32))
    for dim in (None, 1):
        columns = autotune.nn.ColumnParallelLinear(context, K, N, sequence_dim=dim, dtype=bf16)
        rows = autotune.nn.RowParallelLinear(context, K, N, sequence_dim=dim, dtype=bf16)
        yield f"columns, {dim}", lambda columns=columns: columns(x)
        yield f"rows, {dim}", lambda rows=rows: rows(part)
    options: tuple[dict[str, Any], ...] = {}, {"share": "width"}, {"replicated": True}
    for more in options:
        layer = autotune.nn.ExpertParallel(context, 2 * ranks, K, N, dtype=bf16, **more)
        yield f"experts, {more}", lambda layer=layer: layer(x, ids, gates)


def gradients_without_rows(context: autotune.Context) -> list[Any]:
    """The shapes of the gradients of A, and the largest element of those of B."""
    a = torch.ones(0, K, device=context.heap.device, requires_grad=True)
    b = torch.ones(K, N, device=context.heap.device, requires_grad=True)
    found = []
    for call in (
        lambda: autotune.all_gather_gemm(context, a, b),
        lambda: autotune.all_gather_gemm_with_gathered(context, a, b)[1],
        lambda: autotune.all_gather_gemm(context, a, b, keep_gathered=True),
        lambda: autotune.gemm_reduce_scatter(context, a, b),
        lambda: autotune.gemm_all_reduce(context, a, b),
        lambda: autotune.nn.RowParallelLinear(context, K * context.heap.world_size, N)(a),
    ):
        a.grad, b.grad = None, torch.zeros_like(b)
        call().sum().backward()
        assert a.grad is not None
        found.append([list(a.grad.shape), float(b.grad.abs().max())])
    return found


def one_alone(context: autotune.Context) -> str:
    """The error where the last rank alone has no tokens, and nobody says how many others have."""
    heap, count = context.heap, 0 if context.heap.rank == context.heap.world_size - 1 else 3
    x, gates = (torch.ones(count, columns, device=heap.device) for columns in (2 * K, TOP_K))
    experts = 2 * heap.world_size
    return said(lambda: autotune.moe_dispatch(context, x, gates.int(), gates, experts=experts, tokens=count))


def uneven(context: autotune.Context) -> dict[str, float]:
    """Errors of tokens that differ from rank to rank, by the way they go and come back."""
    layer, errors = Layer(context), {}
    for turn, (name, way) in enumerate(all_ways(layer)):
        operands = layer_operands(layer, turn)
        wrong = layer.wrong_mixed if "gemm" in name else layer.wrong_gathered
        errors[name] = wrong(way(*operands, into=turn % 2), as_int32(operands))
    return errors


def most(layer: Layer) -> int:
    return layer.problem.tokens


def layer_operands(layer: Layer, turn: int) -> tuple[Tensor, ...]:
    """This turn's tokens of this rank, none on some; ids of another type each turn, every third one no expert."""
    x, ids, gates = layer.drawn(3 * turn)
    if turn % 2:
        ids[:, -1] = ids[:, 0]  # an expert twice: its gates add up
    counts = most(layer), 0, most(layer) - 2, 0, most(layer) // 2, 0
    count, dtype = counts[(turn + layer.rank) % len(counts)], INTEGERS[turn % len(INTEGERS)]
    limits = torch.iinfo(dtype)
    none = [limits.max, *([limits.min, -1] if limits.min else []), *([2**32 + 1] if dtype is torch.int64 else [])]
    wide = ids.flatten().long()
    for place, number in zip(range(turn % 3, len(wide), 3), itertools.cycle(none), strict=False):
        wide[place] = number
    return x[:count].clone(), wide.view(ids.shape)[:count].to(dtype), gates[:count].clone()


def as_int32(operands: tuple[Tensor, ...]) -> Any:
    x, ids, gates = operands
    wide = ids.long()
    return x, torch.where((wide >= 0) & (wide < MOST_EXPERTS), wide, -1).int(), gates


def ways(layer: Layer, name: str) -> list[autotune.Config]:
    """A config of each mode of an operator, and of each of the library's exchanges."""
    sizes: dict[str, Any] = {**layer.sizes, "world_size": layer.problem.world_size}
    width = {"width": layer.fused.width} if "gemm" in name else {}
    plugin, here = workload(name), layer.context.machine
    problem = plugin.problem_type(**sizes, **width)
    of_library = [each for each in plugin.baselines(Task(problem, here)).values() if each.get("launch") != "graph"]
    found = {(each["mode"], each.get("exchange")): each for each in reversed(plugin.first_configs(Task(problem, here)))}
    found |= {(each["mode"], each.get("exchange")): each for each in of_library}
    return list(found.values())


def pairs_of(layer: Layer, first: str, second: str) -> Iterator[tuple[str, autotune.Config, autotune.Config]]:
    there, back = ways(layer, first), ways(layer, second)
    for number in range(max(len(there), len(back))):
        out, home = there[number % len(there)], back[number % len(back)]
        said_out, said_home = (" ".join(str(c[w]) for w in ("mode", "exchange") if w in c) for c in (out, home))
        yield f"{first} {said_out}, {second} {said_home}", out, home


def all_ways(layer: Layer) -> Iterator[tuple[str, Call]]:
    context, by = layer.context, {"tokens": most(layer)}
    weights = {"moe_dispatch": [], "moe_dispatch_gemm": [layer.own_up], "moe_combine": []}
    weights["moe_gemm_combine"] = [layer.own_down]
    for first, second in (("moe_dispatch", "moe_combine"), ("moe_dispatch_gemm", "moe_gemm_combine")):
        for name, there, back in pairs_of(layer, first, second):

            def way(
                x: Tensor, ids: Tensor, gates: Tensor, into: int, operators: Any = (first, second),
                there: Any = there, back: Any = back,
            ) -> Tensor:  # fmt: skip
                dispatch, combine = (getattr(autotune, each) for each in operators)
                up, down = (weights[each] for each in operators)
                rows, *plan = dispatch(context, x, ids, gates, *up, experts=layer.problem.experts, config=there, **by)
                out = torch.empty_like(x) if into else None
                made: Tensor = combine(context, rows, *down, *plan, ids, out=out, config=back, **by)
                assert out is None or made is out
                return made

            yield name, way


def compiled(layer: Layer) -> float:
    """The largest error of a compiled layer, whose numbers of tokens are other ones in each call."""
    by: dict[str, Any] = {"tokens": most(layer)}
    up, down = layer.own_up.mT, layer.own_down.mT

    def call(x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        return autotune.nn.expert_parallel(layer.context, x, ids, gates, up, down, **by)

    function, worst = torch.compile(call, backend="aot_eager", fullgraph=True), 0.0
    for turn in range(1, 12, 5):  # int64
        operands = layer_operands(layer, turn)
        worst = max(worst, layer.wrong_mixed(function(*operands), as_int32(operands)))
    return worst
