"""Operators with more than a GEMM: activations, residuals, several Bs; right in every mode, compiled, or refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from calls import MODES, url
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS, sampled

ON_RANKS = str(Path(__file__).with_name("epilogues_on_ranks.py"))

Pair = list[dict[str, Any]]

REFUSED = {
    "word": "epilogue='relu': allowed: none, swiglu, geglu, geglu_tanh",
    "odd": "n=94 on 2 ranks: .* use 96",
    "quantise": "24 columns on each rank and a scale for each 128 of them",
    "layout": "gate_up=interleaved: B has gate and up only with an epilogue",
    "out": r"out is \[16, 48\].*\[32, 24\]",
}


SEVERAL = {
    "apart": "do not lie side by side in memory: call autotune.side_by_side once",
    "order": "do not lie side by side in memory",
    "depth": "all need the same depth, type and device",
    "none": "Bs: none; expected at least one matrix",
}


@pytest.fixture(scope="module", params=sampled(TWO_GPUS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The answers of two ranks."""
    folder = tmp_path_factory.mktemp("pair")
    gpu, sample = request.param
    answers = run_ranks(ON_RANKS, "everything", 2, folder, gpu=gpu, argument=(url(folder), sample))
    return [{"sample": sample, **answer} for answer in answers]


def test_activations_are_right_in_every_mode(pair: Pair) -> None:
    for answer in pair:
        answers, modes = answer["gated"], {"looked up", *MODES["all_gather_gemm"]}
        assert all(answers.values()), answers
        few = {"looked up", "push", "bsp"} if answer["sample"] else modes
        assert answers.keys() == {f"swiglu {mode}" for mode in modes} | {f"geglu {mode}" for mode in few}


def test_results_in_fp8_are_right_in_every_mode(pair: Pair) -> None:
    for answers in (answer["quantised"] for answer in pair):
        assert all(answers.values()), answers
        assert {"looked up", "in place", "opcheck", "push", *({"bsp"} & MODES["all_gather_gemm"])} <= answers.keys()


def test_what_is_infinite_arrives_in_fp8_and_changes_nothing_beside_it(pair: Pair) -> None:
    for answers in (answer["infinite"] for answer in pair):
        assert all(answers.values()), answers
        assert {"gemm_all_reduce two_shot", "gemm_reduce_scatter push", "gemm_reduce_scatter pull"} <= answers.keys()


def test_residuals_are_added_in_every_mode(pair: Pair) -> None:
    for answers in (answer["residual"] for answer in pair):
        assert all(answers.values()), answers
        for name in ("gemm_reduce_scatter", "gemm_all_reduce"):
            assert {f"{name} {mode}" for mode in {"looked up", "folded", *MODES[name]}} <= answers.keys()


def test_several_bs_take_one_gather(pair: Pair) -> None:
    for answers in (answer["several"] for answer in pair):
        refused = answers.pop("refused")
        assert all(answers.values()) and len(answers) == 4, answers
        for name, text in refused.items():
            assert re.match(f"InvalidProblem: .*{SEVERAL[name]}", text), (name, text)


def test_the_gathered_a_is_a_tensor_of_its_own(pair: Pair) -> None:
    modes = MODES["all_gather_gemm"] - {"pull"}
    for answers in (answer["gathered"] for answer in pair):
        assert all(answers.values()), answers
        assert {f"rows {mode}" for mode in modes | {"looked up", "in place", "stays", "compiled"}} <= answers.keys()
        assert {f"k {mode}" for mode in modes - {"copy_engine"}} <= answers.keys()


def test_the_gathered_a_has_the_same_bits_on_every_rank(pair: Pair) -> None:
    for answers in (answer["gathered_bits"] for answer in pair):
        assert all(answers.values()) and "own_collective sentinel" in answers, answers


def test_what_does_not_fit_is_refused(pair: Pair) -> None:
    for told in (answer["refused"] for answer in pair):
        assert told.keys() == REFUSED.keys()
        for name, text in told.items():
            assert re.match(f"InvalidProblem: .*{REFUSED[name]}", text), (name, text)


def test_compiled_functions_give_the_same(pair: Pair) -> None:
    for found in (answer["compiled"] for answer in pair):
        assert found == {"same": True, "opcheck": ["SUCCESS"]}
