"""Experts that ranks share out are all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from calls import said
from ranks_of_functions import run_ranks
from shares import HEAP, difference
from two_ranks import A_GPU_EACH

import autotune
from autotune.kernels.moe.histogram import histogram_text, shares_of

WAYS = {"eager", "batch", "compiled", "shard", "fewer", "replicated", "one token", "holes", "width", "part"}
WAYS |= {"most", "by recorded experts", "by recorded width", "frozen", "clamped by experts", "clamped by width"}
FP32, BF16 = 1e-5, 3e-2
REFUSED = {
    "tokens": "tokens=5", "experts": "experts=7", "hidden": "[3, 32, 32]", "width": "width=15", "share": "'rows'",
    "short": "ids [3, 3]", "long": "ids [5, 3]", "filled": "ids [3, 3]", "parts": "ids [4, 3]", "order": "gates [3, 5]",
    "biases": "1 biases", "down": "gate_up", "choices": "top_k=9", "gradient": "gradient",
}  # fmt: skip


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_experts_on_two_ranks_are_all_of_them(gpu: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'none.db'}"
    for found in run_ranks(__file__, "everything", 2, tmp_path, gpu=gpu, argument=url):
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
        for name, told in found["refused"].items():
            assert told.startswith("InvalidProblem") and REFUSED[name] in told, (name, told)


def test_a_router_chooses_the_likeliest_experts() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    ids, gates = autotune.nn.routed(logits, 2)
    assert ids.tolist() == [[1, 2]] and ids.dtype is torch.int32
    assert gates.sum().item() == pytest.approx(1.0)
    _, shares = autotune.nn.routed(logits.bfloat16(), 2, normalised=False)
    assert shares.dtype is torch.float32
    assert shares[0].tolist() == pytest.approx(torch.softmax(logits, -1)[0, [1, 2]].tolist())


Tensor = torch.Tensor

HIDDEN, WIDTH, EXPERTS, TOP_K = 32, 16, 6, 3
SKEWED: dict[str, Any] = {"routing": "zipf", "exponent": 1.1}
TOKENS = (5, 3)  # of rank 0 and of rank 1


class Whole:
    """All experts, and what each token of a call gets from its own, expert by expert in fp64."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(3)
        self.gate_up_proj = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator).to(device) * HIDDEN**-0.5
        self.down_proj = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator).to(device) * WIDTH**-0.5

    def __call__(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        found = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for expert in range(EXPERTS):
            *place, choice = (ids == expert).nonzero(as_tuple=True)
            token = tuple(place)
            product = self.of(expert, x[token].double())
            found.index_put_(token, product * gates[(*token, choice)].double()[..., None], accumulate=True)
        return found

    def of(self, expert: int, x: Tensor) -> Tensor:
        gate, up = (x @ self.gate_up_proj[expert].double().T).chunk(2, -1)
        return (F.silu(gate) * up) @ self.down_proj[expert].double().T


class Clamped(Whole):
    """gpt-oss' experts: weights transposed, biases, and some gates clamped."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(4)

        def made(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        self.gate_up_proj = made(EXPERTS, HIDDEN, 2 * WIDTH) * HIDDEN**-0.5 * 4
        self.gate_up_proj_bias = made(EXPERTS, 2 * WIDTH)
        self.down_proj, self.down_proj_bias = made(EXPERTS, WIDTH, HIDDEN) * WIDTH**-0.5, made(EXPERTS, HIDDEN)

    def of(self, expert: int, x: Tensor) -> Tensor:
        product = x @ self.gate_up_proj[expert].double() + self.gate_up_proj_bias[expert]
        gate, up = product[:, 0::2].clamp(max=7.0), product[:, 1::2].clamp(-7.0, 7.0)
        out = (up + 1) * gate * torch.sigmoid(1.702 * gate) @ self.down_proj[expert].double()
        return out + self.down_proj_bias[expert]


def drawn(seed: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and their experts by a router."""
    generator = torch.Generator().manual_seed(seed)
    x, logits = (torch.randn(tokens, width, generator=generator).to(device) for width in (HIDDEN, EXPERTS))
    return x, *autotune.nn.routed(logits, TOP_K)


@torch.no_grad()
def everything(url: str) -> dict[str, Any]:
    """Differences of a layer from all experts on this rank, by the way it is made and called; and what is refused."""
    with autotune.Context(HEAP, url=url) as context:
        device, rank = context.heap.device, dist.get_rank()
        whole = Whole(device)
        own, same = drawn(10 + rank, TOKENS[0], device), drawn(20, 9, device)
        x, ids, gates = own
        layer = autotune.nn.ExpertParallel.from_experts(whole, context, **SKEWED)
        shard = autotune.nn.ExpertParallel.from_shard(layer, context, **SKEWED)
        bounded = autotune.nn.ExpertParallel.from_experts(whole, context, tokens=TOKENS[0])
        gathering = autotune.nn.ExpertParallel.from_experts(whole, context, replicated=True)
        fewer = tuple(each[: TOKENS[rank]] for each in own)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        batch = x[None], ids[None].long(), gates[None].double()
        found: dict[str, Any] = {
            "eager": difference(layer(*own), whole(*own)),
            "batch": difference(layer(*batch), whole(*batch)),
            "compiled": difference(compiled(*own), whole(*own)),
            "shard": difference(shard(*own), whole(*own)),
            "fewer": difference(bounded(*fewer), whole(*fewer)),
            "replicated": difference(gathering(*same), whole(*same)),
            "one token": difference(gathering(*(each[:1] for each in same)), whole(*(each[:1] for each in same))),
        }
        with torch.autocast(device.type, torch.bfloat16):
            found["autocast"] = difference(layer(*own), whole(*own))
            cast = layer(x.bfloat16(), ids, gates)
        found["autocast of bf16"], found["its type"] = difference(cast, whole(*own)), str(cast.dtype)
        narrow = autotune.nn.ExpertParallel.from_experts(whole, context, share="width")
        part = autotune.nn.ExpertParallel.from_shard(narrow, context, share="width")
        holes = x, ids.clone(), gates
        holes[1][0], holes[1][1, 0], holes[1][2, 1] = -1, -1, EXPERTS
        for way, each in {"holes": layer, "width": narrow, "part": part}.items():
            found[way] = difference(each(*holes), whole(*holes))
        clamped = Clamped(device)
        for share in ("experts", "width"):
            made = autotune.nn.ExpertParallel.from_experts(clamped, context, share=share, form=autotune.nn.GPT_OSS)
            found[f"clamped by {share}"] = difference(made(*own), clamped(*own))
        found["clamped names"] = sorted(made.state_dict())
        with autotune.collect() as by_tokens:
            more = autotune.nn.ExpertParallel.from_experts(whole, context, replicated=True, tokens=12)
            found["most"] = difference(more(*same), whole(*same))
        found["tokens"] = [each.tokens for each in by_tokens]
        drawn_here = autotune.nn.ExpertParallel(context, EXPERTS, HIDDEN, WIDTH, dtype=torch.bfloat16)
        in_parts = autotune.nn.ExpertParallel(context, EXPERTS, HIDDEN, WIDTH, share="width")
        found["drawn"] = [float(p.abs().max()) for each in (drawn_here, in_parts) for p in each.parameters()]
        like = autotune.nn.ExpertParallel.from_experts(drawn_here, context, share="width")
        found["types"] = [str(each.dtype) for each in like.parameters()]
        found["of parts"] = [[each.experts, each.hidden, each.width] for each in (part, shard)]
        found["narrow"] = [list(each.shape) for each in narrow.parameters()]
        with autotune.collect() as problems:
            layer(*own)
        recorded: dict[str, Any] = {"routing": "recorded", "histogram": histogram_text(range(EXPERTS))}
        for share in ("experts", "width"):
            kept = autotune.nn.ExpertParallel.from_experts(whole, context, share=share, **recorded)
            with autotune.collect() as by_counts:
                found[f"by recorded {share}"] = difference(kept(*own), whole(*own))
            found[f"counts by {share}"] = [len(shares_of(each.histogram)) for each in by_counts]
        found["asked"] = sorted((each.workload, each.routing, each.exponent, each.experts) for each in problems)
        found["shares"] = shard.gate_up_proj.data_ptr() == layer.gate_up_proj.data_ptr()
        found["names"] = sorted(layer.state_dict())
        found["refused"] = {
            "tokens": said(lambda: bounded(*(torch.cat([each, each]) for each in own))),
            "experts": said(lambda: autotune.nn.ExpertParallel(context, 7, HIDDEN, WIDTH)),
            "hidden": said(lambda: layer(x[:, :8], ids, gates)),
            "width": said(lambda: autotune.nn.ExpertParallel(context, EXPERTS, HIDDEN, 15, share="width")),
            "share": said(lambda: autotune.nn.ExpertParallel(context, 6, HIDDEN, WIDTH, share="rows")),  # type: ignore[arg-type]
            "short": said(lambda: layer(x, ids[:3], gates[:3])),
            "long": said(lambda: layer(x[:3], ids, gates)),
            "filled": said(lambda: bounded(x, ids[:3], gates[:3])),
            "parts": said(lambda: gathering(x, ids[:4], gates[:4])),
            "order": said(lambda: layer(x, ids, gates.T)),
            "biases": said(
                lambda: autotune.nn.expert_parallel(context, *own, layer.gate_up_proj, layer.down_proj, biases=(x,))
            ),
            "down": said(
                lambda: autotune.nn.expert_parallel(context, *own, layer.gate_up_proj, layer.down_proj.mT.contiguous())
            ),
            "choices": said(lambda: narrow(x, ids.repeat(1, 3), gates.repeat(1, 3))),
        }
        with torch.enable_grad():
            found["frozen"] = max(difference(each(*own), whole(*own)) for each in (layer, shard))
            found["refused"]["gradient"] = said(lambda: layer.requires_grad_()(*own))
        return found
