"""The check's inputs and tolerances, at the depth that is tuned: right results pass, each small fault is seen.

What a rank computes is modelled: exact products, parts rounded as kernels round them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from every_mode import whole
from fakes import EIGHT_GPUS

from autotune.config import Config
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.gemm.problem import scale_shapes
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES
from autotune.machine import INTERPRETED, MI300X, Machine
from autotune.task import Task
from autotune.workloads import Tolerance, workload
from autotune.workloads.comparison import (
    distance,
    drawn,
    drawn_bias,
    drawn_deep,
    drawn_scales,
    drawn_weight,
    drawn_with_zeros,
    farthest,
    rounded_gated,
)
from autotune.workloads.tolerance import Error

CPU = torch.device("cpu")
DEPTH = 28672
ROWS, COLUMNS = 64, 128
OURS = {
    name: next(
        config for config in found.first_configs(Task(found.default_problem(EIGHT_GPUS, 8), EIGHT_GPUS))
        if config["mode"] == mode
    )
    for name, mode in (("all_gather_gemm", "push"), ("gemm_reduce_scatter", "push"), ("gemm_all_reduce", "two_shot"))
    if (found := workload(name))
}  # fmt: skip
LIBRARY = Config({"mode": "bsp", "launch": "eager"})


def allowed(name: str, config: Config, dtype: str, ranks: int, machine: Machine = EIGHT_GPUS) -> Tolerance:
    found = workload(name)
    n = COLUMNS * ranks if name == "all_gather_gemm" else COLUMNS
    m = ROWS * ranks if name == "gemm_reduce_scatter" else ROWS
    problem = found.problem_type(m=m, n=n, k=DEPTH, world_size=ranks, dtype=dtype, bias=True)
    return found.tolerance_of(Task(problem, machine), config)


class Operands:
    """The ranks' draws: a part of the depth each, as in the GEMM's operation."""

    def __init__(self, name: str, dtype: str, ranks: int) -> None:
        self.parted = name != "all_gather_gemm"
        self.dtype = TORCH_DTYPES[dtype]
        self.wide = torch.float64 if dtype == "fp32" else torch.float32
        parts = ranks if self.parted else 1
        shape = DEPTH // parts
        self.a = [drawn_deep((ROWS, shape), self.dtype, CPU, 10 + part).to(self.wide) for part in range(parts)]
        self.b = [drawn((shape, COLUMNS), self.dtype, CPU, 50 + part).to(self.wide) for part in range(parts)]
        self.bias = drawn_bias((COLUMNS,), self.dtype, CPU, 99, DEPTH).to(self.wide)
        self.products = [a @ b for a, b in zip(self.a, self.b, strict=True)]
        self.expected = sum(self.products) + self.bias

    def rounded(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.dtype).to(self.wide)

    def result(
        self, bias: Callable[[torch.Tensor], Any] = lambda bias: bias, lost: slice = slice(0), of: int = 0
    ) -> torch.Tensor:
        """A kernel's result: each part rounded, and the sum; without ``lost`` of the depth of part ``of``."""
        parts = list(self.products)
        parts[of] = parts[of] - self.a[of][:, lost] @ self.b[of][lost]
        if self.parted:
            parts = [self.rounded(part) for part in parts]
        return self.rounded(sum(parts) + bias(self.bias))


@pytest.mark.parametrize("ranks", [2, whole(4), 8])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", OURS)
def test_small_faults_are_seen_at_the_depth_that_is_tuned(name: str, dtype: str, ranks: int) -> None:
    operands, tolerance = Operands(name, dtype, ranks), allowed(name, OURS[name], dtype, ranks)

    def passes(result: torch.Tensor) -> bool:
        found = distance(result, operands.expected)
        return found.overall <= tolerance.overall and found.element <= tolerance.element

    stale = operands.result()
    stale[16:32, 32:64] = -stale[16:32, 32:64]
    wrong = {
        "bias dropped": operands.result(lambda bias: 0),
        "bias twice": operands.result(lambda bias: 2 * bias),
        "bias of the next column": operands.result(lambda bias: bias.roll(1)),
        "last of k lost": operands.result(lost=slice(-1, None), of=-1),
        "first of k lost": operands.result(lost=slice(1)),
        "one of k lost": operands.result(lost=slice(1234, 1235), of=-1),
        "a stale tile": stale,
    }
    assert passes(operands.result())
    assert not [fault for fault, result in wrong.items() if passes(result)]


def simulated(ranks: int, parted: bool, hops: bool, dtype: torch.dtype, cut: bool, seed: int, elements: int) -> Any:
    """A right result and its reference, of normally distributed parts at one scale or another."""
    generator = torch.Generator().manual_seed(seed)
    count = ranks if parted else 1
    scale = 2 ** float(torch.rand((), generator=generator)) * math.sqrt(DEPTH / count)
    parts = torch.randn((count, elements), generator=generator) * scale

    def rounded(value: torch.Tensor) -> torch.Tensor:
        if cut:  # bf16 is the upper half of fp32
            return (value.view(torch.int32) & -65536).view(torch.float32)
        return value.to(dtype).float()

    expected = parts.double().sum(0).float()
    if not parted:
        return rounded(expected), expected
    if not hops:
        return rounded(torch.stack([rounded(part) for part in parts]).sum(0)), expected
    total = rounded(parts[0])
    for part in parts[1:]:
        total = rounded(total + rounded(part))
    return total, expected


WAYS = {
    # How results are rounded: by our kernels, hop by hop by a library's ring, and cut off by the interpreter.
    "ours": (OURS, False, EIGHT_GPUS), "library": (dict.fromkeys(OURS, LIBRARY), True, EIGHT_GPUS),
    "interpreted": (OURS, False, INTERPRETED),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("ranks", "results"), [(2, 20), (8, 20), whole(2, 1000), whole(4, 1000), whole(8, 1000)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", OURS)
def test_right_results_pass(name: str, dtype: str, ranks: int, results: int, way: str) -> None:
    configs, hops, machine = WAYS[way]
    tolerance = allowed(name, configs[name], dtype, ranks, machine)
    cut = way == "interpreted" and dtype == "bf16"
    for seed in range(results):
        right = simulated(ranks, name != "all_gather_gemm", hops, TORCH_DTYPES[dtype], cut, seed, ROWS * COLUMNS)
        found = distance(*right)
        assert found.overall <= tolerance.overall and found.element <= tolerance.element, seed


@pytest.mark.parametrize("name", ["all_reduce_norm", "gemm_all_reduce_norm"])
def test_a_right_norm_passes_where_the_heaviest_weight_meets_the_largest_error(name: str) -> None:
    """On two H100 it did in one call of some hundreds: the sum of two parts, each twice as large as the residual."""
    found, rows, columns = workload(name), 512, 8192
    sizes = {"m": rows, "n": columns, "world_size": 2}
    problem = found.problem_type(**sizes, **({} if name == "all_reduce_norm" else {"k": columns}))
    config = next(c for c in found.first_configs(Task(problem, EIGHT_GPUS)) if c["mode"] == "two_shot")
    tolerance = found.tolerance_of(Task(problem, EIGHT_GPUS), config)
    for seed in range(2):
        parts = [2 * drawn((rows, columns), torch.float32, CPU, 10 * seed + part) for part in range(2)]
        residual = drawn((rows, columns), torch.bfloat16, CPU, 10 * seed + 2).float() * 2**0.5
        right = sum(parts) + residual
        result = ((parts[0].bfloat16().float() + parts[1].bfloat16()).bfloat16() + residual).bfloat16().float()
        weight = drawn_weight((columns,), CPU, 10 * seed + 3).bfloat16().float()
        worst, heaviest = int((result - right).abs().max(0).values.argmax()), int(weight.argmax())
        weight[[worst, heaviest]] = weight[[heaviest, worst]]

        normed = [total * total.square().mean(1, keepdim=True).rsqrt() * weight for total in (result, right)]
        error = distance(normed[0].bfloat16(), normed[1])
        assert error.overall <= tolerance.overall and error.element <= tolerance.element


def test_errors_count_whatever_their_sign_place_and_type_and_nan_is_the_largest() -> None:
    one, zero = torch.ones(4), torch.zeros(4)
    low, broken = torch.tensor([0.5, 1.0, 1.0, 1.0]), torch.tensor([1.0, math.nan, 1.0, 1.0])
    assert distance(low, one) == Error(0.25, 0.5) == farthest([one, low], [one, one])
    for results in ([broken, low], [low, broken]):
        found = farthest(results, [one, one])
        assert math.isnan(found.overall) and math.isnan(found.element)
    assert distance(zero, zero) == Error(0.0, 0.0) and distance(low, zero) == Error(math.inf, math.inf)
    assert distance(torch.tensor([1 / 3]).bfloat16(), torch.tensor([1 / 3])).overall > 1e-3


@pytest.mark.parametrize("machine", [EIGHT_GPUS, INTERPRETED])
def test_a_result_of_few_elements_may_scatter_more(machine: Machine) -> None:
    found = workload("all_gather_gemm")

    def overall(m: int) -> float:
        problem = found.problem_type(m=m, n=2, k=64, world_size=2)
        return found.tolerance_of(Task(problem, machine), OURS["all_gather_gemm"]).overall

    assert overall(2) > 1.5 * overall(1 << 12) and overall(1 << 12) < 1.1 * overall(1 << 16)


def scaled(scales: str, **fields: Any) -> Any:
    """A problem of one rank, as deep as those that are tuned."""
    sizes = {"m": ROWS, "n": COLUMNS, "k": DEPTH, "world_size": 1, "b_order": "nk"}
    return workload("all_gather_gemm").problem_type(**sizes, dtype="fp8", scales=scales, **fields)


@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
def test_small_faults_of_scales_are_seen(scales: str) -> None:
    fp8, found = OPERAND_DTYPES["fp8"], workload("all_gather_gemm")
    a, b = drawn_deep((ROWS, DEPTH), fp8, CPU, 10), drawn((DEPTH, COLUMNS), fp8, CPU, 50)
    shapes = scale_shapes(scales, (ROWS, DEPTH), (DEPTH, COLUMNS))
    scale_a, scale_b = (drawn_scales(shape, CPU, 90 + number) for number, shape in enumerate(shapes))
    expected = dequantised(a, scale_a) @ dequantised(b, scale_b)
    tolerances = {
        out: found.tolerance_of(Task(scaled(scales, out_dtype=out), EIGHT_GPUS), OURS["all_gather_gemm"])
        for out in ("bf16", "fp16", "fp32")
    }

    def passing(of_a: torch.Tensor, of_b: torch.Tensor, first: int = 0) -> set[str]:
        product = dequantised(a, of_a)[:, first:] @ dequantised(b, of_b)[first:]
        errors = {out: distance(product.to(TORCH_DTYPES[out]), expected) for out in tolerances}
        allowed = tolerances.items()
        return {out for out, t in allowed if errors[out].overall <= t.overall and errors[out].element <= t.element}

    assert passing(scale_a, scale_b) == set(tolerances)
    assert torch.finfo(fp8).max / 2 >= a.float().abs().max() > 64
    faults = {
        "dropped": (torch.ones_like(scale_a), scale_b),
        "of b dropped": (scale_a, torch.ones_like(scale_b)),
        "twice": (scale_a**2, scale_b),
        "another call's": (drawn_scales(shapes[0], CPU, 77), scale_b),
        "an earlier call's": (scale_a * 2, scale_b),
    }
    if scales != "tensor":
        one_row = scale_a.clone()
        one_row[-1] = scale_a[0]
        faults |= {"the next row's": (scale_a.roll(1, 0), scale_b), "one row's": (one_row, scale_b)}
        faults |= {"the next column's": (scale_a, scale_b.roll(1, 1 if scales == "row" else 0))}
    for name, (of_a, of_b) in faults.items():
        assert not passing(of_a, of_b), name
    assert not passing(scale_a, scale_b, first=1), "the first of K is lost"


def test_sums_in_tensor_cores_are_allowed_for_where_they_are() -> None:
    found = workload("all_gather_gemm")

    def allowed_overall(machine: Machine, **fields: Any) -> float:
        return found.tolerance_of(Task(scaled("row", **fields), machine), OURS["all_gather_gemm"]).overall

    assert allowed_overall(INTERPRETED, out_dtype="fp16") < allowed_overall(EIGHT_GPUS, out_dtype="fp16")
    assert allowed_overall(EIGHT_GPUS) < 3e-3 < 1e-2 < allowed_overall(EIGHT_GPUS, fast_accum=True)
    assert allowed_overall(MI300X) == allowed_overall(MI300X, fast_accum=True)


@pytest.mark.parametrize("rows", [1, 3, 64, 600])
def test_what_travels_holds_zeros_of_both_signs_at_places_of_their_own(rows: int) -> None:
    places = []
    for seed in range(4):
        matrix = drawn_with_zeros((rows, 256), torch.bfloat16, CPU, seed)
        zero = matrix == 0
        found = zero.all(1) if rows > 3 else zero[0]
        places.append(found.nonzero().flatten().tolist())
        assert len(places[-1]) == {1: 16, 3: 16, 64: 4, 600: 32}[rows] and int(zero.sum()) < 0.1 * zero.numel()
        assert {True, False} == set(torch.signbit(matrix[zero]).tolist())
        assert places[-1] == list(range(places[-1][0], places[-1][-1] + 1)), "whole words and vectors"
    assert rows < 4 or len({first for first, *_ in places}) == 4


@pytest.mark.parametrize(("roundings", "quantised"), [(0.0, False), (1.0, False), (1.0, True)])
def test_a_gated_result_is_allowed_what_its_roundings_cost_and_little_more(roundings: float, quantised: bool) -> None:
    """By simulation; gate and up may be rounded before, and the result travels as fp8 with a scale for each row."""
    gate, up = torch.randn((2, 512, 256), generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.silu(gate) * up
    if roundings:
        gate, up = gate.bfloat16().float(), up.bfloat16().float()
    result = (torch.nn.functional.silu(gate) * up).bfloat16().float()
    if quantised:
        scale = result.abs().amax(1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        result = (result / scale).to(torch.float8_e4m3fn).float() * scale
    found = distance(result, expected)
    problem = SimpleNamespace(result_dtype="bf16", k=DEPTH, scaled=False)
    allowed = rounded_gated(Task(problem, EIGHT_GPUS), roundings, expected.numel(), quantised=quantised)
    assert found.overall < allowed.overall < 2 * found.overall, (found, allowed)
    assert found.element < allowed.element < 40 * found.element, (found, allowed)
