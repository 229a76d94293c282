"""Calls of several launches on GPUs: replayed from graphs of their own, and right however they come.

pytest tests/runtime/operators/test_replays.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
from calls import MODES, WORST, url
from ranks_of_functions import run_ranks
from two_ranks import GPUS

ON_RANKS = str(Path(__file__).with_name("replays_on_ranks.py"))

SEVERAL_LAUNCHES = {
    "all_gather_gemm": {"custom_collective", "copy_engine", "push"},
    "gemm_reduce_scatter": {"custom_collective", "copy_engine"},
    "gemm_all_reduce": {"custom_collective"},
    "flash_decode": {"iris_all_gather", "fine_grained_wait", "fused"},
}
"""Modes that have configs whose calls are several launches."""


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", MODES)
def test_replayed_calls_are_right_however_they_come(tmp_path: Path, gpu: str, name: str) -> None:
    answers = run_ranks(ON_RANKS, "replays", 2, tmp_path, gpu=gpu, argument=(url(tmp_path), name), seconds=540)
    for found in answers:
        assert {key.split()[1] for key in found["worst"]} >= MODES[name] - {"bsp"}
        assert max(found["worst"].values()) < WORST, found["worst"]
        assert set(found["replaying"]) >= SEVERAL_LAUNCHES[name]
        assert found["left"] == 0, "graphs are left of a context that is closed"
