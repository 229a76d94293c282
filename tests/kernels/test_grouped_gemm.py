"""The grouped GEMM is right alone: under the interpreter and on GPUs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import grouped
import pytest
import torch
from every_mode import on_cpu
from ranks_of_functions import run_ranks

from autotune.kernels.moe.grouped_launch import GroupedOperands, grouped_arguments
from autotune.kernels.moe.library import has_grouped

CASES: list[dict[str, Any]] = [
    *({"counts": counts, "gather": gather} for counts in grouped.COUNTS for gather in (False, True)),
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
    (errors,) = run_ranks(grouped.__file__, "all_wrong", 1, folder, gpu=gpu, argument=cases)
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
    knobs = dataclasses.replace(grouped.TILE, block_m=16, block_n=32, programs_per_unit=3)
    assert knobs.most_tiles(40, 3, 72) == (40 + 3 * 15) // 16 * 3 == 15, "an expert's last tile may have one row"
    assert knobs.most_tiles(2, 3, 72) == 2 * 3, "no more than rows"
    assert [knobs.grouped_programs(40, 3, 72, units) for units in (2, 100)] == [6, 15]
    assert knobs.grouped_programs(0, 3, 72, 2) == 1


def test_fp8_sums_are_promoted_unless_the_problem_asks_for_fast_ones() -> None:
    a, b = torch.zeros(8, 64), torch.zeros(2, 32, 64).transpose(1, 2)
    row = GroupedOperands(a, b, torch.zeros(3, dtype=torch.int32), 8, scales="row")
    fp8 = dataclasses.replace(row, b=b.to(torch.float8_e4m3fn))
    promoted = [
        grouped_arguments(grouped.TILE, each)["PROMOTE"]
        for each in (fp8, dataclasses.replace(fp8, fast_accum=True), row)
    ]
    assert promoted == [grouped.TILE.block_k, None, None]


def test_torch_multiplies_groups_of_bf16_alone_and_on_gpus() -> None:
    """Elsewhere the library's way reads the offsets on the host."""
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    assert [has_grouped(kind, on_gpu) for kind in kinds for on_gpu in (True, False)] == [True] + [False] * 5
