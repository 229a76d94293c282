"""Random inputs that every rank can draw from a seed, how far a result is from its reference, and how far it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from autotune.dtypes import DTYPES, SCALE_BLOCK
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads.tolerance import RIGHT, WRONG, Error, Tolerance

HEAVY = 4
"""Columns at the end of a matrix's depth that ``drawn_deep`` makes heavy."""

HEAVY_SHARE = 1 / 16
"""Share of a product's variance that each of them brings: a mask that is off by one loses that much."""

MARGIN = 1.5
"""Tolerance over the error expected from the roundings."""

WHOLE_FROM = 4
"""Rows of a matrix from which on it gets whole rows of zeros."""

ZEROS_IN, MOST_ZEROS = 16, 32
"""One row in so many is zero, and no more than so many rows."""

SCALE = 0.75
"""The middle of the scales that are drawn: all of them twice too few, or too many, shows as well."""

SPREAD = 2.0
"""The largest root of the mean square where a row and a column meet, over that of the product, with such scales."""

TRUNCATED = 2**-15
"""Most that an fp8 sum loses on average per 32 of K on sm_90 (14 bits are kept). Not measured by us yet."""

OF_FP8 = 0.0265
"""Error of rounding rows of normally distributed numbers to fp8, e4m3, each row with a scale, as a share (Frobenius
norms): 0.024 with 32 elements in a row, 0.026 with 256, by simulation."""

HALF_UNIT_OF_FP8 = 2**-4
"""Half a unit in the last place of such a number, at most, as a share of it."""

GATED = 2.5
"""Growth of a squared error in gate and up, each of about 1, through activation(gate) * up, by simulation."""

GATED_FEW = 40
"""With such scales one element of so many makes up the mean square of such a result, (sum of squares)^2 over the sum of
fourth powers by simulation: the error scatters as if there were no others."""

GATED_PEAK = 8.0
"""The largest element of such a result, in units of ``PEAK``: it is a product of two normal numbers, and a row whose
heavy columns are large has both large. Of 67 million elements one is beyond 41 times the root of the mean square in
one draw of 46, as happened on two H200, and beyond 64 in one of 70,000 (by integration, gates of about 1).
"""

HEAVIEST = 2.0
"""The largest weight of a norm that ``drawn_weight`` draws, which an element's error grows by: 1 and four times 1/4."""

PEAK = 8
"""The largest element of a product, in units of the root of the mean square: none of 10^9 is larger."""


def drawn(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """Normally distributed numbers, the same on every rank for the same seed: a reference needs no communication."""
    return _rounded_to(dtype, _normal(shape, device, seed))


def drawn_with_zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """A drawn matrix that travels, with zeros in it."""
    return _rounded_to(dtype, with_zeros(_normal(shape, device, seed), seed))


def drawn_deep(shape: tuple[int, int], dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    """A matrix [rows, depth] to be multiplied, like ``drawn``, whose last columns are so large that each shows alone,
    and which holds zeros.

    A kernel that loses the end of a ragged depth loses little of 28672 columns that are all alike.
    """
    matrix = with_zeros(_normal(shape, device, seed), seed)
    matrix[:, -HEAVY:] *= max(1.0, math.sqrt(shape[1] * HEAVY_SHARE))
    return _rounded_to(dtype, matrix)


def with_zeros(matrix: torch.Tensor, seed: int) -> torch.Tensor:
    """The matrix, of which some rows in a row are now zero, of both signs, the first of them chosen by ``seed``; of
    fewer rows than ``WHOLE_FROM`` a part of the first.

    What travels holds zeros then, in whole words, vectors and units: a protocol whose empty words have bits of their
    own may lose some that no random number has. They are few: a multiplication of zeros takes less power.
    """
    rows, columns = matrix.shape
    if rows >= WHOLE_FROM:
        count = max(1, min(MOST_ZEROS, rows // ZEROS_IN))
        matrix[seed % (rows - count + 1) :][:count] *= 0
    else:
        matrix[:1, columns // 4 :][:, : max(1, min(MOST_ZEROS, columns // ZEROS_IN))] *= 0
    return matrix


def _rounded_to(dtype: torch.dtype, matrix: torch.Tensor) -> torch.Tensor:
    """Round to an element type; fp8 to at most half of its largest number, so that twice as much is a number, too."""
    if dtype.itemsize == 1:
        most = torch.finfo(dtype).max / 2
        matrix = matrix.clamp_(-most, most)
    return matrix.to(dtype)


def drawn_scales(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    """Scales that differ from each other and from one, by up to a factor of two: one that is dropped, or another one's,
    changes what it scales by a fifth or so.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    drawn = torch.rand(shape, generator=generator, device=device, dtype=torch.float32)
    return torch.exp2(drawn - 0.5) * SCALE


def drawn_bias(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int, depth: int) -> torch.Tensor:
    """A bias as large as the elements of a product of that depth: of N(0, 1) nothing would be seen beside them."""
    return (_normal(shape, device, seed) * math.sqrt(depth)).to(dtype)


def drawn_weight(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    """Weights of a norm, in fp32: about one, none near zero."""
    return 1 + 0.25 * _normal(shape, device, seed)


def _normal(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    generator = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32)


def distance(result: torch.Tensor, reference: torch.Tensor) -> Error:
    """The error of ``result`` in the type of ``reference`` (fp32, or fp64 for fp32 results); NaN where it holds one.

    Of nothing but zeros it is infinite or, where the result is zero as well, none.
    """
    difference = result.to(reference.dtype) - reference
    norm = reference.norm()
    if norm == 0:
        return RIGHT if bool((difference == 0).all()) else WRONG
    rms = norm / reference.numel() ** 0.5
    return Error(float(difference.norm() / norm), float(difference.abs().max() / rms))


def farthest(results: Sequence[torch.Tensor], references: Sequence[torch.Tensor]) -> Error:
    """The largest errors of several results."""
    return Error.largest([distance(*pair) for pair in zip(results, references, strict=True)])


def rounded(dtype: str, roundings: float, depth: int, elements: int, machine: Machine) -> Tolerance:
    """Tolerance of a product of ``depth``, accumulated in fp32, after ``roundings`` to ``dtype`` on the way.

    ``roundings`` counts each in units of one that rounds the whole result: rounding eight parts of it is one, as each
    has an eighth of the variance. They add up like noise. Triton's interpreter cuts bf16 off instead: twice the error,
    and always towards zero, so that errors add up as they are. Few ``elements`` scatter more around what is expected.
    """
    kind = DTYPES[dtype]
    if not kind.rounding:
        overall, element = kind.rounded_once
        growth = max(1.0, MARGIN * 2**-24 * math.sqrt(depth) / overall)
        return Tolerance(overall * growth, element * growth)
    growth = 2 * roundings if machine.is_interpreter and dtype == "bf16" else math.sqrt(roundings)
    scatter = 1 + 2 / math.sqrt(elements)
    return Tolerance(MARGIN * scatter * growth * kind.rounding, PEAK * growth * kind.half_unit)


def weighted(found: Tolerance) -> Tolerance:
    """A tolerance of what is then multiplied by the weights of a norm."""
    return Tolerance(found.overall, HEAVIEST * found.element)


def in_fp8(found: Tolerance, peak: float = HEAVIEST * PEAK) -> Tolerance:
    """A tolerance of what is then rounded to fp8, with a scale for each row or part of one; ``peak``: its largest
    element, by default a norm's.
    """
    return Tolerance(math.hypot(found.overall, MARGIN * OF_FP8), found.element + peak * HALF_UNIT_OF_FP8)


def rounded_product(task: Task[Any], roundings: float, elements: int, *, quantised: bool = False) -> Tolerance:
    """``rounded`` for the result of a ``GemmProblem``, with what scales and fp8's sums in tensor cores add to it.

    ``quantised``: the parts of a sum have travelled as fp8, a scale for each row of a tile.
    """
    found = rounded(task.problem.result_dtype, roundings, task.problem.k, elements, task.machine)
    return with_lost(task, in_fp8(found, PEAK) if quantised else found)


def with_lost(task: Task[Any], found: Tolerance) -> Tolerance:
    """A tolerance with what scales, and the sums of fp8 products in tensor cores, add to it."""
    if not task.problem.scaled:
        return found
    lost = _lost(task)
    return Tolerance(math.hypot(found.overall, MARGIN * lost), SPREAD * (found.element + PEAK * lost))


def rounded_gated(task: Task[Any], roundings: float, elements: int, *, quantised: bool = False) -> Tolerance:
    """Tolerance of activation(gate) * up of a product that is rounded so many times before; the result is rounded once,
    and if ``quantised`` to fp8, too.
    """
    problem = task.problem
    elements = max(1, elements // GATED_FEW)
    found = rounded(problem.result_dtype, 1.0 + GATED * roundings, problem.k, elements, task.machine)
    lost = math.sqrt(GATED) * _lost(task) if problem.scaled else 0.0
    spread = SPREAD if problem.scaled else 1.0
    peak = GATED_PEAK * spread
    found = Tolerance(math.hypot(found.overall, MARGIN * lost), peak * (found.element + PEAK * lost))
    return in_fp8(found, peak * PEAK) if quantised else found


def _lost(task: Task[Any]) -> float:
    """The share of a sum of fp8 products that the tensor cores lose."""
    if task.machine.kind != "cuda":
        return 0.0
    return TRUNCATED * (int(task.problem.gemm[2]) if task.problem.fast_accum else SCALE_BLOCK) / 32
