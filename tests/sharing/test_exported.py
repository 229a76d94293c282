from __future__ import annotations

import dataclasses
import itertools
import json
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sample_entries import make_entry

from autotune.db import Entry, Routed
from autotune.errors import InputError
from autotune.sharing import read, schema, write

ROOT = Path(__file__).parents[2]

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


def test_entries_come_back_with_every_field() -> None:
    entries = [make_entry(m=4096, median=1e-3), make_entry(m=1024, bias=True)]
    assert read(write(entries)) == [without_study(entry) for entry in entries]


def test_times_are_written_and_read_in_utc() -> None:
    entry = make_entry()
    text, elsewhere = write([entry]), timezone(timedelta(hours=2))
    assert write([dataclasses.replace(entry, finished_at=entry.finished_at.astimezone(elsewhere))]) == text
    [found] = read(changed(text, "entries", 0, "finished_at", to="2026-03-04T07:06:07.000008+02:00"))
    assert found == without_study(entry) and found.finished_at.tzinfo is UTC


def test_the_same_entries_are_the_same_bytes_in_whatever_order_they_come() -> None:
    base = make_entry()
    stale = dataclasses.replace(base, provenance=dataclasses.replace(base.provenance, torch="1.0"))
    in_a_graph = dataclasses.replace(base, key=dataclasses.replace(base.key, regime="graph"))
    entries = [base, make_entry(m=16), make_entry(m=256, world_size=4), stale, in_a_graph]
    texts = {write(order) for order in itertools.islice(itertools.permutations(entries), 0, None, 13)}
    assert len(texts) == 1
    [text] = texts
    assert [entry.key.problem.count('"m":256,') for entry in read(text)] == [1, 0, 0, 0, 0], "by ranks, then by size"
    assert write(read(text)) == text


def test_a_changed_config_is_a_small_diff() -> None:
    one, other = make_entry(), make_entry(m=16)
    better = dataclasses.replace(
        one, winner=dataclasses.replace(one.winner, config=one.winner.config.replace(block_k=32))
    )
    before, after = write([one, other]).splitlines(), write([better, other]).splitlines()
    assert len(before) == len(after)
    assert [now.strip() for then, now in zip(before, after, strict=True) if then != now] == ['"block_k": 32,']


@pytest.mark.parametrize(
    "text",
    [
        "", "[" * 100_000, "[]", BEGINNING.replace("1", "3") + '"entries": []}', BEGINNING + '"entries": ["\\ud800"]}',
        BEGINNING + '"entries": ' + "[" * 300 + "]" * 300 + "}", BEGINNING + '"entries": ' + "9" * 5000 + "}",
        BEGINNING + '"entries": {}}', BEGINNING + '"entries": [7]}', BEGINNING + '"entries": [], "x": 1}',
    ],
)  # fmt: skip
def test_another_file_is_refused(text: str) -> None:
    assert refusal(text)


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("latency.median", [-1, "fast", float("nan")]), ("latency.iterations", [2.5]), ("latency.low", [420.0]),
        ("latency.host_rounds", [[17.0]]), ("latency.by_rank", [[1.0] * 7]), ("limits.gemm.by_rank", [[1.0]]),
        ("baselines.graph.by_rank", [3]), ("config", [{}]), ("config.block_m", [1.5]), ("config.mode", ["push\u202e"]),
        ("roofline.times", [{}]), ("roofline.rates.flops", [0.0]),
        ("problem.m", [float("inf"), [1, ["H200\x1b"]], [1, {"a": 1}], None]), ("world_size", [0]),
        ("provenance.torch", [2.11]), ("seed", [2**63]), ("trials", [True]), ("note", ["mine"]), ("study_id", [3]),
        ("regime", ["warm"]), ("device", [""]), ("arch", ["x" * 1001]), ("baselines.a\nb", [{}]),
        ("finished_at", ["yesterday", "2026-01-02T03:04:05", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_entry_and_field(place: str, values: list[Any]) -> None:
    text = write([make_entry(m=16), make_entry()])
    for value in values:
        message = refusal(changed(text, "entries", 1, *place.split("."), to=value))
        assert "entry 2 (all_gather_gemm" in message and "entry 1" not in message
        assert place.split(".")[0] in message.partition("), ")[2].casefold()


def test_what_would_be_refused_again_is_not_exported(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = make_entry(m=16), make_entry()
    bad = dataclasses.replace(bad, key=dataclasses.replace(bad.key, device="H200\x1b[2J"))
    assert read(write([good, bad])) == [without_study(good)]
    (told,) = caplog.messages
    assert "study 7" in told and r"\x1b" in told


def test_latencies_under_other_routings_are_in_the_file() -> None:
    plain = make_entry()
    routed = Routed(plain.winner.latency, {"graph": plain.winner.baselines["graph"]})
    routings = {"zipf 1": routed, "one expert": Routed(plain.winner.latency)}
    entry = dataclasses.replace(plain, winner=dataclasses.replace(plain.winner, routings=routings))
    text = write([entry])
    assert read(text) == [without_study(entry)]
    for place in (("latency", "by_rank"), ("baselines", "graph", "by_rank")):
        told = refusal(changed(text, "entries", 0, "routings", "zipf 1", *place, to=[1.0] * 3))
        assert ".".join(["routings.zipf 1", *place]) in told


def test_many_mistakes_are_cut_short() -> None:
    values = json.loads(write([make_entry(m=8 * size) for size in range(1, 31)]))
    for entry in values["entries"]:
        entry["trials"] = -1
    lines = refusal(json.dumps(values)).splitlines()
    assert len(lines) == 12 and lines[-1] == "and 20 more"


def test_the_same_key_twice_is_refused() -> None:
    values = json.loads(write([make_entry(m=16), make_entry()]))
    values["entries"].append(values["entries"][0])
    assert refusal(json.dumps(values)).startswith("entries 1 and 3 ")


def test_a_value_given_twice_is_refused() -> None:
    text = write([make_entry()]).replace('"seed":', '"seed": 7,\n      "seed":')
    with pytest.raises(InputError, match="seed twice"):
        read(text)


def test_the_documented_schema_is_the_one_that_is_checked() -> None:
    assert (ROOT / "docs/configs.schema.json").read_text() == schema()
