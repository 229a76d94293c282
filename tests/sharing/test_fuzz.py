"""Files and rows that nobody wrote on purpose: they end in StoreError, InputError or success, and in nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, bench_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_entries import make_entry

from autotune.db import Store
from autotune.errors import InputError, StoreError
from autotune.sharing import Here, read, review, take, write
from autotune.text import HIDDEN

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


def sound() -> Any:
    return json.loads(write([make_entry()]))


@pytest.mark.parametrize("cases", [150, pytest.param(1400, marks=pytest.mark.slow)])
def test_files(store: Store, cases: int) -> None:
    value = sound()
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
            take(store, review(entries, Here.of(store), EIGHT_GPUS, replace=True))
            ends["taken"] += 1
            assert read(write(store.entries())) is not None, "what came in can go out"

    fuzz()
    assert ends["refused"] > cases / 14 and ends["taken"] > cases / 14


def test_files_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus = bench_of(EIGHT_GPUS, monkeypatch, tmp_path)
    file, there = tmp_path / "configs.json", tmp_path / "there.db"

    @settings(FUZZ, max_examples=20)
    @given(text=mutations(sound()), dry=st.booleans())
    def fuzz(text: str, dry: bool) -> None:
        file.write_text(text)
        for old in tmp_path.glob("there.db*"):
            old.unlink()
        words = ["import", str(file), "--db", str(there), "--replace", *(["--dry-run"] if dry else [])]
        result = gpus.tune(*words)
        assert result.exit_code in (0, 1, 2) and "Traceback" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert not HIDDEN.search(result.output.replace("\n", ""))
        assert not there.exists() or (result.exit_code < 2 and not dry), "a bad file stores nothing"

    fuzz()
