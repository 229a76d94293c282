"""Calls without rows, in every operator and layer; tokens whose number differs from rank to rank, in every mode."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from calls import url
from ranks_of_functions import run_ranks
from two_ranks import A_GPU_EACH

ON_RANKS = str(Path(__file__).with_name("rows_on_ranks.py"))
WORST = 2e-2
"""Relative error of a right result in bf16, which the interpreter cuts off."""

PLAN: list[list[int]] = [[4], [0], [0]]
SHAPES = {
    "all_gather_gemm": [[0, 256]],
    "all_gather_gemm_gathered": [[0, 256], [0, 128]],
    "all_gather_gemm_quantised": [[0, 128], [0, 1]],
    "gemm_reduce_scatter": [[0, 256]],
    "gemm_all_reduce": [[0, 256]],
    "all_reduce_norm": [[0, 256], [0, 256]],
    "gemm_all_reduce_norm": [[0, 256], [0, 256]],
    "all_reduce_norm_quantised": [[0, 256], [0, 256], [0, 2]],
    "gemm_all_reduce_norm_quantised": [[0, 256], [0, 256], [0, 1]],
    "flash_decode": [[0, 2, 64]],
    "moe_dispatch": [[0, 128], *PLAN],
    "moe_dispatch_scaled": [[0, 128], *PLAN, [0, 1]],
    "moe_dispatch_gemm": [[0, 256], *PLAN],
    "moe_combine": [[0, 128]],
    "moe_gemm_combine": [[0, 128]],
}


@pytest.fixture(scope="module", params=A_GPU_EACH)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The answers of two ranks."""
    folder = tmp_path_factory.mktemp("rows")
    return run_ranks(ON_RANKS, "everything", 2, folder, gpu=request.param, argument=url(folder))


def test_a_call_without_rows_has_none_in_its_results_and_runs_nothing(ranks: list[dict[str, Any]]) -> None:
    for found in (each["without rows"] for each in ranks):
        assert set(found["operators"]) == set(SHAPES)
        assert {name: found["shapes"][name] for name in SHAPES} == SHAPES
        layers = {name: shapes for name, shapes in found["shapes"].items() if name not in SHAPES}
        assert len(layers) == 7 and all(shapes[0][:2] == [1, 0] for shapes in layers.values()), layers
        assert found["alike"] and found["zero"] and found["out"] and found["left"] and found["problems"] == 0, found
        assert found["gradients"] == [[[0, 128], 0.0]] * 6
        assert re.match("RanksDisagree: .*tokens= to the operators of a mixture", found["one alone"])


def test_tokens_may_differ_from_rank_to_rank(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert len(found["uneven"]) >= 5 + 7
        assert max(found["uneven"].values()) < WORST and found["compiled"] < WORST, found
