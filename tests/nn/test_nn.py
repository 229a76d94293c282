"""Modules and styles compute what torch's do, forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_of_functions import run_ranks
from two_ranks import A_GPU_EACH, sampled

ON_RANKS = str(Path(__file__).with_name("nn_on_ranks.py"))
FP32 = 1e-5

Pair = dict[str, list[Any]]


@pytest.fixture(scope="module", params=sampled(A_GPU_EACH))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The answers of two ranks, by the function called."""
    folder = tmp_path_factory.mktemp("pair")
    gpu, sample = request.param
    argument = (f"sqlite:///{folder / 'none.db'}", sample)
    answers = run_ranks(ON_RANKS, "everything", 2, folder, gpu=gpu, argument=argument)
    return {"sample": [sample], **{name: [answer[name] for answer in answers] for name in answers[0]}}


def test_an_mlp_of_our_modules_is_the_whole_one_with_its_gradients(pair: Pair) -> None:
    for found in pair["modules"]:
        assert len(found) == 3 * 9
        assert max(found.values()) < FP32, found


def test_gradients_of_gradients_are_the_whole_ones(pair: Pair) -> None:
    for found in pair["second order"]:
        assert len(found) == 3 * 7
        assert max(found.values()) < FP32, found


def test_a_block_by_our_styles_is_the_one_by_torchs_with_its_gradients(pair: Pair) -> None:
    for found in pair["styles"]:
        assert len(found) == (4 if pair["sample"] == [True] else 5) * 8 + 4
        assert max(found.values()) < FP32, found


def test_every_layout_and_layers_that_ranks_do_not_divide_are_as_in_torch(pair: Pair) -> None:
    for found in pair["corners"]:
        weights = [found.pop(name) for name in ("no weights yet", "computed weight", "more parameters")]
        assert "and meta: they must be on one device" in weights[0]
        assert weights[1].endswith("no parameter of its own named weight; from_linear copies a computed one")
        assert weights[2].endswith("has a parameter scale; this layer has weight and bias alone")
        said = [found.pop(name) for name in ("repr", "uneven", "mesh", "input's mesh")]
        assert said[0] == "RowParallelLinear(in_features=16, out_features=8, bias=True, ranks=2, sequence_dim=1)"
        assert said[1] == "InvalidProblem: out_features=15: 2 ranks do not divide it"
        assert said[2].startswith("InputError: the mesh has the ranks (0, 1) in 2 dimensions, the context (0, 1)")
        assert said[3].startswith("InputError: the input is a DTensor of the mesh DeviceMesh(")
        assert len(found) == 2 * 2 * (16 + 1) + 5
        assert max(found.values()) < FP32, found


def test_what_torchs_styles_hand_on_may_still_be_under_way(pair: Pair) -> None:
    for found in pair["under way"]:
        assert len(found) == 1 + 3
        assert max(found.values()) < FP32, found
