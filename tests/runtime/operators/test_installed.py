"""``symm_mem.install``: torch's named operators run ours, alike on all ranks, and give torch's results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from calls import url
from ranks_of_functions import run_ranks
from two_ranks import A_GPU_EACH, sampled

ON_RANKS = str(Path(__file__).with_name("installed_on_ranks.py"))


@pytest.mark.parametrize("ranks", sampled(A_GPU_EACH))
def test_torchs_operators_run_ours(tmp_path: Path, ranks: tuple[str, bool]) -> None:
    """Counted: a call that torch's own answers has the same results."""
    gpu, sample = ranks
    for found in run_ranks(ON_RANKS, "installed", 2, tmp_path, gpu=gpu, argument=(url(tmp_path), sample)):
        assert found.pop("uninstalled", "NotImplementedError") == "NotImplementedError", "torch has none for a CPU"
        assert found.pop("no gradient")
        own = {form: found.pop(form)[1] for form in list(found) if form.startswith("own")}
        assert own and not any(own.values()), own
        assert len(found) == 2 * (5 * 6 * (1 if sample else 2) + 10) + 2
        wrong = {form: each for form, each in found.items() if each[0] > (2e-2 if "bfloat16" in form else 1e-5)}
        assert not wrong
        assert {form: calls for form, (_, calls) in found.items() if calls != 1} == {}


@pytest.mark.slow
@pytest.mark.skipif(" " in sys.prefix, reason="torch (2.13) links no kernels where its path has a space")
@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_inductors_micro_pipeline_runs_ours(tmp_path: Path, gpu: str) -> None:
    for found in run_ranks(ON_RANKS, "pipelined", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert {name: calls for name, (_, calls) in found.items()} == {"gather": 1, "scatter": 1, "both": 2}
        assert max(wrong for wrong, _ in found.values()) < 1e-5


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_torchtitans_layers_run_ours_forwards_and_backwards(tmp_path: Path, gpu: str) -> None:
    pytest.importorskip("torchtitan")
    for found in run_ranks(ON_RANKS, "torchtitan", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert len(found) == 8
        calls = {(form.split()[0], taken) for form, (_, taken) in found.items()}
        assert calls == {("gather", 3), ("scatter", 2)}, "the gradients of a scatter's operands share one gather"
        wrong = {form: each for form, each in found.items() if each[0] > (2e-2 if "bfloat16" in form else 1e-5)}
        assert not wrong
