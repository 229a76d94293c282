"""Operators in a program that has torch's modes on: inference, devices, forward AD, transforms, tracers, views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import MODES, WORST, url
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS

ON_RANKS = str(Path(__file__).with_name("torch_modes_on_ranks.py"))

NAMES = ["inference_mode", "default_device", "current_device", "tangents", "dispatched", "negated", "negated_parts"]


@pytest.fixture(scope="module", params=TWO_GPUS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The answers of two ranks, by the function called."""
    folder = tmp_path_factory.mktemp("pair")
    answers = run_ranks(ON_RANKS, "several", 2, folder, gpu=request.param, argument=(url(folder), NAMES))
    return {name: [answer[name] for answer in answers] for name in NAMES}


def test_what_an_inference_has_called_is_right_outside_of_its_mode(pair: dict[str, list[Any]]) -> None:
    for worst in pair["inference_mode"]:
        assert {name.split()[0] for name in worst} == set(MODES)
        assert max(worst.values()) < WORST, worst


@pytest.mark.parametrize("mode", ["default_device", "current_device"])
def test_calls_are_right_wherever_tensors_lie_by_default(pair: dict[str, list[Any]], mode: str) -> None:
    for errors in pair[mode]:
        assert max(errors.values()) < WORST, errors


def test_a_call_with_a_tangent_is_refused(pair: dict[str, list[Any]]) -> None:
    for said in pair["tangents"]:
        for name, told in said.items():
            assert told.startswith("no error" if "without" in name else "InvalidProblem"), (name, told)


def test_transforms_tracers_and_modes_see_calls_as_they_see_torchs(pair: dict[str, list[Any]]) -> None:
    for found in pair["dispatched"]:
        assert found.pop("fake") == [2, 8, 32]
        assert len(found) == 2 * 4 + 1
        assert max(found.values()) < 1e-5, found


def test_operands_have_the_sign_that_torch_reads(pair: dict[str, list[Any]]) -> None:
    for worst in pair["negated"]:
        assert {name.split()[0] for name in worst} == set(MODES)
        assert max(worst.values()) < WORST, worst
    for found in pair["negated_parts"]:
        assert found.pop("out").startswith("InvalidProblem")
        assert found.pop("no matrix of two").startswith("InvalidProblem")
        assert len(found) == 3
        assert max(found.values()) < WORST, found
