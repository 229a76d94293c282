"""Functions with collectives and GEMMs, in the ways in which programs write them, with what is to become of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import ScalingType, gelu, linear, pad, rms_norm, scaled_mm, silu

from autotune.kernels.gemm.library import dequantised
from autotune.models.architecture import Architecture, Biases

K, N = 64, 32
"""Sizes of a rank's weights; each sum is over a depth of K a rank."""
DECODER = Architecture("llama", 2, 32, 4, 2, 8, 48, 100, Biases(), None)
"""Two layers of it have three sums that a norm follows."""


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    """Of the arguments."""
    operator: str
    """In the fused graph; empty where nothing is replaced."""
    told: str = "2.00 times as fast as the library at m=16"
    """A part of the reason."""
    replicated: bool | None = None
    """The pass's option of this name."""
    shared: tuple[int, ...] = ()
    """The arguments that are the same on every rank."""
    dtype: torch.dtype = torch.float32
    decomposed: bool = False
    """Traced into the operations that inductor sees."""
    worst: float = 1e-5
    """Largest difference from the unfused function."""


def gather(x: torch.Tensor, dim: int) -> torch.Tensor:
    return functional.all_gather_tensor(x, dim, dist.group.WORLD)


def scatter(x: torch.Tensor, dim: int, how: str = "sum") -> torch.Tensor:
    return functional.reduce_scatter_tensor(x, how, dim, dist.group.WORLD)


def reduce(x: torch.Tensor, how: str = "sum") -> torch.Tensor:
    return functional.all_reduce(x, how, dist.group.WORLD)


def _shared(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    whole = gather(x, 0)
    return whole @ one + whole @ other


def _mixed(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = gather(x, 0)
    return whole @ one + whole @ other, whole @ wide


def _kept(x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = x @ b
    return reduce(product), product


def _given_back(x: torch.Tensor, w: torch.Tensor, narrow: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = gather(x, 1)
    return linear(whole, w), linear(whole, narrow), whole * 2


def _in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    product = linear(x, w)
    return torch.ops.aten.copy(product, reduce(product)) * 2


GATHERS = {
    "gather": Case(lambda x, b: gather(x, 0) @ b, ((8, K), (K, N)), "all_gather_gemm"),
    "gather linear with a bias": Case(
        lambda x, w, c: linear(gather(x, 0), w, c), ((8, K), (N, K), (N,)), "all_gather_gemm"
    ),
    "gather sequences of one": Case(lambda x, w: linear(gather(x, 1), w), ((1, 8, K), (N, K)), "all_gather_gemm"),
    "gather sequences of several": Case(lambda x, w: linear(gather(x, 1), w), ((2, 4, K), (N, K)), "all_gather_gemm"),
    "gather sequences first": Case(lambda x, w: linear(gather(x, 0), w), ((4, 2, K), (N, K)), "all_gather_gemm"),
    "gather along k": Case(lambda x, b: gather(x, 1) @ b, ((16, K // 2), (K, N)), "all_gather_gemm"),
    "gather wide": Case(
        lambda x, w: linear(gather(x, 1), w), ((2, 4, N), (K, N)), "", "would copy 64 columns, the collective copies 32"
    ),
    "gather for two": Case(_shared, ((8, K), (K, N), (K, N)), "all_gather_gemm", "1.60 times as fast"),
    "gather for two, one untuned": Case(
        _mixed, ((8, K), (K, N), (K, N), (K, 3 * N)), "", "nothing tuned for this problem"
    ),
    "gather and keep": Case(lambda x, b: (y := gather(x, 0), y @ b), ((8, K), (K, N)), "", "also used by the graph's"),
    "gather and give back": Case(
        _given_back, ((1, 8, K), (2 * N, K), (N, K)), "all_gather_gemm_gathered", "gathered=true"
    ),
    "gather and give back a matrix": Case(
        lambda x, b: (y := gather(x, 0), y @ b), ((8, K), (K, 2 * N)), "all_gather_gemm_gathered"
    ),
    "gather, multiply and be multiplied": Case(
        lambda x, b, g: ((y := gather(x, 0)) @ b, g.t() @ y),
        ((8, K), (K, 2 * N), (16, 8)),
        "all_gather_gemm_gathered",
        "gathered=true",
    ),
    "gather, use and multiply": Case(
        lambda x, b: (y := gather(x, 0), (z := y * 2), y @ (z[:8, :8] @ b)),
        ((8, 8), (8, 2 * N)),
        "",
        "also used by mul",
    ),
    "gather b": Case(lambda x, b: x @ gather(b, 0), ((8, K), (K // 2, N)), "", "the GEMM's B, not its A"),
    "gather alone": Case(lambda x: gather(x, 0) * 2, ((8, K),), "", "no GEMM uses the gathered tensor"),
    "gather untuned": Case(lambda x, b: gather(x, 0) @ b, ((128, K), (K, N)), "", "nothing tuned for this problem"),
    "gather tuned in vain": Case(lambda x, b: gather(x, 0) @ b, ((8, N), (N, N)), "", "the library's way is the fast"),
}
SUMS = {
    "scatter": Case(lambda x, b: scatter(x @ b, 0), ((16, K), (K, N)), "gemm_reduce_scatter"),
    "scatter sequences of one": Case(
        lambda x, w: scatter(linear(x, w), 1), ((1, 16, K), (2 * N, K)), "gemm_reduce_scatter"
    ),
    "scatter sequences of several": Case(
        lambda x, w: scatter(linear(x, w), 1), ((2, 8, K), (2 * K, K)), "gemm_reduce_scatter"
    ),
    "scatter an average": Case(
        lambda x, w: scatter(linear(x, w), 0, "avg"), ((8, 2, K), (N, K)), "gemm_reduce_scatter"
    ),
    "scatter columns": Case(lambda x, b: scatter(x @ b, 1), ((16, K), (K, N)), "", "share the columns of the sum"),
    "reduce": Case(lambda x, b: reduce(x @ b), ((16, K), (K, N)), "gemm_all_reduce"),
    "scatter and add": Case(
        lambda x, b, r: r + scatter(x @ b, 0), ((16, K), (K, N), (8, N)), "gemm_reduce_scatter", "2.50 times as fast"
    ),
    "scatter sequences and add": Case(
        lambda x, w, r: scatter(linear(x, w), 1) + r,
        ((1, 16, K), (N, K), (1, 8, N)),
        "gemm_reduce_scatter",
        "2.50 times as fast",
    ),
    "scatter and add another shape": Case(
        lambda x, b, r: scatter(x @ b, 0) + r, ((16, K), (K, N), (N,)), "gemm_reduce_scatter"
    ),
    "reduce in place": Case(_in_place, ((2, 8, K), (N, K)), "gemm_all_reduce"),
    "reduce and add": Case(lambda x, b, r: reduce(x @ b) + r, ((16, K), (K, N), (16, N)), "gemm_all_reduce"),
    "reduce and add the same": Case(
        lambda x, b: reduce(x @ b) + torch.full((16, N), 0.5),
        ((16, K), (K, N)),
        "gemm_all_reduce",
        "2.50 times as fast",
        replicated=True,
    ),
    "reduce and add what it comes from": Case(
        lambda x, b, w: reduce((x @ b) @ w) + x.view(16, N),
        ((16, N), (N, K), (K, N)),
        "gemm_all_reduce",
        "2.50 times as fast",
        shared=(0,),
    ),
    "reduce and add what it comes from, said to differ": Case(
        lambda x, b, w: reduce((x @ b) @ w) + x,
        ((16, N), (N, K), (K, N)),
        "gemm_all_reduce",
        "; with its residual: the tensor added to the sum may differ",
        replicated=False,
    ),
    "reduce a maximum": Case(lambda x, b: reduce(x @ b, "max"), ((16, K), (K, N)), "", "the ranks reduce by max"),
    "reduce and keep": Case(_kept, ((16, K), (K, N)), "", "also used by the graph's result"),
    "reduce with a bias each": Case(
        lambda x, w, c: reduce(linear(x, w, c)), ((16, K), (N, K), (N,)), "", "its own bias before the sum"
    ),
    "reduce, the library not timed": Case(
        lambda x, b: reduce(x @ b), ((16, K), (K, 5 * N)), "", "left: the library's way failed when this was tuned"
    ),
    "reduce what is no product": Case(lambda x, b: reduce((x @ b).relu()), ((16, K), (K, N)), "", "comes from relu"),
    "reduce slower": Case(lambda x, b: reduce(x @ b), ((16, N), (N, N)), "", "0.80 times as fast as the library"),
}


def _normed(total: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rms_norm(total, weight.shape, weight, 1e-6), total


def _served(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As vLLM writes it in torch: the addition in fp32."""
    found = x.to(torch.float32) + residual.to(torch.float32)
    total = found.to(x.dtype)
    found = found * torch.rsqrt(found.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
    return found.to(x.dtype) * weight, total


BF16: dict[str, Any] = {"dtype": torch.bfloat16, "worst": 2e-2, "decomposed": True}
SAME: dict[str, Any] = {"replicated": True, "decomposed": True, "told": "5.00 times as fast as the library at m=16"}

NORMS = {
    "reduce, add and norm": Case(
        lambda x, b, r, w: _normed(reduce(x @ b) + r, w), ((16, K), (K, N), (16, N), (N,)), "gemm_all_reduce_norm",
        shared=(2, 3), **SAME,
    ),
    "reduce sequences, add and norm as serving stacks": Case(
        lambda x, w, r, n: _served(reduce(linear(x, w)), r, n), ((2, 8, K), (N, K), (2, 8, N), (N,)),
        "gemm_all_reduce_norm", shared=(2, 3), **{**SAME, **BF16},
    ),
    "reduce what is no product, add and norm": Case(
        lambda x, r, w: _normed(reduce(x.relu()) + r, w), ((2, 8, N), (2, 8, N), (N,)), "all_reduce_norm",
        shared=(1, 2), **SAME,
    ),
    "reduce, add and norm what may differ": Case(
        lambda x, b, r, w: _normed(reduce(x @ b) + r, w), ((16, K), (K, 3 * N), (16, 3 * N), (3 * N,)), "",
        "; gemm-all-reduce-norm: the tensor added to the sum may differ", decomposed=True,
    ),
}  # fmt: skip


def _gated(product: torch.Tensor) -> torch.Tensor:
    gate, up = product.chunk(2, dim=-1)
    return silu(gate) * up


def _interleaved(product: torch.Tensor) -> torch.Tensor:
    return gelu(product[..., ::2], approximate="tanh") * product[..., 1::2]


GATES = {
    "gather rows and swiglu": Case(
        lambda x, w: _gated(linear(gather(x, 0), w)), ((8, K), (4 * N, K)), "all_gather_gemm", "epilogue=swiglu",
        decomposed=True,
    ),
    "gather sequences and geglu": Case(
        lambda x, w, c: _interleaved(linear(gather(x, 1), w, c)),
        ((2, 4, K), (4 * N, K), (4 * N,)), "all_gather_gemm", "epilogue=geglu_tanh gate_up=interleaved", **BF16,
    ),
    "gather for gate and up apart": Case(
        lambda x, one, other: silu((y := gather(x, 0)) @ one) * (y @ other), ((8, K), (K, 3 * N), (K, 3 * N)), "",
        "; swiglu is not its part: gate and up are two weights", decomposed=True,
    ),
}  # fmt: skip


def _scaled(a: torch.Tensor, w: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._scaled_mm(a, w.t(), scale_a, scale_b, None, None, torch.bfloat16)


def _by_recipe(a: torch.Tensor, w: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    rows = ScalingType.RowWise
    return scaled_mm(a, w.t(), scale_a, rows, scale_b, rows, output_dtype=torch.bfloat16)


def _by_blocks(a: torch.Tensor, w: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """A's scales column by column, as the library takes them; B's are those of W, by fours, which torch 2.11 takes
    without gaps between rows, later ones with; on CPUs there are gaps.
    """
    if isinstance(a, FakeTensor) or a.is_cuda:
        gap = 0 if a.is_cuda else 4
        return _scaled(a, w, scale_a.t().contiguous().t(), pad(scale_b, (0, gap))[:, : len(scale_b[0])].t())
    wide = dequantised(a, scale_a) @ dequantised(w.t(), scale_b.t())  # on CPUs torch has no such GEMM
    return wide.to(torch.bfloat16)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """fp8 gathered as bytes, since not every backend of collectives knows it."""
    return gather(x.view(torch.uint8), 0).view(x.dtype)


FP8: dict[str, Any] = {"dtype": torch.float8_e4m3fn, "worst": 2e-2}

SCALED = {
    "gather fp8 with a scale": Case(
        lambda a, w, s, t: _scaled(_bytes(a), w, s[0], t[0]), ((8, K), (N, K), (1,), (1,)), "all_gather_gemm",
        "scales=tensor", shared=(2,), **FP8,
    ),
    "gather fp8 with scales by rows": Case(
        lambda a, w, s, t: _scaled(_bytes(a), w, gather(s, 0), t), ((8, K), (N, K), (8, 1), (1, N)),
        "all_gather_gemm", "scales=row", **FP8,
    ),
    "scatter fp8": Case(
        lambda a, w, s, t: scatter(_scaled(a, w, s, t), 0), ((16, K), (N, K), (16, 1), (1, N)), "gemm_reduce_scatter",
        "scales=row", **FP8,
    ),
    "reduce fp8": Case(
        lambda a, w, s, t: reduce(_scaled(a, w, s, t)), ((16, K), (N, K), (16, 1), (1, N)), "gemm_all_reduce",
        "scales=row", **FP8,
    ),
    "gather fp8 with scales by recipe": Case(
        lambda a, w, s, t: _by_recipe(_bytes(a), w, gather(s, 0), t), ((8, K), (N, K), (8, 1), (1, N)),
        "all_gather_gemm", "scales=row", **FP8,
    ),
    "gather fp8 with scales by blocks": Case(
        lambda a, w, s, t: _by_blocks(_bytes(a), w, gather(s, 0), t), ((8, 512), (144, 512), (8, 4), (2, 4)),
        "all_gather_gemm", "scales=block", **FP8,
    ),
    "scatter fp8 with scales by blocks": Case(
        lambda a, w, s, t: scatter(_by_blocks(a, w, s, t), 0), ((16, 512), (144, 512), (16, 4), (2, 4)),
        "gemm_reduce_scatter", "scales=block", **FP8,
    ),
    "gather fp8 with scales from elsewhere": Case(
        lambda a, w, s, t: _scaled(_bytes(a), w, s * 2, t), ((8, K), (N, K), (16, 1), (1, N)), "",
        "the scales of A's rows come from mul.Tensor, not from a gather", **FP8,
    ),
}  # fmt: skip


def by_rows(x: torch.Tensor, least: float = 1e-12) -> tuple[torch.Tensor, torch.Tensor]:
    """As torchao writes it: the factor in double precision, of which the GEMM takes the inverse."""
    largest = x.abs().amax(-1, keepdim=True).to(torch.float64)
    factor = (448.0 / largest.clamp(min=least)).to(torch.float32)
    return (x.to(torch.float32) * factor).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), factor.reciprocal()


def by_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As vLLM writes it in torch."""
    parts = x.view(-1, x.shape[-1] // 128, 128)
    largest = parts.abs().max(dim=-1, keepdim=True)[0].to(torch.float32)
    scales = (largest / 448.0).clamp(min=1 / (448.0 * 512.0))
    return (parts / scales).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(x.shape), scales.squeeze(-1)


def _after(
    quantise: Callable[..., Any], x: torch.Tensor, w: torch.Tensor, t: torch.Tensor, **others: float
) -> torch.Tensor:
    """A linear layer in fp8 of an activation that is quantised for it."""
    a, scales = quantise(x.view(-1, x.shape[-1]), **others)
    multiply = _by_blocks if quantise is by_blocks else _scaled
    return multiply(a, w.to(torch.float8_e4m3fn), scales, t.float().abs() + 0.5)


def _normed_fp8(x: torch.Tensor, r: torch.Tensor, n: torch.Tensor, **others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm, quantisation and the GEMM behind them, by the rest of the arguments; and the total."""
    normed, total = _normed(reduce(x) + r, n)
    return _after(others.pop("quantise", by_rows), normed, **others), total


ROWS8: tuple[tuple[int, ...], ...] = ((16, N), (16, N), (N,), (K, N), (1, K))
"""Of a sum's part, its residual, the norm's weight, the next layer's weight and scales."""
UNTUNED: tuple[tuple[int, ...], ...] = ((16, 3 * N), (16, 3 * N), (3 * N,), (K, 3 * N), (1, K))
DYNAMIC: dict[str, Any] = {"worst": 2e-2, "decomposed": True}
LEFT_NORM: dict[str, Any] = {**DYNAMIC, "shared": (1, 2), "replicated": True}

QUANTISED = {
    "gather and quantise rows": Case(
        lambda x, w, t: _after(by_rows, gather(x, 0), w, t), ((8, K), (N, K), (1, N)), "all_gather_gemm",
        "; A is quantised before it is gathered", **DYNAMIC,
    ),
    "gather sequences and quantise rows for two": Case(
        lambda x, w, v, t: (lambda y: _after(by_rows, y, w, t) + _after(by_rows, y, v, t))(gather(x, 1)),
        ((1, 8, K), (N, K), (N, K), (1, N)), "all_gather_gemm", "1.60 times as fast", **DYNAMIC,
    ),
    "gather and quantise blocks": Case(
        lambda x, w, t: _after(by_blocks, gather(x, 0), w, t), ((8, 512), (144, 512), (2, 4)), "all_gather_gemm",
        "scales=block", **{**DYNAMIC, "dtype": torch.bfloat16},
    ),
    "gather, quantise and keep": Case(
        lambda x, w, t: (y := gather(x, 0), _after(by_rows, y, w, t)), ((8, K), (N, K), (1, N)), "",
        "what is quantised is also used by the graph's result", **DYNAMIC,
    ),
    "gather columns and quantise": Case(
        lambda x, w, t: _after(by_rows, gather(x, 1), w, t), ((16, K // 2), (N, K), (1, N)), "",
        "rows or blocks of several ranks", **DYNAMIC,
    ),
    "gather and quantise all": Case(
        lambda x, w, t: _scaled((y := gather(x, 0)).to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn),
                                y.abs().amax().view(1) / 448, t.abs().amax().view(1)),
        ((8, K), (N, K), (1, N)), "", "not that of a row", **DYNAMIC,
    ),
    "reduce, norm and quantise rows": Case(
        lambda x, r, n, w, t: _normed_fp8(x.relu(), r, n, w=w, t=t), ROWS8, "all_reduce_norm_quantised",
        "quantised=row: replaced: mode one_shot, 10.00 times", **LEFT_NORM,
    ),
    "multiply, reduce, norm and quantise blocks": Case(
        lambda x, b, r, n, w, t: _normed_fp8(x @ b, r, n, w=w, t=t, quantise=by_blocks),
        ((16, K), (K, 512), (16, 512), (512,), (144, 512), (2, 4)), "gemm_all_reduce_norm_quantised",
        "quantised=block: replaced: mode one_shot, 10.00 times",
        **{**LEFT_NORM, "shared": (2, 3), "dtype": torch.bfloat16, "worst": 4e-2},
    ),
    "reduce, norm and quantise rows of another epsilon": Case(
        lambda x, r, n, w, t: _normed_fp8(x.relu(), r, n, w=w, t=t, least=1e-2), ROWS8, "all_reduce_norm",
        "; the norm's quantisation is left: the norm is quantised by another formula", **LEFT_NORM,
    ),
    "reduce, norm and quantise rows, untuned": Case(
        lambda x, r, n, w, t: _normed_fp8(x.relu(), r, n, w=w, t=t), UNTUNED, "",
        "; all-reduce-norm-quantised: nothing tuned for this problem", **LEFT_NORM,
    ),
}  # fmt: skip

CASES = {**GATHERS, **SUMS, **NORMS, **GATES, **SCALED, **QUANTISED}


def drawn(case: Case) -> list[torch.Tensor]:
    """Arguments that differ from rank to rank, but for those that are shared; behind two of fp8 there are scales."""
    found = []
    for place, shape in enumerate(case.shapes):
        seed = 70 + place if place in case.shared else 7 + dist.get_rank() + 100 * place
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        if case.dtype.itemsize > 1:
            found.append(values.to(case.dtype))
        else:
            found.append(values.to(case.dtype) if place < 2 else values.abs() + 0.5)
    return found
