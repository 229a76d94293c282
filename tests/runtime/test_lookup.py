"""The lookup: exact, nearest, default; never stale, never invalid, never a query after the first."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, latency_of

import autotune
from autotune.config import Config
from autotune.db import CacheKey, Store, Winner
from autotune.errors import InputError, InvalidProblem, StoreError, UnknownWorkload
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.runtime.lookup import Found, forget_lookups
from autotune.workloads import provenance_of, workload

FOUND = workload("all_gather_gemm")


def problem(**fields: Any) -> Any:
    return FOUND.problem_type(**{"m": 4096, "n": 28672, "k": 8192, "world_size": 8, **fields})


def tuned(group_m: int) -> Config:
    """A valid config that is not the default."""
    return FOUND.default_config(problem(), EIGHT_GPUS).replace(group_m=group_m)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    """An empty database's path, and no memory of others."""
    forget_lookups()
    yield tmp_path / "cache.db"
    forget_lookups()


def keep(
    path: Path, config: Config, *, stale: dict[str, str] | None = None, regime: Regime = DEFAULT_REGIME, **fields: Any
) -> None:
    """Put a finished study into the database."""
    key = CacheKey.of(problem(**fields), EIGHT_GPUS, regime)
    provenance = dataclasses.replace(provenance_of(FOUND), **(stale or {}))
    with Store.open(path) as store:
        study = store.study(key, provenance, seed=0, space_size=1)
        store.finish(study.id, Winner(config, latency_of(100.0)))


def look(path: Path, **fields: Any) -> Found:
    machine = fields.pop("machine", EIGHT_GPUS)
    return autotune.lookup("all_gather_gemm", problem(**fields), machine=machine, url=str(path))


def test_exact(database: Path) -> None:
    keep(database, tuned(4))
    found = look(database)
    assert (found.config, found.source, found.reason) == (tuned(4), "exact", "")
    assert found.entry is not None and found.entry.winner.latency.median == 100.0


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
            assert "an operator makes these calls one by one" in found.reason


def test_nearest_is_the_closest_within_a_factor_of_two(database: Path) -> None:
    keep(database, tuned(4), m=4096)
    keep(database, tuned(2), m=8192)
    assert look(database, m=7168).config == tuned(2)
    assert look(database, m=5120).config == tuned(4)
    assert look(database, m=2048).source == "nearest"
    beyond = look(database, m=2040)
    assert beyond.source == "default" and beyond.config == FOUND.default_config(problem(m=2040), EIGHT_GPUS)


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "fp16"},
        {"layout": "k"},
        {"in_place": True},
        {"world_size": 4},
        {"n": 14336},
        {"bias": True},
        {"machine": dataclasses.replace(EIGHT_GPUS, device="NVIDIA H100")},
        {"machine": dataclasses.replace(EIGHT_GPUS, interconnect="pcie")},
    ],
)
def test_nothing_stands_in_across_anything_but_m(database: Path, fields: dict[str, Any]) -> None:
    keep(database, tuned(4))
    found = look(database, **fields)
    assert found.source == "default" and found.entry is None and "nothing tuned" in found.reason


def test_a_stale_entry_is_not_served_and_the_reason_names_the_field(database: Path) -> None:
    keep(database, tuned(4), stale={"source_hash": "0" * 16, "torch": "1.0"})
    found = look(database)
    assert found.source == "default"
    assert "stale" in found.reason and "torch 1.0 is now" in found.reason and "source_hash" in found.reason
    keep(database, tuned(2))
    forget_lookups()
    assert look(database).config == tuned(2)


def test_a_config_that_the_space_refuses_is_not_served(database: Path) -> None:
    keep(database, tuned(4).replace(block_m=256, block_n=256))
    found = look(database)
    assert found.source == "default" and "registers" in found.reason


def test_without_a_database_there_is_the_default_and_no_file(database: Path) -> None:
    assert look(database).source == "default"
    assert not database.exists()


def test_the_database_is_read_once(database: Path) -> None:
    keep(database, tuned(4))
    assert look(database).source == "exact"
    for leftover in database.parent.glob("cache.db*"):
        leftover.unlink()
    assert look(database, m=3072).source == "nearest"
    with ThreadPoolExecutor(8) as pool:
        assert {found.config for found in pool.map(lambda _: look(database), range(64))} == {tuned(4)}


def test_a_foreign_database_is_an_error_not_a_default(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(StoreError, match="another program"):
        look(database)


def test_bad_input(database: Path) -> None:
    with pytest.raises(UnknownWorkload, match="all_gather_gemm"):
        autotune.lookup("all_gather", problem(), url=str(database))

    with pytest.raises(InputError, match="graph, pipelined"):
        autotune.lookup("all_gather_gemm", problem(), machine=EIGHT_GPUS, url=str(database), regime="eager")

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(autotune.problem.Problem):  # type: ignore[misc, name-defined]
        workload = "other"

    with pytest.raises(InvalidProblem, match="AllGatherGemm"):
        autotune.lookup("all_gather_gemm", Other(world_size=2), url=str(database))


def test_a_class_in_place_of_its_workload_is_told_so(database: Path) -> None:
    with pytest.raises(InputError, match=r"'> is not a workload: .*; write \w+\(\), which makes one"):
        autotune.lookup(type(FOUND), problem(), machine=EIGHT_GPUS, url=str(database))  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match="None is not a workload: expected a name, FILE:CLASS or an instance of Workload$"
    ):
        autotune.lookup(None, problem(), machine=EIGHT_GPUS, url=str(database))  # type: ignore[arg-type]
