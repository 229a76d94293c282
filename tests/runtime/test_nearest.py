"""The entry of a range, or the nearest, is found in a sorted table; it is what a look at every entry finds."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Winner
from autotune.outcome import Latency
from autotune.runtime.entries import Entries, serve

TODAY = Provenance("a", "b", "3.7", "0", "2.13", "")
YESTERDAY = Provenance("a", "b", "3.6", "0", "2.13", "")


def key_of(problem: dict[str, Any]) -> CacheKey:
    text = json.dumps(problem, sort_keys=True, separators=(",", ":"))
    return CacheKey("any", text, 2, "NVIDIA H200", "sm_90", "nvlink")


def entry_of(number: int, problem: dict[str, Any], provenance: Provenance = TODAY) -> Entry:
    winner = Winner(Config({"mode": "push", "number": number}), Latency(1.0, 1.0, 1.0, 0.0, 1))
    return Entry(key_of(problem), provenance, winner, number, datetime(2026, 1, 1, tzinfo=UTC), 1, 0, 1)


def number_of(entry: Entry | None) -> int | None:
    return None if entry is None else entry.winner.config.integer("number")


def is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1 << 63


def by_looking_at_all(entries: Sequence[Entry], key: CacheKey, free: Sequence[str], refused: set[int]) -> int | None:
    """The rule, written down once more in the plainest way."""
    wanted = json.loads(key.problem)
    exact = [number_of(entry) for entry in entries if entry.provenance == TODAY and entry.key == key]
    found, along = [], dict[str, list[tuple[int, str, int | None]]]()
    for entry in entries:
        problem = json.loads(entry.key.problem)
        if entry.provenance != TODAY or set(key.differences(entry.key)) - set(free):
            continue
        sizes = [name for name in free if is_size(problem.get(name)) and is_size(wanted.get(name))]
        for name in sizes:
            alike = {**problem, name: 0} == {**wanted, name: 0}
            if alike and isinstance(problem[name], int) and isinstance(wanted[name], int):
                along.setdefault(name, []).append((problem[name], entry.key.problem, number_of(entry)))
        if sizes != list(free):
            continue
        ratios = [problem[name] / wanted[name] for name in free]
        if all(0.5 <= ratio <= 2 for ratio in ratios):
            distance = sum(abs(math.log2(ratio)) for ratio in ratios)
            found.append((distance, math.prod(ratios), entry.key.problem, number_of(entry)))
    between = []
    for place, name in enumerate(free):
        sides = along.get(name, [])
        below = max((each for each in sides if each[0] < wanted[name]), default=None)
        above = min((each for each in sides if each[0] > wanted[name]), default=None)
        if below is not None and above is not None and above[0] <= 4 * below[0]:
            pair = [below[2], above[2]] if wanted[name] ** 2 <= below[0] * above[0] else [above[2], below[2]]
            between.append((above[0] / below[0], place, pair))
    of_ranges = [number for *_, pair in sorted(between) for number in pair]
    ordered = [*exact, *of_ranges, *(number for *_, number in sorted(found))]
    return next((number for number in ordered if number not in refused), None)


def random_tables(rng: random.Random, free: int, count: int) -> Iterator[tuple[list[Entry], dict[str, Any], set[int]]]:
    sizes: list[Any] = [*range(1, 40), 64, 96, 100, 128, 192, 2.5, 4.0]
    odd = [0, -1, 10**400, 10**400 + 1, True, "many"]
    weights = [2] * len(sizes) + [5] * len(odd)
    names = ["m", "batch"][:free]

    def problem() -> dict[str, Any]:
        drawn = dict(zip(names, rng.choices(sizes + odd, weights, k=free), strict=True))
        return {**drawn, "n": rng.choice([64, 64, 64, 128]), "dtype": rng.choice(["bf16", "bf16", "fp16"])}

    for _ in range(count):
        wanted = problem()
        drawn = [*(problem() for _ in range(rng.randrange(40))), *[wanted] * rng.randrange(3)]
        distinct = {(key_of(p).problem, rng.random() < 0.2): p for p in rng.sample(drawn, len(drawn))}
        table = [
            entry_of(number, each, YESTERDAY if stale else TODAY)
            for number, ((_, stale), each) in enumerate(distinct.items())
        ]
        yield table, wanted, {number for number in range(len(table)) if rng.random() < 0.3}


@pytest.mark.parametrize("tables", [80, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("free", [["m"], ["m", "batch"], []])
def test_it_is_what_a_look_at_every_entry_finds(free: list[str], tables: int) -> None:
    found_something = 0
    for table, wanted, refused in random_tables(random.Random(len(free)), max(1, len(free)), tables):
        key, entries = key_of(wanted), Entries(table)
        for names in (free, free[:1], []):  # one table answers for all
            served = serve(
                entries, key, TODAY, names,
                lambda config, refused=refused: "no" if config["number"] in refused else None,  # type: ignore[misc]
            )  # fmt: skip
            assert number_of(served.entry) == by_looking_at_all(table, key, names, refused), (wanted, table)
            assert served.reason or (served.entry is not None and served.entry.key == key)
            found_something += served.entry is not None
    assert found_something > tables / 8 or not free


def test_only_those_on_the_way_are_asked_whether_they_are_valid() -> None:
    entries = Entries(entry_of(m, {"m": m}) for m in range(1, 4096))
    asked: list[int] = []

    def violation(config: Config) -> str | None:
        asked.append(config.integer("number"))
        return "no" if len(asked) < 4 else None

    served = serve(entries, key_of({"m": 1000.5}), TODAY, ["m"], violation)
    assert number_of(served.entry) == 999 and asked == [1001, 1000, 1002, 999, 1003, 998, 1004, 997]
