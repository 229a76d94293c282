"""A wait may give up, a result may not lie: every mode of every workload where a rank comes too late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS, sampled

from autotune.workloads import names

FUNCTIONS = str(Path(__file__).with_name("late_on_ranks.py"))


@pytest.fixture(scope="module", params=sampled(TWO_GPUS))
def missed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    gpu, sample = request.param
    folder = tmp_path_factory.mktemp("missed")
    return run_ranks(FUNCTIONS, "found_after", 2, folder, gpu=gpu, argument=(names(), sample))


@pytest.mark.parametrize("name", names())
def test_results_of_calls_that_a_rank_misses_are_nan_on_all_ranks(name: str, missed: list[Any]) -> None:
    for rank, wrong in enumerate(each[name] for each in missed):
        assert wrong and not any(wrong.values()), (rank, {config: each for config, each in wrong.items() if each})


@pytest.mark.gpu(2)
@pytest.mark.parametrize("name", names())
def test_a_late_rank_waits_for_no_kernel_that_another_loads(name: str, tmp_path: Path) -> None:
    """To load a kernel the driver may wait for all that runs on the GPU, and ours run until their peers come: none may
    have to wait for what the host enqueues behind a call, nor a grid of ours that fills the GPU for what comes later.
    """
    for rank, wrong in enumerate(
        run_ranks(FUNCTIONS, "first_calls", 2, tmp_path, gpu=True, argument=name, seconds=300)
    ):
        assert wrong == {}, rank
