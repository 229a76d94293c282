"""``tune`` says so where everything took longer in the finals than in the search, or less long."""

from __future__ import annotations

import pytest
from fakes import Bench


def test_a_machine_that_changed_is_told_at_once_and_from_the_cache(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "drift", 2.0)
    words = ("all-gather-gemm", "--trials", "12", "--effort", "quick")
    for _ in range(2):
        told = " ".join(gpus.tune(*words).stdout.split())
        assert "Configs took 2.00 times as long in the finals as in the search" in told
    assert gpus.json(*words)["drift"] == pytest.approx(2.0)


def test_a_quiet_machine_needs_no_word(gpus: Bench) -> None:
    assert "in the finals as in the search" not in gpus.tune("all-gather-gemm", "--trials", "12").stdout
