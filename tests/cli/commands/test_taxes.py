"""``tune taxes`` over a gang without ranks, whose rungs take what a formula says."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, Bench, begun, formula, latency_of, push_of

from autotune.config import Config
from autotune.db import Store, Winner
from autotune.outcome import DEFAULT_REGIME, Outcome, Regime
from autotune.ranks.protocol import Failed, Turn
from autotune.task import Task
from autotune.taxes import measure
from autotune.taxes.result import Taxes
from autotune.workloads import workload

SIZES: dict[str, list[str]] = {
    "all-gather-gemm": ["--m", "4096"], "gemm-reduce-scatter": [], "gemm-all-reduce": [], "flash-decode": [],
}  # fmt: skip

ALL_BUT_W = ["E0", "E1", "G", "B", "D", "F", "L"]


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake gang need not be warmed."""
    monkeypatch.setitem(measure.WARMED, "gpu", 0.0)


def tuned(bench: Bench, name: str, winner: Config | None = None, regime: Regime = DEFAULT_REGIME) -> None:
    found = workload(name)
    task = Task(found.default_problem(bench.machine, 8), bench.machine)
    fused = next(config for config in found.first_configs(task) if config["mode"] in found.overlapping)
    config = winner or fused.replace(num_stages=3)  # the fake gang fails at 6
    with Store.open() as store:
        store.finish(begun(store, found, task, regime).id, Winner(config, latency_of(formula(config))))


@pytest.mark.parametrize("name", SIZES)
def test_all_four_workloads_have_a_ladder(gpus: Bench, name: str) -> None:
    tuned(gpus, name)
    found = gpus.json("taxes", name, "--rounds", "4")
    there = set(found["rungs"])
    assert there | set(found["missing"]) >= set(ALL_BUT_W)
    assert there >= {"E0", "E1", "G", "B", "D", "L"}
    assert found["rounds"] == 4 and not found["interpreted"]
    assert found["slack"]["B"] is not None and set(found["launch_slopes"]) == {"E1", "G", "B"}


def test_taxes_are_what_was_planted(gpus: Bench) -> None:
    tuned(gpus, "gemm_reduce_scatter")
    found = gpus.json("taxes", "gemm-reduce-scatter", "--rounds", "6")
    steps = {"+".join(step["causes"]): step for step in found["steps"]}
    for name, planted in {"host": 30.0, "gaps": 20.0, "boundary": 1.5, "synchrony": 37.5, "locality": 6.0}.items():
        assert steps[name]["microseconds"] == pytest.approx(planted, abs=1.5), name
    assert found["launch_slopes"]["B"]["microseconds"] == pytest.approx(1.5, abs=0.3)
    assert found["late_slopes"]["B"]["microseconds"] == pytest.approx(1.0, abs=0.05)
    assert found["late_slopes"]["D"]["microseconds"] == pytest.approx(0.5, abs=0.05)
    assert found["barrier"]["microseconds"] == pytest.approx(1.5)


def test_the_ladder_has_the_tile_of_the_fastest_config_that_overlaps() -> None:
    found = workload("all_gather_gemm")
    problem = found.default_problem(EIGHT_GPUS, 8)
    default = push_of(Task(problem, EIGHT_GPUS))
    library, fast, slow = Config({"mode": "bsp", "launch": "graph"}), default.replace(group_m=2), default
    base = functools.partial(measure.choose_base, found, Task(problem, EIGHT_GPUS))
    assert base(slow, [(fast, 1.0)]).config == slow
    assert base(library, [(library, 1.0), (slow, 3.0), (fast, 2.0)]).config == fast
    assert base(library, [(library, 1.0)]).config == default


def test_rungs_take_turns_and_the_order_rotates(gpus: Bench) -> None:
    tuned(gpus, "gemm_reduce_scatter")
    assert gpus.tune("taxes", "gemm-reduce-scatter", "--rounds", "3").exit_code == 0
    turns = [turn for turn in gpus.gangs[-1].turns if isinstance(turn, Turn)][:18]
    rounds = [[(turn.config, turn.isolated) for turn in turns[i : i + 6]] for i in (0, 6, 12)]
    assert len({tuple(each) for each in rounds}) == 3 and len({frozenset(each) for each in rounds}) == 1
    assert rounds[0][0] == (Config({"mode": "bsp", "launch": "eager"}), True)


def test_taxes_are_those_of_the_regimes_own_study(gpus: Bench) -> None:
    tuned(gpus, "gemm_all_reduce")
    assert gpus.tune("taxes", "gemm-all-reduce", "--regime", "graph").exit_code == 1
    tuned(gpus, "gemm_all_reduce", regime=Regime.GRAPH)
    assert gpus.tune("taxes", "gemm-all-reduce", "--regime", "graph", "--rounds", "2").exit_code == 0
    with Store.open(create=False) as store:
        assert store.attached(1, "taxes") is None and store.attached(2, "taxes") is not None


def test_a_winner_apart_is_a_rung_of_its_own(gpus: Bench) -> None:
    tuned(gpus, "all_gather_gemm", Config({"mode": "copy_engine", "transfer_rows": 128, "gemm_streams": 1}))
    found = gpus.json("taxes", "all-gather-gemm", "--rounds", "3")
    assert {"W", "D"} <= set(found["rungs"]) and found["steps"][-1]["causes"] == ["fusion"]
    assert found["steps"][-2]["causes"] == ["locality", "other knobs"], "columns of tiles have no F"


def test_a_rung_that_is_wrong_has_no_number(gpus: Bench) -> None:
    push = push_of(Task(workload("all_gather_gemm").default_problem(EIGHT_GPUS, 8), EIGHT_GPUS))
    tuned(gpus, "all_gather_gemm", push.replace(num_stages=1))  # the fake gang crashes at its B
    found = gpus.json("taxes", "all-gather-gemm", "--rounds", "2")
    assert found["missing"]["B"].startswith("crashed: rank 0: made to end")
    assert "B" not in found["rungs"] and ["library", "boundary", "synchrony"] in [
        step["causes"] for step in found["steps"]
    ]
    assert found["taxes"]["kernel launch"] is None and found["taxes"]["bulk synchrony"] is None


def test_a_trace_is_a_file_for_perfetto(gpus: Bench, tmp_path: Path) -> None:
    tuned(gpus, "gemm_all_reduce")
    file = tmp_path / "trace.json"
    result = gpus.tune("taxes", "gemm-all-reduce", "--rounds", "2", "--trace", str(file))
    assert result.exit_code == 0, result.stderr
    found = json.loads(file.read_text())["traceEvents"]
    assert {each["ph"] for each in found} == {"M", "X"}
    assert len({each["pid"] for each in found}) == 8, "a rank each"
    with Store.open(create=False) as store:
        assert set(Taxes.from_json(store.attached(1, "taxes") or "").traces) == {"D"}


def test_a_fault_in_a_later_turn_ends_it_and_stores_nothing(gpus: Bench) -> None:
    tuned(gpus, "gemm_all_reduce")
    failed = Failed(Outcome.TIMED_OUT, "rank 1: a wait in the kernel timed out")
    gpus.prepare = lambda gang: setattr(gang, "turn_failure", failed)
    result = gpus.tune("taxes", "gemm-all-reduce", "--rounds", "2")
    assert result.exit_code == 1 and "timed out" in result.stderr
    with Store.open(create=False) as store:
        assert store.attached(1, "taxes") is None
    assert gpus.gangs[-1].closed == 1


def test_what_was_measured_is_shown_where_its_database_is_gone(gpus: Bench, tmp_path: Path) -> None:
    tuned(gpus, "gemm_all_reduce")
    gpus.prepare = lambda gang: (tmp_path / "cache.db").unlink()
    result = gpus.tune("taxes", "gemm-all-reduce", "--rounds", "2")
    assert result.exit_code == 2
    assert "kernel launch" in result.stdout and not (tmp_path / "cache.db").exists()


def test_the_interpreter_says_what_its_times_are(laptop: Bench) -> None:
    assert laptop.tune("gemm-all-reduce", "--trials", "4").exit_code == 0
    found: dict[str, Any] = laptop.json("taxes", "gemm-all-reduce")
    assert found["interpreted"] and found["measured"]["clocks"] == {} and {"E0", "G"} <= set(found["missing"])


def test_a_workload_without_the_librarys_way_is_told_the_names_of_the_missing_baselines(toy: Bench) -> None:
    assert toy.tune("toy-sum", "--trials", "3").exit_code == 0
    result = toy.tune("taxes", "toy-sum", "--rounds", "2")
    assert result.exit_code == 1 and "bsp eager" in result.stderr and "bsp graph" in result.stderr
