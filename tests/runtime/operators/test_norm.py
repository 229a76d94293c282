"""``all_reduce_norm``, an operator with two results: eager, compiled, in every mode, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from calls import WORST, url
from ranks_of_functions import run_ranks
from two_ranks import EVERYWHERE

ON_RANKS = str(Path(__file__).with_name("norm_on_ranks.py"))
REFUSED = {
    "shape": r"residual \[4, 264\].*expected x and residual \[m, n\] and weight \[n\]",
    "stride": "all contiguous",
    "type": "residual is torch.float32.*for all",
    "width": "n=100: must be a multiple of 8",
    "eps": "eps=-1.0: must be a finite number",
    "overlap": "shares memory with another tensor of the call",
    "one out": "out holds 1 tensors; one for each of 2 results",
    "one place": "shares memory with another tensor of the call",
    "gradient": "requires a gradient",
}


@pytest.mark.parametrize("gpu", EVERYWHERE)
def test_both_results_are_right_however_it_is_called(tmp_path: Path, gpu: str) -> None:
    for found in run_ranks(ON_RANKS, "calls", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert max(found["eager"], found["compiled"]) < WORST, found
        library = {"bsp", "library_collective"} & found["modes"].keys()
        assert found["modes"].keys() - library == {"one_shot", "two_shot"}
        kept, lost = [True, True], [True, False]
        expected = {"bsp": lost, "library_collective": lost, "one_shot": kept, "two_shot": kept}
        assert found["modes"] == {mode: expected[mode] for mode in found["modes"]}
        assert found["registered"] == ["SUCCESS"]
        for name, said in found["refused"].items():
            assert re.match(f"InvalidProblem: .*{REFUSED[name]}", said), (name, said)
        assert found["refused"].keys() == REFUSED.keys()
