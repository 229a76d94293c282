"""Experts that ranks share out are all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks_of_functions import run_ranks
from two_ranks import A_GPU_EACH

import autotune

ON_RANKS = str(Path(__file__).with_name("experts_on_ranks.py"))
WAYS = {"eager", "batch", "compiled", "shard", "fewer", "replicated", "one token", "holes", "width", "part"}
WAYS |= {"most", "by recorded experts", "by recorded width", "frozen", "clamped by experts", "clamped by width"}
FP32, BF16 = 1e-5, 3e-2
REFUSED = {
    "tokens": "tokens=5", "experts": "experts=7", "hidden": "[3, 32, 32]", "width": "width=15", "share": "'rows'",
    "short": "ids [3, 3]", "long": "ids [5, 3]", "filled": "ids [3, 3]", "parts": "ids [4, 3]", "order": "gates [3, 5]",
    "down": "gate_up", "choices": "top_k=9", "gradient": "gradient",
}  # fmt: skip


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_experts_on_two_ranks_are_all_of_them(gpu: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'none.db'}"
    for found in run_ranks(ON_RANKS, "everything", 2, tmp_path, gpu=gpu, argument=url):
        assert {name for name in WAYS if found[name] < FP32} == WAYS, found
        assert all(FP32 < found[name] < BF16 for name in ("autocast", "autocast of bf16")), found
        assert found["its type"] == "torch.bfloat16"
        assert found["narrow"] == [[6, 16, 32], [6, 32, 8]]
        assert found["tokens"] == [6, 6], "half of the most that a call may bring"
        assert found["types"] == ["torch.bfloat16"] * 2 and found["of parts"] == [[6, 32, 16]] * 2
        assert found["drawn"] == [pytest.approx(32**-0.5, rel=0.05), pytest.approx(16**-0.5, rel=0.05)] * 2
        operators = ("moe_dispatch_gemm", "moe_gemm_combine")
        assert found["asked"] == [[operator, "zipf", 1.1, 6] for operator in operators]
        assert (found["counts by experts"], found["counts by width"]) == ([6, 6], [12, 12])
        assert found["clamped names"] == ["down_proj", "down_proj_bias", "gate_up_proj", "gate_up_proj_bias"]
        assert found["shares"] and found["names"] == ["down_proj", "gate_up_proj"]
        assert found["refused"].keys() == REFUSED.keys()
        for name, said in found["refused"].items():
            assert said.startswith("InvalidProblem") and REFUSED[name] in said, (name, said)


def test_a_router_chooses_the_likeliest_experts() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    ids, gates = autotune.nn.routed(logits, 2)
    assert ids.tolist() == [[1, 2]] and ids.dtype is torch.int32
    assert gates.sum().item() == pytest.approx(1.0)
    _, shares = autotune.nn.routed(logits.bfloat16(), 2, normalised=False)
    assert shares.dtype is torch.float32
    assert shares[0].tolist() == pytest.approx(torch.softmax(logits, -1)[0, [1, 2]].tolist())
