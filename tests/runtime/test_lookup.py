"""The look-up: exact, nearest or default; never stale, never invalid, never a query after the first."""

from __future__ import annotations

import dataclasses
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, LAPTOP, begun, latency_of

import autotune
from autotune.config import Config
from autotune.db import Roofline, Store, TrialRecord, Winner
from autotune.device_rates import ON_H200
from autotune.errors import InputError, InvalidProblem, StoreError, UnknownWorkload
from autotune.kernels.all_gather_gemm.modes import Push
from autotune.machine import Machine
from autotune.outcome import DEFAULT_REGIME, Evaluation, Outcome, Regime
from autotune.runtime.lookup import MOST_WASTE, Found, forget_lookups, lookup
from autotune.search_spaces import Space
from autotune.task import Task
from autotune.workloads import names, workload

FOUND = workload("all_gather_gemm")


def problem(**fields: Any) -> Any:
    return FOUND.problem_type(**{"m": 4096, "n": 28672, "k": 8192, "world_size": 8, **fields})


PUSH = Push.by_tiles(Task(problem(), EIGHT_GPUS)).config()


def tuned(group_m: int) -> Config:
    return PUSH.replace(group_m=group_m)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


def keep(
    path: Path, config: Config, *, finish: bool = True, machine: Machine = EIGHT_GPUS, stale: Any = None,
    regime: Regime = DEFAULT_REGIME, roofline: Roofline | None = None, **fields: Any,
) -> int:  # fmt: skip
    with Store.open(path) as store:
        study = begun(store, FOUND, Task(problem(**fields), machine), regime, **(stale or {}))
        if finish:
            store.finish(study.id, Winner(config, latency_of(100.0), roofline=roofline))
    return study.id


def look(path: Path, machine: Machine = EIGHT_GPUS, **fields: Any) -> Found:
    return lookup("all_gather_gemm", problem(**fields), machine=machine, url=str(path))


COLLECTIVE = Config(
    {"mode": "custom_collective", "comm_programs": 32, "copy_kib": 8, "peer_order": "fanout", "protocol": "signal"}
)
COPIES = Config(
    {"mode": "copy_engine", "transfer_rows": 256, "gemm_streams": 1, "copies": "pulled", "chunk_sizes": "even"}
)
LIBRARY = Config({"mode": "bsp", "launch": "eager"})
CAPTURED = LIBRARY.replace(launch="graph")


def measure(path: Path, study: int, times: dict[Config, float | None]) -> None:
    with Store.open(path) as store:
        for config, time in times.items():
            wrong = Evaluation(Outcome.WRONG_RESULT, "wrong")
            evaluation = wrong if time is None else Evaluation(Outcome.MEASURED, latency=latency_of(time))
            store.record(study, TrialRecord(config, evaluation))


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(
    ("collective", "copies", "allowed"),
    [
        (110.0, 120.0, {"custom_collective", "copy_engine"}), (110.0, 140.0, {"custom_collective"}),
        (140.0, 120.0, {"copy_engine"}), (140.0, 140.0, {"bsp"}), (None, None, {"bsp"}),
    ],
)  # fmt: skip
def test_between_tuned_sizes_nothing_is_served_that_takes_another_way_there_or_was_slower_than_the_library(
    database: Path, ranks: int, collective: float | None, copies: float | None, allowed: set[str]
) -> None:
    """The library took 130 µs at the tuned size, and 90 in a graph, which no operator makes of it."""
    sizes = {"world_size": ranks, "m": 1024 * ranks}
    push = PUSH.replace(block_m=128, transfer_rows=256)
    study = keep(database, push, **sizes)
    trials = {push: 100.0, push.replace(group_m=4): 101.0, COLLECTIVE: collective, COPIES: copies}
    measure(database, study, {**trials, LIBRARY: 130.0, CAPTURED: 90.0})
    kept = set()
    for rows in (*range(520, 2040, 31), 640, 1024, 1152):
        here = problem(**{**sizes, "m": rows * ranks})
        found = look(database, **{**sizes, "m": rows * ranks})
        assert FOUND.space.violation(found.config, Task(here, EIGHT_GPUS)) is None
        most = MOST_WASTE * FOUND.waste(push, Task(problem(**sizes), EIGHT_GPUS))
        kept.add(found.config == push)
        assert FOUND.waste(found.config, Task(here, EIGHT_GPUS)) <= most
        if found.config == push:
            continue
        assert FOUND.waste(push, Task(here, EIGHT_GPUS)) > most
        assert found.config["mode"] in allowed and found.config.get("launch") != "graph"
        assert "times the work needed here" in found.reason and "the library" in found.reason
        assert found.entry is not None and found.entry.winner.config == found.config
        assert found.entry.winner.latency.median < 130.0 or allowed == {"bsp"}, "the pass for torch.compile goes by it"
    assert kept == {True, False}


def test_copies_are_served_where_their_chunks_fill_the_librarys_rounds_and_else_the_collective(database: Path) -> None:
    scatter = workload("gemm_reduce_scatter")
    copies = {"mode": "copy_engine", "transfer_rows": 1024, "gemm_streams": 1, "sum_block": 4096, "sum_warps": 4}
    collective = Config({"mode": "custom_collective", "sum_block": 2048, "sum_warps": 8})

    def of(m: int) -> Any:
        return scatter.problem_type(m=m, n=4096, k=14336, world_size=2)

    with Store.open(database) as store:
        study = begun(store, scatter, Task(of(2048), EIGHT_GPUS))
        store.finish(study.id, Winner(Config(copies), latency_of(100.0)))
    measure(database, study.id, {Config(copies): 100.0, collective: 110.0, LIBRARY: 130.0})
    modes = {
        m: lookup("gemm_reduce_scatter", of(m), machine=EIGHT_GPUS, url=str(database)).config["mode"]
        for m in (1026, 1278, 1500, 1984, 2046, 2048, 4094)
    }
    refused = {m for m, mode in modes.items() if mode == "custom_collective"}
    assert refused == {1026, 1278, 1500} and set(modes.values()) == {"custom_collective", "copy_engine"}


@pytest.mark.parametrize(("below", "above", "stands_in"), [(70.0, 95.0, "below"), (95.0, 70.0, "above")])
def test_between_two_sizes_what_either_side_measured_stands_in_for_a_winner_that_wastes(
    database: Path, below: float, above: float, stands_in: str
) -> None:
    """Our collective on one side and copies on the other: the one with more over the library, whoever's side it is."""
    push, sides = PUSH.replace(block_m=128, transfer_rows=256), {"below": (512, COLLECTIVE), "above": (1024, COPIES)}
    for (rows, beside), time in zip(sides.values(), (below, above), strict=True):
        study = keep(database, push, m=8 * rows)
        measure(database, study, {push: 60.0, beside: time, LIBRARY: 100.0})
    for rows in (517, 521, 523):
        found = look(database, m=8 * rows)
        assert found.source == "range" and found.config == sides[stands_in][1]
        assert found.entry is not None and found.entry.key.fields["m"] == 8 * sides[stands_in][0]


def test_what_was_tuned_with_the_detour_is_served_with_it(database: Path) -> None:
    push = PUSH.replace(block_m=128)
    keep(database, push, m=8 * 136)
    assert look(database, m=8 * 144).config == look(database, m=8 * 256).config == push


def test_a_study_without_trials_such_as_an_imported_one_lends_the_librarys_way(database: Path) -> None:
    keep(database, PUSH.replace(block_m=128), m=8 * 256)
    found = look(database, m=8 * 140)
    assert (found.config, found.source) == (LIBRARY, "nearest")


@pytest.mark.parametrize("field", ["source_hash", "space", "triton", "iris", "torch", "driver"])
def test_every_field_of_the_provenance_makes_an_entry_stale(database: Path, field: str) -> None:
    keep(database, tuned(4), stale={field: "other"})
    found = look(database)
    assert found.source == "predicted" and "stale: " in found.reason and f"{field} other is now" in found.reason
    assert (found.config == tuned(4)) == (field not in ("source_hash", "space")) and found.entry is None
    assert look(database, m=2048).source == "predicted", "nor is it near anything"


@pytest.mark.parametrize("fields", [{}, {"device": "NVIDIA H100"}, {"interconnect": "pcie"}], ids=str)
def test_machines_share_a_database_and_nothing_else(database: Path, fields: dict[str, Any]) -> None:
    other = dataclasses.replace(EIGHT_GPUS, **fields) if fields else LAPTOP
    config = FOUND.default_config(Task(problem(), other))
    keep(database, tuned(4))
    assert look(database, machine=other).entry is None
    keep(database, config, machine=other)
    forget_lookups()
    assert look(database).config == tuned(4)
    assert (look(database, machine=other).config, look(database, machine=other).source) == (config, "exact")


def test_of_the_rows_only_those_on_the_way_are_read_and_a_damaged_one_is_passed_over(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for group_m, m in ((1, 4096), (2, 5120), (4, 6144), (8, 65536)):
        keep(database, tuned(group_m), m=m)
    with closing(sqlite3.connect(database)) as raw, raw:
        raw.execute("UPDATE tuning_studies SET winner_latency = '{}' WHERE id IN (2, 4)")
    assert look(database).config == tuned(1)
    assert caplog.messages == []
    near = look(database, m=5120)
    assert (near.config, near.source) == (tuned(4), "range"), "nearer to 6144 than to 4096"
    [message] = caplog.messages
    assert "row 2 of table tuning_studies is damaged" in message


def test_many_threads_read_the_database_once(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(database, tuned(4))
    opened = []
    open_store = Store.open.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Store], *arguments: Any, **options: Any) -> Store:
        opened.append(arguments)
        store: Store = open_store(cls, *arguments, **options)
        return store

    monkeypatch.setattr(Store, "open", classmethod(counted))
    sizes = [1024 * (2 + number % 6) for number in range(400)] + [4096] * 50
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda m: look(database, m=m), sizes))
    assert len(opened) == 1
    assert {each.config for each in found} == {tuned(4)}
    assert {each.source for each in found[-50:]} == {"exact"}


def test_the_users_database_is_the_default_one(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(database, tuned(4))
    assert autotune.lookup("all_gather_gemm", problem(), machine=EIGHT_GPUS).source == "predicted"
    assert not (tmp_path / "user-data").exists(), "a lookup makes no files"
    monkeypatch.setenv("AUTOTUNE_DB", str(database))
    assert autotune.lookup("all_gather_gemm", problem(), machine=EIGHT_GPUS).source == "exact"


def test_a_database_that_cannot_be_read_is_an_error_each_time(database: Path) -> None:
    database.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    for _ in range(2):
        with pytest.raises(StoreError):
            look(database)
    database.unlink()
    keep(database, tuned(4))
    assert look(database).source == "exact", "the error was not remembered"


def test_a_variant_of_a_workload_gets_an_answer_of_its_own(database: Path) -> None:
    """With the same space, whose configs mean something else; or of the same class, with another space."""

    class Variant(type(FOUND)):  # type: ignore[misc]
        def default_config(self, task: Task[Any]) -> Config:
            return tuned(2)

    assert look(database).config == FOUND.default_config(Task(problem(), EIGHT_GPUS))
    assert lookup(Variant(), problem(), machine=EIGHT_GPUS, url=str(database)).config == tuned(2)
    keep(database, tuned(4))
    forget_lookups()
    assert look(database).source == "exact"
    changed = type(FOUND)()
    changed.space = Space(*FOUND.space.dimensions.values())
    assert lookup(changed, problem(), machine=EIGHT_GPUS, url=str(database)).source == "predicted"


def test_a_look_up_says_for_which_routing_its_config_was_tuned(database: Path) -> None:
    """A config that was tuned for one popularity of experts is not served for another; the reason names it."""
    sizes = {"tokens": 64, "hidden": 1024, "experts": 16, "top_k": 2, "world_size": 8}
    dispatch, zipf = workload("moe_dispatch"), autotune.MoeDispatch(**sizes, routing="zipf", exponent=1.0)
    with Store.open(database) as store:
        task = Task(zipf, EIGHT_GPUS)
        store.finish(begun(store, dispatch, task).id, Winner(dispatch.default_config(task), latency_of(100.0)))
    uniform = autotune.MoeDispatch(**sizes)
    cases = {"exact": zipf, "nearest": dataclasses.replace(zipf, tokens=128), "predicted": uniform}
    for name, each in cases.items():
        found = lookup(dispatch, each, machine=EIGHT_GPUS, url=str(database))
        assert found.source == name
        assert ("routing=zipf" in found.tuned_for) == (name != "predicted")
        assert ("routing=zipf" in found.reason) == (name == "predicted")
    larger = lookup(dispatch, dataclasses.replace(uniform, tokens=512), machine=EIGHT_GPUS, url=str(database))
    assert "routing" not in larger.reason, "other sizes are"


def test_bad_input(database: Path) -> None:
    older = dataclasses.replace(EIGHT_GPUS, device="NVIDIA A100", arch="sm_80")
    fp8, here = problem(dtype="fp8", b_order="nk", scales="tensor"), {"machine": EIGHT_GPUS}
    cases: list[tuple[type[Exception], Any, Any, dict[str, Any]]] = [
        (UnknownWorkload, "all_gather", problem(), here),
        (InputError, "all_gather_gemm", problem(), {**here, "regime": "eager"}),
        (InvalidProblem, "all_gather_gemm", autotune.GemmAllReduce(m=16, n=32, k=32, world_size=2), here),
        (InputError, type(FOUND), problem(), here),
        (InputError, None, problem(), here),
        (InvalidProblem, "all_gather_gemm", fp8, {"machine": older}),
    ]
    for error, name, asked, options in cases:
        with pytest.raises(error):
            autotune.lookup(name, asked, url=str(database), **options)


def test_a_graph_of_the_library_s_calls_is_served_to_callers_who_capture_alone(database: Path) -> None:
    """A config stored by hand, or by a version before this rule: operators would call it eagerly."""
    captured = Config({"mode": "bsp", "launch": "graph"})
    for regime in Regime:
        keep(database, captured, regime=regime)
        keep(database, captured.replace(launch="eager"), regime=regime, m=8192)
    for regime in Regime:
        found = autotune.lookup("all_gather_gemm", problem(), machine=EIGHT_GPUS, url=str(database), regime=regime)
        if regime is Regime.GRAPH:
            assert (found.config, found.source) == (captured, "exact")
        else:
            assert found.source == "nearest" and found.config["launch"] == "eager"


UNKNOWN = dataclasses.replace(EIGHT_GPUS, device="GPU of next year", arch="sm_200")


@pytest.mark.parametrize("defaults", ["", "1"])
def test_on_a_gpu_whose_rates_nobody_knows_an_untuned_call_goes_to_the_library(
    defaults: str, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DEFAULTS", defaults)
    sources = [look(database, each).source for each in (EIGHT_GPUS, UNKNOWN, LAPTOP)]
    assert sources == ["default" if defaults else "predicted", "default", "default"]
    for name in names():
        asked = workload(name).default_problem(EIGHT_GPUS, 8)
        for regime in Regime:
            found = lookup(name, asked, machine=UNKNOWN, url=str(database), regime=regime)
            assert found.config in workload(name).baselines(Task(asked, UNKNOWN)).values(), name
            assert workload(name).unservable(found.config, Task(asked, UNKNOWN), regime) is None


@pytest.mark.parametrize("share", [0.97, 1.0, 1.03])
def test_once_something_is_tuned_on_a_gpu_its_untuned_configs_follow_the_rates_that_were_measured(
    database: Path, share: float
) -> None:
    """One of the same architecture gets what an H200 gets if it is as fast, and something else if its links are not."""

    def of(machine: Machine) -> list[Config]:
        forget_lookups()
        return [look(database, machine, m=m).config for m in (64, 512, 1024, 3000, 16384)]

    other = dataclasses.replace(EIGHT_GPUS, device="NVIDIA H20")
    for rates in (ON_H200, {**ON_H200, "links": 0.1 * ON_H200["links"]}):
        roofline = Roofline({name: share * rate for name, rate in rates.items()}, {"links": 1.0})
        for machine in (other, UNKNOWN, EIGHT_GPUS):
            keep(database, tuned(8), machine=machine, m=128, k=256, roofline=roofline)
        assert (of(other) == of(EIGHT_GPUS)) is (rates is ON_H200)
    assert look(database, UNKNOWN).source == "predicted"
    assert look(database, UNKNOWN, world_size=4).config == LIBRARY, "nothing is known of the links of four"


@pytest.mark.parametrize("defaults", ["", "1"])
def test_an_untuned_invariant_problem_has_one_config_for_all_sizes_never_the_library_s(
    defaults: str, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DEFAULTS", defaults)
    for name in names():
        asked = workload(name).default_problem(EIGHT_GPUS, 8)
        if not asked.sums:  # it only moves data
            continue
        asked = dataclasses.replace(asked, invariant=True)
        sizes = [asked.with_rows(rows) for rows in (8, 96, 4096, 16384)]
        found = {lookup(name, each, machine=EIGHT_GPUS, url=str(database)).config for each in sizes}
        assert len(found) == 1
        task = Task(asked.family(), EIGHT_GPUS)
        assert all(workload(name).space.violation(config, task) is None for config in found), name


def test_an_invariant_problem_that_nothing_computes_here_is_refused(database: Path) -> None:
    over_pcie = dataclasses.replace(EIGHT_GPUS, interconnect="pcie")
    asked = workload("gemm_all_reduce").problem_type(m=16, n=8192, k=28672, world_size=2, wire="fp8", invariant=True)
    with pytest.raises(InvalidProblem, match="no config gives the same bits"):
        lookup("gemm_all_reduce", asked, machine=over_pcie, url=str(database))


def test_an_invariant_entry_answers_for_every_size_the_newest_first_and_for_no_other_problem(database: Path) -> None:
    keep(database, tuned(8), m=4096, invariant=True)
    keep(database, tuned(16), m=8192, invariant=True)
    for m in (8, 4096, 1 << 15):
        found = look(database, m=m, invariant=True)
        assert (found.source, found.config) == ("exact", tuned(16))
    assert look(database, m=8192).source == "predicted" == look(database, m=8192, invariant=True, bias=True).source
    forget_lookups()
    keep(database, tuned(1), m=64, invariant=True, stale={"triton": "1.0"})
    assert look(database, m=64, invariant=True).config == tuned(16)
