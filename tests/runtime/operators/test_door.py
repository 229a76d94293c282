"""An operator's door: the operator's own code up to the launches, with no launch, for every workload that has one."""

from __future__ import annotations

from pathlib import Path

from ranks_of_functions import run_ranks

from autotune.workloads import names

ON_RANKS = str(Path(__file__).with_name("doors_on_ranks.py"))

MOST_CALLS = 17
"""Python functions that a warm call enters, one more than today: each costs the host, before every launch."""

FOLDED = 16
"""As many more where a matrix is folded, as with ``return_gathered``."""


def test_a_door_is_the_operator_s_call_without_its_launches(tmp_path: Path) -> None:
    launched = [name for name in names() if name in PUBLIC_NAMES]
    (found,) = run_ranks(ON_RANKS, "doors", 1, tmp_path, argument=launched, seconds=270)
    assert {each.split()[0] for each in found} == PUBLIC_NAMES
    for problem, of in found.items():
        assert of["made"] == of["wanted"], problem
        assert of["called"] == of["problem"], problem
        assert of["taken"] == 0, problem
        assert of["calls"] <= MOST_CALLS + FOLDED * ("gathered'" in problem), problem


PUBLIC_NAMES = {
    "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "all_reduce_norm", "gemm_all_reduce_norm",
    "flash_decode", "moe_dispatch", "moe_dispatch_gemm", "moe_combine", "moe_gemm_combine",
}  # fmt: skip
