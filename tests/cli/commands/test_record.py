"""``tune record``: from the values on the command line to a table that can be read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import Bench, FakeGang, evaluation_of

from autotune.config import Config
from autotune.outcome import Evaluation
from autotune.recordings.file import read

WORDS = ("record", "all-gather-gemm", "--m", "4096", "--n", "28672", "--k", "8192", "--world-size", "8")
VALUES = (
    "mode=bsp,push; block_m=64,128; block_n=128,256; block_k=64; group_m=8; num_warps=8; num_stages=3,6; loads=tma;"
    "split_k=1; preload_b=false; schedule=tile; transfer_rows=128,256; k_chunks=1; comm_programs=8,16; copy_kib=16;"
    "peer_order=rotate; push_site=same_launch; head_start=0"
)


def test_a_space_is_recorded_as_is_asked_for(gpus: Bench, tmp_path: Path) -> None:
    """A noisy config has the lowest 20th percentile, and a slow one the steadiest times."""
    plans = []

    def noisy(gang: FakeGang, config: Config, seed: int, plan: Any) -> Evaluation:
        plans.append(plan)
        found = evaluation_of(config, gang.ranks)
        if found.latency is None or config["mode"] != "bsp":
            return found
        return replace(found, latency=replace(found.latency, low=1.0))

    gpus.hook = noisy
    out = tmp_path / "table.json.gz"
    found = gpus.json(*WORDS, "--values", VALUES, "--out", str(out), "--effort", "full", "--lift", "residency")
    recording = read(out)
    assert found["configs"] == len(recording.evaluations) == len(plans) > 10
    assert list(recording.lifted) == ["residency"] and {plan.iterations for plan in plans} == {25}
    assert found["best"]["median"] == pytest.approx(recording.optimum, abs=1e-3)
    assert found["outcomes"] == Counter(each.outcome.value for each in recording.evaluations.values())
    assert recording.restriction["loads"] == ["tma"] and recording.dimensions["preload_b"] == [False]
    assert gpus.gangs[0].closed
    assert gpus.tune("list").stdout == "", "no command continues it"
    assert gpus.tune("report", "--all", "-o", str(tmp_path / "pages")).exit_code == 1
