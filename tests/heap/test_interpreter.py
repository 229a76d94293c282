"""Triton's interpreter as the heap on CPUs mends it: it looks through the language once a launch, and puts it back."""

from __future__ import annotations

from pathlib import Path

from ranks_of_functions import run_ranks

ON_RANKS = str(Path(__file__).with_name("interpreter_on_ranks.py"))


def test_calls_of_device_functions_cost_no_look_through_the_language(tmp_path: Path) -> None:
    (found,) = run_ranks(ON_RANKS, "device_functions", 1, tmp_path)
    assert found["results"] == [True] * 3
    assert found["untouched"] == [True] * 4
    _, many, one = found["looks"]
    assert many == one > 0


def test_operands_are_made_alike_as_triton_does_it(tmp_path: Path) -> None:
    (found,) = run_ranks(ON_RANKS, "operands_made_alike", 1, tmp_path)
    assert found["others"] == 0 and found["refused"] > 500 and found["the same"] > 5_000, found
