"""Contexts of groups that are a part of all ranks, and operators with the signatures of ``torch.ops.symm_mem``."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from calls import MODES, WORST, url
from ranks_of_functions import run_ranks
from two_ranks import A_GPU_EACH

from autotune import symm_mem

ON_RANKS = str(Path(__file__).with_name("groups_on_ranks.py"))
GEMMS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")


@pytest.mark.parametrize(
    "gpu", [pytest.param(False, id="interpreter"), pytest.param(True, id="4 GPUs", marks=pytest.mark.gpu(4))]
)
def test_two_contexts_of_a_mesh_are_right_in_turns(tmp_path: Path, gpu: bool) -> None:
    """What peers read by themselves is the same in all modes; the library's collectives have the group's."""
    answers = run_ranks(ON_RANKS, "groups", 4, tmp_path, gpu=gpu, argument=url(tmp_path))
    ways = {"looked up", *({"library"} if "bsp" in MODES["all_gather_gemm"] else ())}
    names = {f"{dim} {name} {way}" for dim in ("data", "tensor") for name in GEMMS for way in ways}
    for rank, found in enumerate(answers):
        assert found.pop("mesh").startswith("InputError")
        budget, ranks = found.pop("tune")
        assert budget.startswith("InvalidBudget") and "2 of the program's 4 ranks" in ranks, "and the context goes on"
        assert found.pop("ranks") == {"data": [rank % 2, rank % 2 + 2], "tensor": [rank // 2 * 2, rank // 2 * 2 + 1]}
        assert found.pop("not in it").startswith("InputError" if rank else "")
        assert found.pop("no such").startswith("InputError")
        assert set(found) == {*names, "symm_mem"}
        assert max(found.values()) < WORST, found


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_torchs_signatures_give_torchs_results_in_fp8(tmp_path: Path, gpu: str) -> None:
    for found in run_ranks(ON_RANKS, "as_torch", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert found.pop("opened") == [1, 1, 0]
        assert found.pop("side by side").startswith("RanksDisagree"), "they do on one rank alone"
        refused = found.pop("refused")
        assert all(text.startswith("InvalidProblem") for text in refused.values()), refused
        assert "biases" in refused["lists"] and "[16, 1]" in refused["scales"]
        assert all("not fp8" in refused[name] for name in ("fp8", "result scale", "scattered fp8"))
        operators = "all_gather_gemm", "gemm_reduce_scatter"
        assert found.pop("asked") == [[operator, "fp16", True] for operator in operators]
        assert found.pop("oldest") is True
        assert len(found) == 21 + 7, sorted(found)
        wrong = {name: each for name, each in found.items() if not isinstance(each, float) or each >= WORST}
        assert not wrong


@pytest.mark.parametrize(
    "name",
    [
        "fused_all_gather_matmul", "fused_all_gather_scaled_matmul", "fused_matmul_reduce_scatter",
        "fused_scaled_matmul_reduce_scatter",
    ],
)  # fmt: skip
def test_arguments_are_torchs_in_name_and_order(name: str) -> None:
    import torch.distributed._symmetric_memory  # defines them

    theirs = [argument.name for argument in getattr(torch.ops.symm_mem, name).default._schema.arguments]
    ours = list(inspect.signature(getattr(symm_mem, name)).parameters)
    assert ours == theirs or ours == [*theirs, "return_A"]
