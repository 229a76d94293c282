"""Operators give the right result in every mode, call after call, and say what is wrong with a call."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_of_functions import run_ranks

ON_RANKS = str(Path(__file__).parent / "on_ranks.py")
MODES = {"looked up", "bsp", "pull", "pull_staged", "push"}


def check(answers: list[dict[str, float]]) -> None:
    for worst in answers:
        assert {name.split(" ", 1)[1] for name in worst if name.startswith("k ")} == MODES
        assert {name.split(" ", 1)[1] for name in worst if name.startswith("rows ")} == {*MODES, "copy_engine"}
        assert max(worst.values()) < 6e-3, worst


def test_every_mode_is_right_call_after_call(tmp_path: Path) -> None:
    check(run_ranks(ON_RANKS, "every_mode", 2, tmp_path, argument=str(tmp_path / "none.db")))


@pytest.mark.gpu(2)
def test_every_mode_is_right_call_after_call_on_gpus(tmp_path: Path) -> None:
    check(run_ranks(ON_RANKS, "every_mode", 2, tmp_path, gpu=True, argument=str(tmp_path / "none.db")))


def test_calls_that_cannot_work_fail_on_every_rank_with_a_clear_word(tmp_path: Path) -> None:
    for said in run_ranks(ON_RANKS, "bad_calls", 2, tmp_path, argument=str(tmp_path / "none.db")):
        expected = [
            "InvalidProblem: b is [127, 40]",
            "InvalidProblem: a is torch.float64",
            "InvalidProblem: b is [128, 40], bias [39]",
            "InvalidProblem: out is [48, 40] torch.float32",
            "InvalidConfig: config not valid",
            "RanksDisagree: the ranks call an operator with different problems",
            "HeapExhausted: symmetric heap:",
        ]
        assert [text[: len(start)] for text, start in zip(said, expected, strict=True)] == expected
