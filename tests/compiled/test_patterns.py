"""What follows a GEMM or a sum in a graph is found however it is written, and nothing else is taken for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from autotune.compiled.gates import gate_behind
from autotune.compiled.graphs import ATEN, C10D, NoMatch, computed_from
from autotune.compiled.norms import Norm, norm_behind

Tensor = torch.Tensor
TOKENS, WIDTH = 4, 32


def graph_of(function: Callable[..., Any], *arguments: Tensor, decomposed: bool = True) -> Graph:
    """As inductor sees it, or as it is written."""
    table = select_decomp_table() if decomposed else None
    with torch.no_grad():
        graph: Graph = make_fx(function, decomposition_table=table, tracing_mode="fake")(*arguments).graph
    graph.eliminate_dead_code()
    return graph


def product_of(graph: Graph) -> Node:
    (found,) = (node for node in graph.nodes if node.target in (ATEN.mm.default, ATEN.addmm.default))
    return found


def halves(x: Tensor) -> tuple[Tensor, ...]:
    return x.chunk(2, dim=-1)


def sized(x: Tensor) -> tuple[Tensor, ...]:
    return x.split([WIDTH // 2, WIDTH // 2], dim=-1)


def sliced(x: Tensor) -> tuple[Tensor, ...]:
    return x[..., : WIDTH // 2], x[..., WIDTH // 2 :]


def alternating(x: Tensor) -> tuple[Tensor, ...]:
    return x[..., ::2], x[..., 1::2]


EPILOGUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "geglu": lambda gate, up: F.gelu(gate) * up,
    "geglu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
}


def gated(function: Callable[..., Tensor], cut: Callable[[Tensor], tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """A linear layer of sequences, and what follows it."""
    return lambda x, w: function(*cut(F.linear(x, w)))


@pytest.mark.parametrize("cut", [halves, sized, sliced, alternating])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_gates_are_found_by_what_they_compute(epilogue: str, cut: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    x, w = torch.randn(2, TOKENS, 16), torch.randn(WIDTH, 16)
    graph = graph_of(gated(EPILOGUES[epilogue], cut), x, w)
    found = gate_behind(product_of(graph))
    assert found is not None and found.epilogue == epilogue
    assert found.gate_up == ("interleaved" if cut is alternating else "halves")
    (output,) = (node for node in graph.nodes if node.op == "output")
    assert output.args[0] is found.result


def wide(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def thrice(gate: Tensor, up: Tensor, factor: float = -2) -> Tensor:
    return torch.add(F.silu(gate) * up * 3, F.silu(gate) * up, alpha=factor)


def by_hand(gate: Tensor, up: Tensor) -> Tensor:
    return up * (gate * torch.sigmoid(gate))


@pytest.mark.parametrize("function", [wide, by_hand, thrice, EPILOGUES["swiglu"]])
@pytest.mark.parametrize("decomposed", [False, True])
def test_a_swiglu_is_one_however_it_is_written(function: Callable[..., Tensor], decomposed: bool) -> None:
    x, w = torch.randn(TOKENS, 16, dtype=torch.bfloat16), torch.randn(WIDTH, 16, dtype=torch.bfloat16)
    found = gate_behind(product_of(graph_of(gated(function, halves), x, w, decomposed=decomposed)))
    assert found is not None and found.epilogue == "swiglu"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda gate, up: F.relu(gate) * up, "pointwise"),
        (lambda gate, up: torch.tanh(gate) * up, "neither"),
        (lambda gate, up: torch.sigmoid(1.702 * gate) * gate * up, "neither"),
        (lambda gate, up: F.silu(gate) * (up + 1), "neither"),
        (lambda gate, up: F.silu(up) * gate, "before the gate"),
        (lambda gate, up: (F.silu(gate) * up, up), "apart"),
        (lambda gate, up: F.silu(gate).to(torch.float8_e4m3fn).to(gate.dtype) * up, "pointwise"),
        (lambda gate, up: torch.exp(torch.exp(gate)) * up / (gate - gate), "neither"),
        (lambda gate, up: thrice(gate, up, 2), "neither"),
    ],
)
def test_what_is_no_gate_is_said(function: Callable[..., Any], told: str) -> None:
    x, w = torch.randn(TOKENS, 16), torch.randn(WIDTH, 16)
    with pytest.raises(NoMatch, match=told):
        gate_behind(product_of(graph_of(gated(function, halves), x, w)))


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: (x, x * 2), lambda x: x.split([8, 24], -1), lambda x: x.chunk(4, -1),
        lambda x: F.silu(x[: TOKENS // 2]) * x[TOKENS // 2 :],
    ],
)  # fmt: skip
def test_products_that_are_not_halved_have_no_gate(cut: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    x, w = torch.randn(TOKENS, 16), torch.randn(WIDTH, 16)
    assert gate_behind(product_of(graph_of(lambda x, w: cut(F.linear(x, w)), x, w))) is None


def of_torch(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.rms_norm(total, (WIDTH,), weight, 1e-5), total


def of_transformers(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = residual + x
    found = total.to(torch.float32)
    found = found * torch.rsqrt(found.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * found.to(total.dtype), total


def of_serving(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    found = x.to(torch.float32) + residual.to(torch.float32)
    total = found.to(x.dtype)
    found = found * torch.rsqrt(found.pow(2).mean(dim=-1, keepdim=True) + 1e-5)
    return found.to(x.dtype) * weight, total


def of_squares(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total * torch.rsqrt((total * total).mean(1, True) + 1e-5) * weight, total


WAYS = [of_torch, of_transformers, of_serving, of_squares]


def norm_of(function: Callable[..., Any], dtype: torch.dtype = torch.bfloat16) -> tuple[Graph, Norm | None]:
    x, residual, weight = (torch.randn(shape, dtype=dtype) for shape in ((4, WIDTH), (4, WIDTH), (WIDTH,)))
    graph = graph_of(lambda x, *others: function(torch.neg(x), *others), x, residual, weight)
    (summed,) = (node for node in graph.nodes if node.target is ATEN.neg.default)
    return graph, norm_behind(summed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", WAYS)
def test_norms_are_found_however_they_are_written(function: Callable[..., Any], dtype: torch.dtype) -> None:
    graph, found = norm_of(function, dtype)
    if (function, dtype) == (of_squares, torch.bfloat16):
        assert found is None, "a norm in 16 bits is not what the operator computes"
        return
    _, residual, weight = (node for node in graph.nodes if node.op == "placeholder")
    assert found is not None and (found.residual, found.weight, found.eps) == (residual, weight, 1e-5)
    (output,) = (node for node in graph.nodes if node.op == "output")
    normed, total = output.args[0]
    assert found.normed is normed and total in (found.total, *found.rounded)


def _rms(x: Tensor) -> Tensor:
    return torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)


def _quantised(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x, r, w: ((t := x + r) * (s := _rms(t)) * w, s), "backward"),
        (lambda x, r, w: (t := x + r).float() * _rms(t), "weight"),
        (lambda x, r, w: (t := (x + r).float()) * torch.rsqrt(t.pow(2).mean(0, keepdim=True) + 1e-5) * w, "row"),
        (lambda x, r, w: (t := (x + r).float()) / (t.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w, "RMSNorm"),
        (lambda x, r, w: ((t := (x + r).float()) * _rms(t) * w.float() * 2.0).to(x.dtype), "weight"),
        (lambda x, r, w: ((t := (x + r).float()) * _rms(t) * w.float() * w).to(x.dtype), "weight"),
        (lambda x, r, w: _quantised((t := (x + r).float()) * _rms(t) * w.float()), "type"),
        (lambda x, r, w: (((t := x.float() + r.float()) * _rms(t)).to(x.dtype) * w, t * 3), "also used by mul"),
        (lambda x, r, w: (t := (x + r).float()) * torch.rsqrt(t.pow(2).mean(-1) + 1e-5)[:, None] * w, "row"),
        (lambda x, r, w: ((t := (x + r).float()) + 1) * _rms(t) * w, "own input"),
        (lambda x, r, w: (t := (x + r).float()) * torch.rsqrt(t.pow(2).mean(-1, True) + w[:1]) * w, "eps"),
    ],
)
def test_what_is_nearly_a_norm_behind_a_residual_is_left_with_a_reason(function: Callable[..., Any], told: str) -> None:
    with pytest.raises(NoMatch, match=told):
        norm_of(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, r, w: ((x + r) * (s := _rms(x + r)) * w, s),
        lambda x, r, w: ((x + r) * w, x),
        lambda x, r, w: F.rms_norm(x, (WIDTH,), w, 1e-5),
        lambda x, r, w: F.rms_norm(x + w, (WIDTH,), w, 1e-5),
        lambda x, r, w: F.layer_norm(x + r, (WIDTH,), w),
        lambda x, r, w: (
            of_serving(x, r * 3, w) and F.rms_norm(torch.add(x.float(), r.float(), alpha=3), (WIDTH,), w.float())
        ),
    ],
)
def test_what_is_no_norm_behind_a_residual_is_none(function: Callable[..., Any]) -> None:
    assert norm_of(function)[1] is None


FP8 = torch.float8_e4m3fn
DEEP = 256


def of_row(x: Tensor) -> Tensor:
    return x.abs().amax(-1, keepdim=True)


def by_division(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = of_row(x).float() / 448
    return (x / scale).to(FP8), scale


def by_a_factor(x: Tensor) -> tuple[Tensor, Tensor]:
    factor = 448.0 / of_row(x.float()).double().clamp(min=1e-12)
    return torch.clamp(x.float() * factor.float(), -448, 448).to(FP8), factor.float().reciprocal()


def by_the_inverse(x: Tensor) -> tuple[Tensor, Tensor]:
    largest, _ = x.abs().max(dim=-1)
    scale = (largest.unsqueeze(-1).float() * (1 / 448)).clamp(min=1 / (448 * 512))
    return (x.float() * scale.reciprocal()).clamp(min=-448, max=448).to(FP8), scale


def of_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    parts = x.view(-1, DEEP // 128, 128)
    scale = parts.abs().float().amax(dim=2).clamp(1e-4) / 448
    return (parts / scale.unsqueeze(2)).to(FP8).view(x.shape), scale


def repeated(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.unflatten(-1, (-1, 128)).abs().amax(-1).float() / 448
    return (x / scale.repeat_interleave(128, -1)).to(FP8), scale


QUANTISED = {by_division: "row", by_a_factor: "row", by_the_inverse: "row", of_parts: "block", repeated: "block"}


def multiplied(quantised: tuple[Tensor, Tensor]) -> Tensor:
    a, scale = quantised
    of_b = torch.ones(1, 32) if scale.shape[1] == 1 else torch.ones(1, DEEP // 128).t()
    b = torch.ones(32, DEEP).to(FP8).t()
    scale = scale if scale.shape[1] == 1 else scale.t().contiguous().t()
    return torch.ops.aten._scaled_mm(a, b, scale, of_b, None, None, torch.bfloat16)  # type: ignore[no-any-return]


def quantised_norm(function: Callable[..., Any], dtype: torch.dtype = torch.bfloat16) -> Norm:
    """The norm behind a sum, of which a function makes all results but the total."""
    x, weight = torch.randn((4, DEEP), dtype=dtype), torch.randn(DEEP, dtype=dtype)

    def whole(x: Tensor, r: Tensor, w: Tensor) -> Any:
        normed, total = of_torch_wide(torch.neg(x), r, w)
        return function(normed, normed.to(dtype)), total

    graph = graph_of(whole, x, x, weight)
    (summed,) = (node for node in graph.nodes if node.target is ATEN.neg.default)
    found = norm_behind(summed)
    return found


def of_torch_wide(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Without the rounding that inductor takes away where what follows is computed in fp32 again."""
    wide = (total := x + residual).float()
    return wide * _rms(wide) * weight.float(), total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("function", QUANTISED)
def test_quantisations_are_found_in_all_forms(function: Callable[..., Any], folded: bool, dtype: torch.dtype) -> None:
    found = quantised_norm(lambda wide, narrow: multiplied(function(wide if folded else narrow)), dtype)
    assert (found.scales, found.beside, len(found.quantised)) == (QUANTISED[function], "", 1)


def test_several_gemms_may_quantise_a_norm_each_for_itself() -> None:
    found = quantised_norm(lambda _, x: [multiplied(by_division(x)), multiplied(by_a_factor(x))])
    assert found.scales == "row" and len(found.quantised) == 2
    mixed = quantised_norm(lambda _, x: [multiplied(by_division(x)), multiplied(of_parts(x))])
    assert not mixed.quantised and "by rows and by blocks" in mixed.beside


def by_the_largest_of_all(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax((0, 1), True) / 448
    return (x / scale).to(FP8), scale.expand(len(x), 1).contiguous()


def scaled_by(function: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A quantisation with other scales."""
    return lambda _, x: multiplied(((x / (scale := function(of_row(x).float()))).to(FP8), scale))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (scaled_by(lambda largest: largest.clamp(min=1e-2) / 448), "formula"),
        (scaled_by(lambda largest: largest / 240), "formula"),
        (scaled_by(lambda largest: largest.clamp(max=1200) / 448), "formula"),
        (scaled_by(lambda largest: torch.exp2(torch.ceil(torch.log2(largest / 448)))), "log2|exp2|pow"),
        (lambda _, x: multiplied(((x / (scale := x.amax(-1, keepdim=True).float() / 448)).to(FP8), scale)), "formula"),
        (lambda _, x: multiplied(((x / (scale := of_row(x) / 448)).to(FP8), scale.float())), "bfloat16"),
        (lambda _, x: multiplied((by_division(x)[0], torch.ones(4, 1))), "not together"),
        (lambda _, x: multiplied(by_the_largest_of_all(x)), "spreads scales"),
        (lambda _, x: (multiplied(by_division(x)), x * 2), "also used by"),
        (lambda _, x: (multiplied(pair := by_division(x)), pair[1]), "also used by the graph's result"),
    ],
)
def test_what_is_nearly_our_quantisation_is_left_with_a_reason(function: Callable[..., Any], told: str) -> None:
    found = quantised_norm(function)
    assert not found.quantised and re.search(f"quantisation is left: .*({told})", found.beside), found.beside


def gathered(x: Tensor) -> Tensor:
    return C10D.wait_tensor(C10D.all_gather_into_tensor(x, 2, "all"))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("through", "found"), [(lambda x: x.relu().view(8, 16), True), (gathered, False)])
def test_a_product_is_computed_from_what_no_gather_lies_behind(through: Callable[..., Any], found: bool) -> None:
    graph = graph_of(lambda x, b: through(x)[:8] @ b, torch.ones(8, 16), torch.ones(16, 4))
    x, b = (node for node in graph.nodes if node.op == "placeholder")
    product = product_of(graph)
    assert computed_from(product, x) is found and computed_from(product, b) and not computed_from(x, product)
