"""Gradients of the operators with a GEMM: right in every way that torch computes them, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import WORST, url
from ranks_of_functions import run_ranks
from two_ranks import A_GPU_EACH, sampled

ON_RANKS = str(Path(__file__).with_name("gradients_on_ranks.py"))
OPERATORS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")
FP32 = 1e-5
"""Largest relative error of a gradient in fp32."""

Pair = dict[str, list[Any]]


@pytest.fixture(scope="module", params=sampled(A_GPU_EACH))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The answers of two ranks, by the function called."""
    folder = tmp_path_factory.mktemp("pair")
    gpu, sample = request.param
    answers = run_ranks(ON_RANKS, "gradients", 2, folder, gpu=gpu, argument=(url(folder), sample))
    return {"sample": [sample], **{name: [answer[name] for answer in answers] for name in answers[0]}}


def test_gradients_through_every_public_function_are_torchs_or_refused(pair: Pair) -> None:
    for found in pair["every"]:
        right = {name: each for name, each in found.items() if isinstance(each, float) and each < FP32}
        rest = {name: each for name, each in found.items() if name not in right}
        assert all(name.startswith("refused ") and "no backward" in str(each) for name, each in rest.items()), rest
        assert not any(name.startswith("refused ") for name in right)


def test_a_result_of_a_wider_type_has_gradients(pair: Pair) -> None:
    assert max(pair["wider"]) < WORST


def test_each_rank_takes_its_loss_from_c_from_the_gathered_a_or_from_both(pair: Pair) -> None:
    for errors in pair["gathered"]:
        assert len(errors) == 2 * 3**2
        assert max(errors.values()) < FP32, errors


def test_the_gradient_of_b_lies_as_b_does_where_nothing_is_gathered_for_it(pair: Pair) -> None:
    assert pair["stored"] == [[], []]


def test_checkpoints_accumulation_and_compilers_change_nothing(pair: Pair) -> None:
    for errors in pair["ways"]:
        ways = {f"{name} compiled" for name in OPERATORS}
        ways |= {f"all_gather_gemm {way}" for way in ("kept", "compiled kept")}
        checkpointed = OPERATORS[: 1 if pair["sample"][0] else None]
        ways |= {f"{name} {way}" for name in checkpointed for way in ("checkpoint", "compiled checkpoint")}
        assert set(errors) == ways
        assert max(errors.values()) < FP32, errors


def test_autocast_takes_operands_as_for_a_matmul(pair: Pair) -> None:
    for errors in pair["autocast"]:
        ways = {f"{name} eager" for name in (*OPERATORS, "residual")}
        assert set(errors) == ways | {
            "all_gather_gemm compiled",
            "all_gather_gemm kept",
            "residual compiled",
            "residual avg",
        }
        assert min(errors.values()) > FP32 and max(errors.values()) < WORST, errors


def test_calls_without_a_backward_are_refused_and_ranks_that_differ_are_told_so(pair: Pair) -> None:
    for said in pair["refused"]:
        for name in ("fp8 op", "in place", "out of rows"):
            assert said[name].startswith("InvalidProblem") and "requires a gradient" in said[name], said
        for name in ("invalid", "autocast of fp64"):
            assert said[name].startswith("InvalidProblem"), "on all ranks, whichever need a gradient"
        assert said["ranks"].startswith("RanksDisagree") and said["ranks of a bias"].startswith("RanksDisagree"), said
        assert said["a alone"] == "no error"  # its backward exchanges nothing
        assert said["right"] == "True"
