"""The grouped GEMM is right alone: under the interpreter and on GPUs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from every_mode import on_cpu
from ranks_of_functions import run_ranks

from autotune.heap.interpreter import mend_interpreter
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.gemm.problem import scale_shapes
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES
from autotune.kernels.moe.grouped_launch import GroupedOperands, grouped_arguments, grouped_gemm
from autotune.kernels.moe.grouped_space import GroupedTile
from autotune.kernels.moe.library import has_grouped
from autotune.machine import machine

TILE = GroupedTile(
    mode="none", block_m=16, block_n=32, block_k=32, group_m=2, num_warps=4, num_stages=2, loads="pointer",
    swap_ab=False, programs_per_unit=1,
)  # fmt: skip
COUNTS: dict[str, list[int]] = {
    "even": [8, 8, 8], "some empty": [0, 17, 0, 1, 0], "one takes all": [0, 40, 0], "none": [0, 0], "one": [1],
    "long": [3, 201],
}  # fmt: skip
SPARE = 5
"""Rows beyond the last expert's."""

CASES: list[dict[str, Any]] = [
    *({"counts": counts, "gather": gather} for counts in COUNTS for gather in (False, True)),
    {"counts": "some empty", "dtype": "fp16", "b_order": "nk", "knobs": {"group_m": 1}},
    {"counts": "some empty", "dtype": "fp32", "n": 96, "k": 64, "knobs": {"swap_ab": True}},
    {"counts": "some empty", "epilogue": "swiglu", "b_order": "nk", "gather": True},
    {"counts": "even", "epilogue": "swiglu", "halves": False, "knobs": {"swap_ab": True}},
    {"counts": "one takes all", "epilogue": "swiglu", "gather": True, "knobs": {"swap_ab": True, "block_k": 64}},
    {"counts": "some empty", "dtype": "fp8", "b_order": "nk", "k": 96, "gather": True},
    {"counts": "even", "dtype": "fp8", "b_order": "nk", "k": 96, "epilogue": "swiglu", "knobs": {"swap_ab": True}},
]
TMA: list[dict[str, Any]] = [
    {"counts": "some empty", "k": 64, "n": 64},
    {"counts": "some empty", "k": 96, "n": 96, "b_order": "nk", "gather": True},
    {"counts": "even", "k": 96, "n": 96, "b_order": "nk", "epilogue": "swiglu", "knobs": {"swap_ab": True}},
]
IN_TURN = {"block_m": 128, "block_n": 32, "num_warps": 1}
PARTS: list[dict[str, Any]] = [
    {"counts": "long", "dtype": "fp8", "b_order": "nk", "k": 96, "n": 64, "gather": gather, "knobs": IN_TURN, **more}
    for gather, more in ((False, {}), (True, {}), (True, {"epilogue": "swiglu"}))
] + [
    {"counts": "long", "dtype": "fp8", "b_order": "nk", "k": 256, "n": 160, "scales": "block", "gather": gather,
     "knobs": {**IN_TURN, "block_k": 128}}
    for gather in (False, True)
]  # fmt: skip
"""Tiles whose upper and lower rows are multiplied in turn."""
ELEMENT = {"bf16": 0.08, "fp16": 0.01, "fp32": 1e-4, "fp8": 0.08}
"""Largest error of an element: rounded once."""


def by_tma(case: dict[str, Any]) -> dict[str, Any]:
    return {**case, "knobs": {**case.get("knobs", {}), "loads": "tma"}}


def check(cases: list[dict[str, Any]], folder: Path, *, gpu: bool) -> None:
    (errors,) = run_ranks(__file__, "all_wrong", 1, folder, gpu=gpu, argument=cases)
    wrong = {str(case): error for case, error in zip(cases, errors, strict=True)
             if not error <= (2.0 if "epilogue" in case else 1.0) * ELEMENT[case.get("dtype", "bf16")]}  # fmt: skip
    assert not wrong


def test_it_is_right_under_the_interpreter(tmp_path: Path) -> None:
    on_cpu()
    check([*CASES, *map(by_tma, [*TMA, *PARTS])], tmp_path, gpu=False)


@pytest.mark.gpu
def test_it_is_right_on_a_gpu(tmp_path: Path) -> None:
    large = {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 3}
    cases, wide = [*CASES, *map(by_tma, TMA)], {**IN_TURN, "block_n": 128, "block_k": 128, "num_warps": 4}
    parts = [by_tma({**case, "knobs": wide}) for case in PARTS]
    check(
        [*cases, *parts, *({**case, "knobs": {**case.get("knobs", {}), **large}} for case in cases)], tmp_path, gpu=True
    )


def test_programs_are_as_many_as_tiles_or_as_a_unit_is_to_have() -> None:
    knobs = dataclasses.replace(TILE, block_m=16, block_n=32, programs_per_unit=3)
    assert knobs.most_tiles(40, 3, 72) == (40 + 3 * 15) // 16 * 3 == 15, "an expert's last tile may have one row"
    assert knobs.most_tiles(2, 3, 72) == 2 * 3, "no more than rows"
    assert [knobs.grouped_programs(40, 3, 72, units) for units in (2, 100)] == [6, 15]
    assert knobs.grouped_programs(0, 3, 72, 2) == 1


def test_fp8_sums_are_promoted_unless_the_problem_asks_for_fast_ones() -> None:
    a, b = torch.zeros(8, 64), torch.zeros(2, 32, 64).transpose(1, 2)
    row = GroupedOperands(a, b, torch.zeros(3, dtype=torch.int32), 8, scales="row")
    fp8 = dataclasses.replace(row, b=b.to(torch.float8_e4m3fn))
    promoted = [
        grouped_arguments(TILE, each)["PROMOTE"] for each in (fp8, dataclasses.replace(fp8, fast_accum=True), row)
    ]
    assert promoted == [TILE.block_k, None, None]


def test_torch_multiplies_groups_of_bf16_alone_and_on_gpus() -> None:
    """Elsewhere the library's way reads the offsets on the host."""
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    assert [has_grouped(kind, on_gpu) for kind in kinds for on_gpu in (True, False)] == [True] + [False] * 5


def wrong(case: dict[str, Any]) -> float:
    """The largest error of an element over the root of the mean square; infinite where rows were stored that do not
    exist.
    """
    here = machine()
    device = torch.device("cpu" if here.is_interpreter else "cuda")
    counts, n, k = COUNTS[case["counts"]], case.get("n", 72), case.get("k", 80)
    dtype, epilogue = case.get("dtype", "bf16"), case.get("epilogue", "none")
    halves = epilogue != "none" and case.get("halves", True)
    knobs = dataclasses.replace(TILE, **case.get("knobs", {}))
    generator = torch.Generator().manual_seed(1)
    rows, fp8 = sum(counts) + SPARE, dtype == "fp8"
    kind, result = OPERAND_DTYPES[dtype], TORCH_DTYPES["bf16" if fp8 else dtype]
    gather = torch.randperm(2 * rows, generator=generator)[:rows].to(torch.int32) if case.get("gather") else None
    per = 2
    a = torch.randn((rows, k), generator=generator).to(kind)
    b = torch.randn((len(counts), n, k), generator=generator).to(kind).transpose(1, 2)
    b = b.contiguous() if case.get("b_order", "kn") == "kn" else b
    scales = case.get("scales", "row") if fp8 else "none"
    scale_a = scale_b = None
    if fp8:
        of_a, (along_k, along_n) = scale_shapes(scales, (rows, k), (k, n))
        scale_a = torch.rand(of_a, generator=generator) + 0.5
        scale_b = (torch.rand((len(counts), along_n, along_k), generator=generator) + 0.5).transpose(1, 2)
    offsets = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    c = torch.full((rows, n // 2 if epilogue != "none" else n), 7.0, dtype=result)

    def there(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else tensor.to(device)

    operands = GroupedOperands(
        there(a), there(b), there(offsets), rows, there(gather), per, there(scale_a), there(scale_b), scales,
        epilogue=epilogue, halves=halves,
    )  # fmt: skip
    c = c.to(device)
    units = 3 if here.is_interpreter else here.compute_units
    grouped_gemm(knobs, operands, c, units).run()
    c, worst = c.cpu(), 0.0
    for expert, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        chosen = torch.arange(int(begin), int(end))
        chosen = chosen if gather is None else gather[begin:end].long() // per
        of_a, of_b = a[chosen].double(), b[expert].double()
        if scale_a is not None and scale_b is not None:
            of_a, of_b = (
                dequantised(a[chosen], scale_a[chosen]).double(),
                dequantised(b[expert], scale_b[expert]).double(),
            )
        product = of_a @ of_b
        if epilogue != "none":
            gate, up = product.chunk(2, 1) if halves else (product[:, ::2], product[:, 1::2])
            product = torch.nn.functional.silu(gate) * up
        if len(product):
            difference = (c[begin:end].double() - product).abs().max() / product.square().mean().sqrt()
            worst = max(worst, float(difference))
    return worst if bool((c[int(offsets[-1]) :] == 7.0).all()) else float("inf")


def all_wrong(cases: list[dict[str, Any]]) -> list[float]:
    """On a rank: the error of each case."""
    if machine().is_interpreter:
        mend_interpreter()
    return [wrong(case) for case in cases]
