"""Layers of a model on real ranks under the interpreter: plain and ours agree, and every failure ends at once."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks_of_functions import run_ranks
from scripts import run_script
from toys import Collectives, ThenWrong

from autotune.errors import GangError, InputError, WrongResult
from autotune.heap.interpreter import mend_interpreter
from autotune.machine import machine
from autotune.model_runs.layers import sums_of_experts
from autotune.model_runs.measured import ModelLayers
from autotune.model_runs.ranks import SILENCE, rows_of
from autotune.models.architecture import Architecture, Biases, LinearAttention
from autotune.models.forward import Plan
from autotune.models.mixture import Mixture
from autotune.outcome import DEFAULT_REGIME

MODEL = Architecture("llama", 3, 32, 4, 2, 8, 48, 100, Biases(qkv=True, out=True), None)
EXPERTS = Mixture(3, experts=4, top_k=2, width=16, shared=24)


def with_experts(**changed: Any) -> Architecture:
    return dataclasses.replace(MODEL, biases=Biases(), mixture=dataclasses.replace(EXPERTS, **changed))


MIXTURE, UNSHARED = with_experts(), with_experts(shared=0)
PLAN = Plan(ranks=2, dtype="fp32", sequence_parallel_from=8)
BF16 = dataclasses.replace(PLAN, dtype="bf16")


def measurement(
    folder: Path, tokens: tuple[int, ...], plan: Plan = PLAN, layers: int = 1, model: Architecture = MODEL,
    kind: type[ModelLayers] = ModelLayers,
) -> ModelLayers:  # fmt: skip
    return kind.of(model, plan, tokens, layers, f"sqlite:///{folder / 'none.db'}", DEFAULT_REGIME)


def interpreted() -> None:
    if not machine().is_interpreter:
        pytest.skip("this is for Triton's interpreter")


def test_a_forward_by_our_styles_is_plains(tmp_path: Path) -> None:
    interpreted()
    (row,) = rows_of(measurement(tmp_path, (8,)), machine())
    assert row["tokens"] == 8 and set(row["us"]) == {"plain eager", "styles eager"}
    assert row["error"] < 1e-5 and set(row["ratios"]) == {"styles"}


def test_experts_by_ours_are_plains_and_a_wrong_one_is_an_error(tmp_path: Path) -> None:
    """With and without sequence parallelism; every operator's problem is one that ``tune model`` tunes."""
    interpreted()
    exact = dataclasses.replace(measurement(tmp_path, (3, 8), BF16, model=MIXTURE, kind=ThenWrong), plan=PLAN)
    told: list[Any] = []
    with pytest.raises(WrongResult, match="differ from plain's"):
        told.extend(rows_of(exact, machine()))
    *rows, problems = told
    assert [row["tokens"] for row in rows] == [3, 8] and max(row["error"] for row in rows) < 1e-6
    assert problems == {call.problem for forward in exact.forwards for call in forward.calls}


def plains_experts(_: None) -> float:
    """The largest difference of ``sums_of_experts`` from a loop over tokens; a third of their experts are here."""
    mend_interpreter()
    x, gates, gate_up, down = torch.randn(7, 32), torch.rand(7, 2), torch.randn(3, 48, 32), torch.randn(3, 32, 24)
    ids = torch.stack([torch.randperm(9)[:2] - 3 for _ in x]).int()
    expected = torch.zeros_like(x)
    for token, chosen in enumerate(ids.tolist()):
        for choice, expert in enumerate(chosen):
            if 0 <= expert < 3:
                gate, up = (gate_up[expert] @ x[token]).chunk(2)
                expected[token] += gates[token, choice] * (down[expert] @ (F.silu(gate) * up))
    return float((sums_of_experts(x, ids, gates, gate_up, down) - expected).abs().max())


def test_plains_experts_are_those_of_a_loop_over_tokens(tmp_path: Path) -> None:
    (difference,) = run_ranks(__file__, "plains_experts", 1, tmp_path)
    assert difference < 1e-3


def test_experts_make_the_collectives_that_a_prediction_counts(tmp_path: Path) -> None:
    """In a prefill plain torch makes those of the library's way, and ours none beside the operators."""
    interpreted()
    decode, prefill = 4, 8
    made = measurement(tmp_path, (decode, prefill), BF16, model=UNSHARED, kind=Collectives)
    exact = dataclasses.replace(made, plan=PLAN)
    found = {(row["tokens"], row["way"]): Counter(row["counts"]) for row in rows_of(exact, machine())}
    for tokens, forward in zip(exact.tokens, exact.forwards, strict=True):
        spared, gathers = sum(call.spared for call in forward.calls), sum(call.gathers for call in forward.calls)
        assert found[tokens, "plain"].total() == found[prefill, "plain"].total() - spared
        assert found[tokens, "styles"] == Counter(all_gather_into_tensor=gathers)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "separate"), [(MODEL, False), (MODEL, True), (MIXTURE, True), (UNSHARED, False)])
def test_decode_and_prefill_of_several_layers(model: Architecture, separate: bool, tmp_path: Path) -> None:
    interpreted()
    made = measurement(tmp_path, (16, 2, 3), BF16, layers=2, model=model)
    exact = dataclasses.replace(made, plan=dataclasses.replace(PLAN, separate=separate))
    rows = list(rows_of(exact, machine()))
    assert [row["tokens"] for row in rows] == [2, 3, 16]
    assert max(row["error"] for row in rows) < 1e-5


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize("mixture", [None, Mixture(3, 16, 4, 128, shared=0), Mixture(3, 8, 2, 128, shared=256)])
def test_a_forward_on_gpus(mixture: Mixture | None, tmp_path: Path) -> None:
    model = dataclasses.replace(MODEL, hidden=256, head_dim=64, intermediate=512, mixture=mixture)
    for row in rows_of(measurement(tmp_path, (16, 256), Plan(2, "bf16"), 2, model), machine()):
        assert {name.split()[0] for name in row["us"]} == {"plain", "styles", "fusing"} and not row["not_captured"]


def test_a_failing_rank_ends_all_with_its_error(tmp_path: Path) -> None:
    interpreted()
    broken = dataclasses.replace(measurement(tmp_path, (2,)), plan=dataclasses.replace(PLAN, dtype="none"))
    begun = time.monotonic()
    with pytest.raises(GangError, match=r"rank \d ended: (.|\n)*none"):
        list(rows_of(broken, machine()))
    assert time.monotonic() - begun < SILENCE / 2, "not by their silence"


PROGRAM = """
from autotune.model_runs.ranks import ending_at_once
try:
    with ending_at_once():
        raise RuntimeError("its own")
finally:
    print("waited for the device, and for other ranks")
"""


def test_an_error_ends_its_rank_without_waiting_for_others() -> None:
    done = run_script("-c", PROGRAM)
    assert done.returncode == 1 and "RuntimeError: its own" in done.stderr and "waited" not in done.stdout


@pytest.mark.parametrize(
    ("model", "plan", "layers", "told"),
    [
        (MODEL, PLAN, 4, "--layers 4: the model has 3; allowed: 1 to 3"),
        (
            MODEL,
            Plan(2, "fp8", "row"),
            1,
            "--measure with fp8: PyTorch's styles, the plain side, take bf16, fp16, fp32",
        ),
        (MODEL, Plan(2, "bf16", contexts=(4096,)), 1, "--measure with --context"),
        (
            dataclasses.replace(MODEL, attention=False),
            BF16,
            1,
            r"does not build latent attention \(MLA\), as llama has",
        ),
        (dataclasses.replace(MODEL, linear=LinearAttention(2, 64, 32)), BF16, 1, "does not build linear attention"),
        (with_experts(layers=2), BF16, 1, "does not build dense layers beside those with experts"),
        (with_experts(form={"bias": True}), BF16, 1, "does not build experts with biases"),
        (MIXTURE, PLAN, 1, "--measure with fp32: .* bf16"),
        (MIXTURE, dataclasses.replace(BF16, experts_by_width=True), 1, "--measure with --experts-by-width"),
    ],
)
def test_what_is_not_measured_is_refused_before_anything_is_tuned(
    model: Architecture, plan: Plan, layers: int, told: str, tmp_path: Path
) -> None:  # fmt: skip
    with pytest.raises(InputError, match=told):
        measurement(tmp_path, (8,), plan, layers, model)
