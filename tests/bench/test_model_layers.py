"""bench/model_layers.py with toy sizes: all ways run, and their logits and losses are plain's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripts import run_script

BENCH = str(Path(__file__).parents[2] / "bench" / "model_layers.py")
PHASES = ["prefill", "prefill, sequence parallel", "decode", "training step"]


@pytest.mark.parametrize(
    "interpreted", [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.gpu(2))]
)
def test_every_phase_runs_in_every_way(interpreted: bool, tmp_path: Path) -> None:
    out, problems = tmp_path / "rows.json", tmp_path / "problems.yaml"
    done = run_script(BENCH, "--tiny", "--json", str(out), ranks=2, interpreted=interpreted)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert [row["phase"] for row in found["rows"]] == PHASES
    for row in found["rows"]:
        assert set(row["speedup"]) == ({"styles"} if interpreted else {"styles", "fusing"})
    assert len(found["rows"][-1]["losses"]["styles"]) == found["steps"]
    done = run_script(BENCH, "--tiny", "--only", "train", "--collect", str(problems), ranks=2, interpreted=interpreted)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("all-gather-gemm", "gemm-reduce-scatter"):
        assert name in problems.read_text()
