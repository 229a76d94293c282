"""Files and rows that nobody wrote on purpose: they end in StoreError, InputError or success, and in nothing else."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, Bench
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.cli import session
from autotune.config import Config
from autotune.db import Entry, Store, TrialRecord
from autotune.errors import InputError, StoreError
from autotune.outcome import Evaluation, Outcome
from autotune.report.markdown import to_markdown
from autotune.results.study import finished
from autotune.runtime.lookup import forget_lookups, lookup
from autotune.sharing import Here, read, review, take, write
from autotune.text import HIDDEN
from autotune.workloads import workload

MakeEntry = Callable[..., Entry]

FUZZ = settings(
    deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip

odd_numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 5e-324, 1e308, True])
)
odd_text = st.one_of(
    st.text(st.characters(), max_size=8),
    st.sampled_from(
        ["", "\x00", "\x1b[2J", "\ud800", "\u202e", "9" * 5000, "NaN", "null", "{}", "[]", "all_gather_gemm", "x.py:Y",
         "flash_decode", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01", "push", "finished"]
    ),
)  # fmt: skip
odd_json = st.recursive(
    st.one_of(st.none(), st.booleans(), odd_numbers, odd_text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(odd_text, inner, max_size=3)),
    max_leaves=6,
)


def plausible(value: Any) -> st.SearchStrategy[Any]:
    """Another value of the same kind, as other measurements have it."""
    if isinstance(value, bool) or value is None:
        return st.booleans()
    if isinstance(value, int):
        return st.sampled_from([0, 1, 2, 8, 16, 64, 128, 1024, 2**20])
    if isinstance(value, float):
        return st.floats(0.01, 1e6)
    if isinstance(value, str):
        return st.sampled_from(["", "other", "2026-01-02T03:04:05Z", "pull", "fp16", "rows", "sm_170", "`|<b>"])
    return st.just(value)


def places(value: Any, here: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield here
    if isinstance(value, dict | list):
        for step in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[step], (*here, step))


@st.composite
def mutations(draw: st.DrawFn, value: Any) -> str:
    """The file's text with one to three of its values gone, doubled or replaced, or its text cut or nested."""
    changed = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(places(changed))[1:] or [("format",)]))
        inner = changed
        for step in place[:-1]:
            inner = inner[step]
        kind = draw(st.sampled_from(["other", "other", "other", "replace", "remove", "add"]))
        if kind == "remove" and len(place) > 1:
            del inner[place[-1]]
        elif kind == "add" and isinstance(inner, dict):
            inner[draw(odd_text)] = draw(odd_json)
        elif kind == "other" and place[-1] in inner if isinstance(inner, dict) else kind == "other":
            inner[place[-1]] = draw(plausible(inner[place[-1]]))
        else:
            inner[place[-1]] = draw(odd_json)
    text = json.dumps(changed)
    match draw(st.integers(0, 30)):
        case 0:
            return text[: draw(st.integers(0, len(text)))]
        case 1:
            depth = draw(st.sampled_from([100, 250, 900, 5000]))
            return text.replace("[", "[" * depth, 1)
    return text


def sound(make_entry: MakeEntry) -> Any:
    return json.loads(write([make_entry()]))


@pytest.fixture
def imported_into(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "fuzzed.db") as store:
        yield store


@pytest.mark.parametrize("cases", [150, pytest.param(1400, marks=pytest.mark.slow)])
def test_files(imported_into: Store, make_entry: MakeEntry, cases: int) -> None:
    value = sound(make_entry)
    ends: dict[str, int] = {"refused": 0, "taken": 0}

    @settings(FUZZ, max_examples=cases)
    @given(text=mutations(value))
    def fuzz(text: str) -> None:
        try:
            entries = read(text)
        except InputError as error:
            str(error).encode()
            ends["refused"] += 1
            return
        with suppress(StoreError):
            take(imported_into, review(entries, Here.of(imported_into), EIGHT_GPUS, replace=True))
            ends["taken"] += 1
            assert read(write(imported_into.entries())) is not None, "what came in can go out"

    fuzz()
    assert ends["refused"] > cases / 14 and ends["taken"] > cases / 14


def test_files_on_the_command_line(gpus: Bench, make_entry: MakeEntry, tmp_path: Path) -> None:
    file = tmp_path / "configs.json"

    @settings(FUZZ, max_examples=20)
    @given(text=mutations(sound(make_entry)), dry=st.booleans())
    def fuzz(text: str, dry: bool) -> None:
        file.write_text(text)
        result = gpus.tune("import", str(file), "--replace", *(["--dry-run"] if dry else []))
        assert result.exit_code in (0, 1, 2) and "Traceback" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert not HIDDEN.search(result.output.replace("\n", ""))

    fuzz()


@pytest.mark.parametrize("cases", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_rows(cases: int, make_entry: MakeEntry, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    original = make_entry()
    problem = workload("all_gather_gemm").problem_type.from_dict(json.loads(original.key.problem))
    with Store.open(path) as store:
        store.adopt(original)
        study = store.study(make_entry(m=16).key, original.provenance, seed=0, space_size=9)
        measured = Evaluation(Outcome.MEASURED, "", original.winner.latency, 0.1, {"compile": 1.0})
        for evaluation in (measured, Evaluation(Outcome.CRASHED, "died")):
            store.record(study.id, TrialRecord(original.winner.config, evaluation, "sampler", 1, 2.0))
        store.finish(study.id, original.winner)
    whole = path.read_bytes()
    tables = {table: columns_of(path, table) for table in ("tuning_studies", "tuning_trials")}
    spots = [(table, column) for table, columns in tables.items() for column in columns if column != "id"]
    values = st.one_of(st.none(), odd_numbers, odd_text, st.binary(max_size=4), odd_json.map(json.dumps))

    @settings(FUZZ, max_examples=cases)
    @given(changes=st.lists(st.tuples(st.sampled_from(spots), values, st.booleans()), min_size=1, max_size=3))
    def fuzz(changes: list[tuple[tuple[str, str], Any, bool]]) -> None:
        path.write_bytes(whole)
        plant(path, changes)
        forget_lookups()
        with Store.open(path) as store:
            with suppress(StoreError):
                for entry in store.entries():
                    assert to_markdown(finished(store, entry)).encode()
                write(store.entries())
                for each in store.studies():
                    store.trials(each.id)
            with suppress(StoreError):
                found = lookup("all_gather_gemm", problem, machine=EIGHT_GPUS, url=str(path))
                assert isinstance(found.config, Config)
            with suppress(StoreError):
                again = store.study(original.key, original.provenance, seed=0, space_size=1)
                store.finish(again.id, original.winner)
                assert store.entry(original.key, original.provenance) is not None, "it heals where it is tuned again"

    fuzz()


def columns_of(path: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]


def plant(path: Path, changes: list[tuple[tuple[str, str], Any, bool]]) -> None:
    """Write behind the store's back; what SQLite itself refuses is left as it was."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for (table, column), value, as_text in changes:
            with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                how = "CAST(? AS TEXT)" if as_text else "?"
                connection.execute(f"UPDATE {table} SET {column} = {how} WHERE id = 1", (value,))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    monkeypatch.setattr(session, "machine", lambda: EIGHT_GPUS)
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "cache.db"))
    return Bench(EIGHT_GPUS)
