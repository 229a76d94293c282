"""A Llama of Hugging Face transformers, its own tensor-parallel plan on our styles; mixtures, by our experts."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_of_functions import run_ranks
from two_ranks import A_GPU_EACH

ON_RANKS = str(Path(__file__).with_name("llama_on_ranks.py"))
MIXTURES = str(Path(__file__).with_name("mixtures_on_ranks.py"))


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_a_llama_by_its_own_plan_is_the_whole_one(gpu: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.17")
    argument = (f"sqlite:///{tmp_path / 'none.db'}", str(tmp_path))
    for found in run_ranks(ON_RANKS, "llama", 2, tmp_path, gpu=gpu, argument=argument):
        for name in ("kinds", "loaded kinds"):
            assert found[name] == ["ColwiseLinear", "RowwiseLinear"]
        for name in ("logits", "gradients", "inference", "loaded", "tied"):
            assert found[name] < 2e-5, found
        assert found["generated"] and found["shards"] == [True]
        assert found["theirs again"].startswith("transformers.")
        assert found["no plan"].startswith("InputError")


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_a_llama_in_fp8_by_blocks_goes_through_the_pass(gpu: str, tmp_path: Path) -> None:
    """Each rounds other sums to fp8 here and there, where a sum lies in the middle; on GPUs of bf16."""
    pytest.importorskip("transformers", minversion="5.17")
    for found in run_ranks(ON_RANKS, "fp8", 2, tmp_path, gpu=gpu, argument=f"sqlite:///{tmp_path / 'none.db'}"):
        assert found["eager"] < (0.12 if gpu else 0.01), found
        told = [line for line in found["explained"] if "gemm-all-reduce m=16 n=512 k=1024 dtype=fp8" in line]
        assert len(told) == 4 and all("scales=block" in line for line in told), found["explained"]
        assert all("gemm-all-reduce-norm-quantised" in line for line in told[:3]), "the last norm is not quantised"
        assert found["styled"] and found["half blocks"].startswith("InputError")
        if gpu:
            assert found["compiled"] < 0.12, found
            assert sum(": replaced: mode " in line for line in found["lines"]) >= 2, found["lines"]


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_a_mixture_whose_experts_ranks_share_out_is_the_whole_one(gpu: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.23")
    argument = (f"sqlite:///{tmp_path / 'none.db'}", str(tmp_path))
    for found in run_ranks(MIXTURES, "mixtures", 2, tmp_path, gpu=gpu, argument=argument):
        for name in ("Mixtral", "Qwen3Moe", "GptOss", "both", "loaded", "trained"):
            assert found[name] < 2e-5, found
        assert all(found[f"{kind} same names"] for kind in ("Mixtral", "Qwen3Moe", "GptOss"))
        assert found["Mixtral experts"] == [[2, 48, 32]] * 2 and found["Qwen3Moe experts"] == [[3, 32, 32]] * 2
        assert found["both kinds"] == ["ColwiseLinear", "ExpertParallel", "RowwiseLinear"]
        assert found["called"] == ["gemm_all_reduce", "moe_dispatch_gemm", "moe_gemm_combine"]
        assert found["theirs again"] == "AutoEP"
        assert all(told.startswith("InputError") for told in found["refused"].values())
