"""``tune compare``: what it finds, how it tells it, and its exit code."""

from __future__ import annotations

import dataclasses
import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, Bench, begun

from autotune.config import Config
from autotune.db import Store, TrialRecord, Winner
from autotune.machine import Machine
from autotune.outcome import Evaluation, HostOverhead, Latency, Outcome, Regime
from autotune.task import Task
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
OTHER_GPUS = dataclasses.replace(EIGHT_GPUS, device="NVIDIA H100")
WON, OLD = Config({"mode": "push", "block_m": 128}), Config({"mode": "pull", "block_m": 64})


def in_rounds(*medians: float) -> Latency:
    middle = sorted(medians)[len(medians) // 2]
    return Latency(middle, 0.99 * middle, 1.01 * middle, 1.0, 9, rounds=medians if len(medians) > 1 else ())


def stored(
    file: Path, m: int, *medians: float | Latency, config: Config = WON, beside: Any = (),
    machine: Machine = EIGHT_GPUS, regime: Regime = Regime.GRAPH, world_size: int = 8, latency: Latency | None = None,
    **versions: str,
) -> Path:  # fmt: skip
    """A finished study of that size; its finals are rounds of the winner, or of that latency, and ``beside`` of OLD."""
    problem = FOUND.problem_type.from_dict({"m": m, "n": 28672, "k": 8192, "world_size": world_size})
    with Store.open(file) as store:
        study = begun(store, FOUND, Task(problem, machine), regime, **versions)
        for one, rounds in ((WON if latency else config, medians), (OLD, beside)):
            for number, each in enumerate(rounds):
                measured = Evaluation(Outcome.MEASURED, latency=each if isinstance(each, Latency) else in_rounds(each))
                store.record(study.id, TrialRecord(one, measured, "final", number))
        store.finish(study.id, Winner(config, latency or in_rounds(*medians)))
    return file


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Five sizes: slower, faster, within the noise, missing and new; and the noise is that of three rounds."""
    folder = tmp_path_factory.mktemp("sides")
    a, b = folder / "a.db", folder / "b.db"
    for m, then, now in ((64, 100.0, 110.0), (128, 100.0, 90.0), (256, 100.0, 101.0), (512, 100.0, 0), (1024, 0, 100)):
        if then:
            stored(a, m, then, then * 1.001, then * 0.999, config=OLD, triton="3.6.0")
        if now:
            beside = (now * 1.05,) * 3 if m == 128 else ()
            stored(b, m, now, now * 1.001, now * 0.999, beside=beside)
    return str(a), str(b)


@pytest.fixture
def sides(gpus: Bench, databases: tuple[str, str]) -> tuple[Bench, str, str]:
    return gpus, *databases


def test_what_changed_is_told(sides: tuple[Bench, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    bench, a, b = sides
    result = bench.tune("compare", a, b, "--json")
    assert result.exit_code == 1, "something is slower"
    values = json.loads(result.stdout)
    assert values["counts"] == {"slower": 1, "faster": 1, "the same": 1, "new": 1, "missing": 1}
    by_m = {each["b"]["problem"]["m"]: each for each in values["changes"]}
    assert by_m[64]["ratio"]["value"] == pytest.approx(1.1) and by_m[64]["ratio"]["rounds"] == 3
    assert by_m[64]["beside"] is None and by_m[128]["beside"]["value"] == pytest.approx(1 / 1.05, abs=1e-3)
    assert by_m[64]["provenance_differences"]["triton"][0] == "3.6.0"
    assert [each["problem"]["m"] for each in values["new"] + values["missing"]] == [1024, 512]
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, bench.tune("compare", a, b).stdout.splitlines())) <= 80


def test_nothing_slower_is_success(sides: tuple[Bench, str, str], tmp_path: Path) -> None:
    bench, a, b = sides
    assert bench.tune("compare", a, b, "--threshold", "15%").exit_code == 0
    assert bench.tune("compare", a, b, "--b", "since=2999-01-01").exit_code == 2, "nothing to compare"
    noisy = [stored(tmp_path / f"{m}.db", 64, m, 1.5 * m, 0.6 * m) for m in (100.0, 120.0)]
    assert bench.tune("compare", *map(str, noisy)).exit_code == 0, "within the noise, however large"


@pytest.mark.parametrize("swapped", [False, True])
def test_a_result_without_a_door_is_compared_with_the_bound_call(gpus: Bench, tmp_path: Path, swapped: bool) -> None:
    """Else every problem whose host is the slower part would be called slower, or faster on the way back."""
    sides = []
    for name, overhead in (("a.db", None), ("b.db", HostOverhead(8.0, 14.0))):
        bound = dataclasses.replace(in_rounds(30.0, 30.0, 30.0), host=40.0, host_rounds=(40.0, 40.1, 39.9))
        stored(tmp_path / name, 64, latency=bound.through(overhead), regime=Regime.PIPELINED)
        sides.append(str(tmp_path / name))
    result = gpus.tune("compare", *(reversed(sides) if swapped else sides))
    assert result.exit_code == 0 and result.stdout.count("40.00 µs") == 2, result.stdout
    assert gpus.tune("compare", sides[1], sides[1]).stdout.count("48.00 µs") == 2


def test_regimes_and_world_sizes_are_problems_of_their_own(gpus: Bench, tmp_path: Path) -> None:
    a, b = tmp_path / "a.db", tmp_path / "b.db"
    cases = ((Regime.GRAPH, 8, 100.0, 100.0), (Regime.ISOLATED, 8, 200.0, 220.0), (Regime.GRAPH, 4, 300.0, 360.0))
    for regime, world_size, then, now in cases:
        for file, median in ((a, then), (b, now)):
            stored(file, 64, *(median,) * 3, regime=regime, world_size=world_size)
    found = json.loads(gpus.tune("compare", str(a), str(b), "--json").stdout)["changes"]
    assert sorted(round(each["ratio"]["value"], 3) for each in found) == [1.0, 1.1, 1.2]
    one = gpus.json("compare", str(a), str(b), "--b", "regime=graph", "--b", "world-size=8")
    assert (one["counts"]["the same"], one["counts"]["missing"]) == (1, 2), "both conditions hold"


def test_dates_and_versions_of_one_database(gpus: Bench, tmp_path: Path) -> None:
    file = stored(tmp_path / "cache.db", 64, 100.0, 100.1, 99.9, triton="3.6.0")
    stored(file, 64, 120.0, 120.1, 119.9)
    with Store.open(file) as store:
        store.forget(store.studies()[-1].id)
    stored(file, 64, 130.0, 130.1, 129.9)
    result = gpus.tune("compare", str(file), str(file), "--a", "triton=3.6.0", "--json")
    assert json.loads(result.stdout)["changes"][0]["ratio"]["value"] == pytest.approx(1.3)
    assert gpus.tune("compare", str(file), str(file)).exit_code == 0, "the newest with itself"
    assert gpus.tune("compare", str(file), str(file), "--a", "until=2020-01-01").exit_code == 2, "nothing is that old"
    both = gpus.tune("compare", str(file), str(file), "--a", "until=2999-12-31", "--a", "world-size=8")
    assert both.exit_code == 0
    with Store.open(file) as store:
        days = [f"{name}={store.entries()[0].finished_at:%Y-%m-%d}" for name in ("until", "since")]
    for condition in (*days, "workload=all-gather-gemm"):
        assert gpus.tune("compare", str(file), str(file), "--a", condition).exit_code == 0, "the day itself counts"
    soon = (datetime.now(UTC) + timedelta(hours=1)).astimezone(timezone(-timedelta(hours=12)))
    for side, name, code in (("--a", "until", 0), ("--b", "since", 2)):
        result = gpus.tune("compare", str(file), str(file), side, f"{name}={soon.isoformat()}")
        assert result.exit_code == code, "in an hour, where clocks show another day's"


def test_another_machine(gpus: Bench, tmp_path: Path) -> None:
    a = stored(tmp_path / "a.db", 64, 100.0, 100.1, 99.9, machine=OTHER_GPUS)
    b = stored(tmp_path / "b.db", 64, 70.0, 70.1, 69.9)
    assert gpus.json("compare", str(a), str(b))["counts"]["faster"] == 1
    stored(b, 64, 99.0, 99.1, 98.9, machine=OTHER_GPUS)
    counts = gpus.json("compare", str(a), str(b))["counts"]
    assert (counts["the same"], counts["new"]) == (1, 1), "of several machines, each with itself"


def test_a_side_may_be_a_pipe(gpus: Bench, tmp_path: Path) -> None:
    db = str(stored(tmp_path / "a.db", 64, 100.0))
    reading, writing = os.pipe()
    os.write(writing, gpus.tune("export", "--db", db).stdout.encode())
    os.close(writing)
    result = gpus.tune("compare", f"/dev/fd/{reading}", db)
    os.close(reading)
    assert result.exit_code == 0 and "1 the same" in result.stdout, result.output
