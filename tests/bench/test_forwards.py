"""Forwards predicted and measured: the table's figures, and a run of a toy."""

from __future__ import annotations

from pathlib import Path

import forwards
import pytest


def test_a_forward_is_compared_with_what_its_calls_promise() -> None:
    measured = {
        "forward": "8 tokens", "plain": 1500.0, "ours": 1000.0, "speedup": {"value": 1.5, "error": 0.01},
        "predicted": {"before": 1200.0, "after": 1000.0},
    }  # fmt: skip
    [row] = forwards.rows("Phi-4", {"measured": [measured]})
    assert row == ["Phi-4", "8 tokens", "1.500", "1.000", "1.500 ± 0.010", "1.200", "1.250"]


@pytest.mark.slow
def test_a_toy_is_predicted_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert forwards.main(["--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("| toy |") == 2
