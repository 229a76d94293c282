"""Faults on GPU ranks: a kernel that never ends is killed, memory that is exhausted is given back, and so on.

By hand, on 2 GPUs and more: ``pytest -m gpu tests/ranks/faults``. What starting took, by stage, is shown by ``-s``. On
four, eight ranks are two on each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fault_matrix import FILE, Case, Sniper, gang_of_victims, survive
from faulty_workload import EVERY_RANK

RANKS = [pytest.param(ranks, marks=pytest.mark.gpu(min(ranks, 4))) for ranks in (2, 4, 8)]

CASES = [
    Case("spoils the output", "check"),
    Case("leaves NaN", "check", victim=0),
    Case("corrupts memory", "measure"),
    Case("does not compile", "compile"),
    Case("exhausts the device", "check", EVERY_RANK),
    Case("exhausts the host", "check", EVERY_RANK),
    Case("is killed", "measure"),
    Case("hangs in a kernel", "check", victim=0),
    Case("hangs on the host", "measure"),
    Case("raises", "check"),
    Case("loses its device", "measure"),
]


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def gang(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sniper]:
    with gang_of_victims(
        tmp_path_factory.mktemp("temporary"), request.param, grace=2.0, m=256, n=1024, k=512
    ) as started:
        yield started


@pytest.fixture(autouse=True)
def known_to_new_ranks(gang: Sniper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test starts without our settings; ranks that are started again inherit this one."""
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(FILE))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gang_survives(gang: Sniper, case: Case) -> None:
    survive(gang, case)
    print(f"{case}; the last start: {', '.join(f'{name} {s:.1f} s' for name, s in gang.start_seconds.items())}")
