from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from autotune.db import Entry, Routed
from autotune.errors import InputError
from autotune.sharing import read, schema, write

ROOT = Path(__file__).parents[2]

MakeEntry = Callable[..., Entry]

BEGINNING = '{"format": "iris-autotune/configs", "version": 1, '


def without_study(entry: Entry) -> Entry:
    return dataclasses.replace(entry, study_id=0, imported_at=None)


def changed(text: str, *place: str | int, to: Any) -> str:
    """The file with one value replaced; the last word of the place may be new."""
    values = json.loads(text)
    inner = values
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = to
    return json.dumps(values)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(text)
    return str(caught.value)


def test_entries_come_back_with_every_field(make_entry: MakeEntry) -> None:
    entries = [make_entry(m=4096, median=1e-3), make_entry(m=1024, bias=True)]
    assert read(write(entries)) == [without_study(entry) for entry in entries]


def test_times_are_written_and_read_in_utc(make_entry: MakeEntry) -> None:
    entry = make_entry()
    text, elsewhere = write([entry]), timezone(timedelta(hours=2))
    assert write([dataclasses.replace(entry, finished_at=entry.finished_at.astimezone(elsewhere))]) == text
    [found] = read(changed(text, "entries", 0, "finished_at", to="2026-03-04T07:06:07.000008+02:00"))
    assert found == without_study(entry) and found.finished_at.tzinfo is UTC


def test_the_same_entries_are_the_same_bytes_in_whatever_order_they_come(make_entry: MakeEntry) -> None:
    base = make_entry()
    stale = dataclasses.replace(base, provenance=dataclasses.replace(base.provenance, torch="1.0"))
    in_a_graph = dataclasses.replace(base, key=dataclasses.replace(base.key, regime="graph"))
    entries = [base, make_entry(m=16), make_entry(m=256, world_size=4), stale, in_a_graph]
    texts = {write(order) for order in itertools.permutations(entries)}
    assert len(texts) == 1
    [text] = texts
    assert [entry.key.problem.count('"m":256,') for entry in read(text)] == [1, 0, 0, 0, 0], "by ranks, then by size"
    assert write(read(text)) == text


def test_a_changed_config_is_a_small_diff(make_entry: MakeEntry) -> None:
    one, other = make_entry(), make_entry(m=16)
    better = dataclasses.replace(
        one, winner=dataclasses.replace(one.winner, config=one.winner.config.replace(block_k=32))
    )
    before, after = write([one, other]).splitlines(), write([better, other]).splitlines()
    assert len(before) == len(after)
    assert [now.strip() for then, now in zip(before, after, strict=True) if then != now] == ['"block_k": 32,']


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON: Expecting value: line 1 column 1"),
        ("[" * 100_000, "not JSON: "),
        ("[]", 'expected an object with "format": "iris-autotune/configs"'),
        (BEGINNING.replace("1", "3") + '"entries": []}', "version 3 of the format; this iris-autotune reads version 1"),
        (BEGINNING + '"entries": ["\\ud800"]}', "entry 1: "),
        (BEGINNING + '"entries": ' + "[" * 300 + "]" * 300 + "}", "entry 1: expected an object"),
        (BEGINNING + '"entries": ' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
        (BEGINNING + '"entries": {}}', "an array of entries"),
        (BEGINNING + '"entries": [7]}', "entry 1: expected an object; got 7"),
        (BEGINNING + '"entries": [], "x": 1}', "expected format, version and an array"),
    ],
)
def test_another_file_is_refused(text: str, told: str) -> None:
    assert told in refusal(text)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("latency", "median"), -1, "latency.median: allowed: 0.001 to 1e+12; got -1"),
        (("latency", "median"), "fast", "latency.median: expected a number; got 'fast'"),
        (("latency", "median"), float("nan"), "latency.median: not a finite number"),
        (("latency", "iterations"), 2.5, "latency.iterations: expected an integer"),
        (("baselines", "graph", "by_rank"), 3, "baselines.graph.by_rank: "),
        (("config", "block_m"), 1.5, "config: config value block_m=1.5: allowed: "),
        (("config",), {}, "config: 0 long, allowed: 1 or more"),
        (("roofline", "times"), {}, "roofline.times: 0 long, allowed: 1 or more"),
        (("roofline", "rates", "flops"), 0.0, "roofline.rates.flops: allowed: "),
        (("problem", "m"), float("inf"), "problem.m: not a finite number"),
        (("problem", "m"), [1, ["H200\x1b"]], "problem.m.1.0: holds \\x1b, a hidden character"),
        (("problem", "m"), [1, {"a": 1}], "problem.m: expected text, a number or a flag"),
        (("problem", "m"), None, "problem.m"),
        (("world_size",), 0, "world_size: allowed: 1 to "),
        (("provenance", "torch"), 2.11, "provenance.torch: expected text; got 2.11"),
        (("finished_at",), "yesterday", "finished_at: "),
        (("finished_at",), "2026-01-02T03:04:05", "finished_at: expected a date and a time with their zone"),
        (("seed",), 2**63, "seed: not a 64-bit integer"),
        (("trials",), True, "trials: expected an integer; got True"),
        (("note",), "mine", "note: unknown field"),
        (("study_id",), 3, "unknown field"),
        (("regime",), "warm", "'warm' is not a valid Regime"),
        (("device",), "", "device: 0 long, allowed: 1 or more"),
        (("config", "mode"), "push\u202e", "config.mode: holds \\u202e"),
        (("baselines", "a\nb"), {}, "holds \\n"),
        (("arch",), "x" * 1001, "arch: longer than 1000 characters"),
        (("latency", "low"), 420.0, "latency: low (420.0) is above high (419.125)"),
        (("latency", "host_rounds"), [17.0], "latency: rounds: 2 of the device, "),
        (("latency", "by_rank"), [1.0] * 7, "latency.by_rank: 7 times, world_size is 8"),
        (("limits", "gemm", "by_rank"), [1.0], "gemm.by_rank: 1 times, world_size is 8"),
        (("finished_at",), "0001-01-01T00:00:00+14:00", "finished_at: "),
        (("finished_at",), "9999-12-31T23:59:59-14:00", "finished_at: "),
    ],
)
def test_a_mistake_is_named_by_entry_and_field(
    make_entry: MakeEntry, place: tuple[str, ...], value: Any, told: str
) -> None:
    message = refusal(changed(write([make_entry(m=16), make_entry()]), "entries", 1, *place, to=value))
    assert 'entry 2 (all_gather_gemm {"b_order": ' in message
    assert told in message
    assert "entry 1" not in message


def test_what_would_be_refused_again_is_not_exported(make_entry: MakeEntry, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = make_entry(m=16), make_entry()
    bad = dataclasses.replace(bad, key=dataclasses.replace(bad.key, device="H200\x1b[2J"))
    assert read(write([good, bad])) == [without_study(good)]
    assert caplog.messages == [r"study 7 is left out: device: holds \x1b, a hidden character; got 'H200\x1b[2J'"]


def test_latencies_under_other_routings_are_in_the_file(make_entry: MakeEntry) -> None:
    plain = make_entry()
    routed = Routed(plain.winner.latency, {"graph": plain.winner.baselines["graph"]})
    routings = {"zipf 1": routed, "one expert": Routed(plain.winner.latency)}
    entry = dataclasses.replace(plain, winner=dataclasses.replace(plain.winner, routings=routings))
    text = write([entry])
    assert read(text) == [without_study(entry)]
    place = "entries", 0, "routings", "zipf 1", "latency", "by_rank"
    told = refusal(changed(text, *place, to=[1.0] * 3))
    assert "routings.zipf 1.latency.by_rank: 3 times, world_size is 8" in told
    place = "entries", 0, "routings", "zipf 1", "baselines", "graph", "by_rank"
    told = refusal(changed(text, *place, to=[530.0] * 3))
    assert "routings.zipf 1.baselines.graph.by_rank: 3 times, world_size is 8" in told


def test_many_mistakes_are_cut_short(make_entry: MakeEntry) -> None:
    values = json.loads(write([make_entry(m=8 * size) for size in range(1, 31)]))
    for entry in values["entries"]:
        entry["trials"] = -1
    lines = refusal(json.dumps(values)).splitlines()
    assert len(lines) == 12 and lines[-1] == "and 20 more"


def test_the_same_key_twice_is_refused(make_entry: MakeEntry) -> None:
    values = json.loads(write([make_entry(m=16), make_entry()]))
    values["entries"].append(values["entries"][0])
    assert refusal(json.dumps(values)).startswith("entries 1 and 3 have the same problem, machine and provenance")


def test_a_value_given_twice_is_refused(make_entry: MakeEntry) -> None:
    """As a merge leaves it; Python takes the last one."""
    text = write([make_entry()]).replace('"seed":', '"seed": 7,\n      "seed":')
    with pytest.raises(InputError, match="an object in it names seed twice; keep one"):
        read(text)


def test_the_documented_schema_is_the_one_that_is_checked() -> None:
    assert (ROOT / "docs/configs.schema.json").read_text() == schema()
