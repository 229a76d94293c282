"""A damaged value in any column of any table costs its row, at most, and no command that reads ends in a traceback."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from every_mode import whole
from fakes import EIGHT_GPUS, Bench, bench_of

from autotune.cli.commands import fleet
from autotune.db.models import Base
from autotune.taxes import measure

NAME = ["all-gather-gemm", "--m", "4096", "--n", "28672", "--k", "8192", "--world-size", "8"]
LIST = "problems: [{workload: all-gather-gemm, m: 4096, n: 28672, k: 8192, world_size: 8, trials: 2}]"

VALUES: tuple[tuple[str, Any], ...] = (
    ("?", None), ("?", b"\xff\x00"), ("CAST(? AS TEXT)", b"\xff\xfe"), ("?", "a word"), ("?", ""), ("?", "[]"),
    ("?", "{}"), ("?", '{"a":1}'), ("?", '{"block_m":65,"mode":"push"}'), ("?", "null"), ("?", "[" * 100_000),
    ("?", -1), ("?", 0), ("?", 2**63 - 1), ("?", 1.5), ("?", float("inf")), ("?", "NaN"),
    ("?", "0001-01-01T00:00:00+14:00"),
)  # fmt: skip
"""SQL and what stands for it: wrong types, out of range, unknown words, empty, NULL, not JSON, not UTF-8."""

COMMANDS = [
    ["list"], ["list", "--json"], ["show", *NAME], ["show", *NAME, "--json"], ["lookup", *NAME], ["report", *NAME],
    ["report", *NAME, "--format", "json"], ["report", "--all", "-o", "pages"], ["export", "-o", "exported.json"],
    ["compare", "whole.db", "cache.db"], ["compare", "cache.db", "whole.db", "--json"], [*NAME, "--trials", "2"],
    ["fleet", "problems.yaml", "--status"], ["fleet", "problems.yaml", "--stop"], ["fleet", "problems.yaml"],
]  # fmt: skip

TABLES = [table.name for table in Base.metadata.sorted_tables]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With a database that has rows in every table."""
    here = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patched:
        bench = prepare(patched, here)
        assert bench.tune(*NAME, "--trials", "24").exit_code == 0
        assert bench.tune("taxes", *NAME, "--rounds", "4").exit_code == 0
        with closing(sqlite3.connect(here / "cache.db")) as raw:
            assert all(raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)
            raw.execute("PRAGMA journal_mode = DELETE")
        (here / "cache.db").rename(here / "whole.db")
        yield here


def prepare(patched: pytest.MonkeyPatch, here: Path) -> Bench:
    bench = bench_of(EIGHT_GPUS, patched, here)
    patched.chdir(here)
    patched.setattr(fleet, "examine", lambda name, url: None)
    patched.setitem(measure.WARMED, "gpu", 0.0)  # a fake gang need not be warmed
    (here / "problems.yaml").write_text(LIST)
    return bench


def columns(table: str) -> list[str]:
    return [column.name for column in Base.metadata.tables[table].columns]


def cases(table: str) -> list[tuple[str, str, Any, list[str]]]:
    return [(c, *value, words) for c, value, words in itertools.product(columns(table), VALUES, COMMANDS)]


def damage(path: Path, table: str, column: str, sql: str, value: Any) -> bool:
    """In the last row, of trials also in one of the search; False where SQLite itself refuses the value."""
    which = f"id = (SELECT max(id) FROM {table})"
    if table == "tuning_trials" and column not in ("id", "record_key"):
        which += " OR id = 20"
    with closing(sqlite3.connect(path)) as raw:
        try:
            raw.execute(f"UPDATE {table} SET {column} = {sql} WHERE {which}", [value])
        except sqlite3.IntegrityError:
            return False
        raw.commit()
    return True


def cases_of_make_test(table: str) -> list[tuple[str, str, Any, list[str]]]:
    """Each column once, its value and its command in turn."""
    commands = itertools.cycle(COMMANDS)
    values = itertools.islice(itertools.cycle(VALUES), sorted(TABLES).index(table) * 5, None)
    return [(column, *value, words) for column, value, words in zip(columns(table), values, commands, strict=False)]


def damaged(folder: Path, table: str, cases: Iterable[tuple[str, str, Any, list[str]]]) -> list[str]:
    faults = []
    with pytest.MonkeyPatch.context() as patched:
        bench = prepare(patched, folder)
        for column, sql, value, words in cases:
            for old in folder.glob("cache.db*"):
                old.unlink()
            shutil.copy(folder / "whole.db", folder / "cache.db")
            if damage(folder / "cache.db", table, column, sql, value):
                error = bench.tune(*words).exception
                if error is not None and not isinstance(error, SystemExit):
                    faults.append(f"{table}.{column} = {str(value)[:40]!r}: tune {' '.join(words)}: {error!r}")
    return faults


@pytest.mark.parametrize("of", [cases_of_make_test, whole(cases)])
@pytest.mark.parametrize("table", TABLES)
def test_a_damaged_value_ends_no_command_in_a_traceback(folder: Path, table: str, of: Any) -> None:
    assert damaged(folder, table, of(table)) == []
