"""Results in a notebook: HTML that stands alone and in which no name acts."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, Winner
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.results.copies import copies
from autotune.results.figures import ratio
from autotune.results.model import Limit, Report, Speedup
from autotune.runtime.lookup import Found

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b\u202e\"'"
LATENCY, SLOWER = Latency(2500.0, 2490.0, 2510.0, 1.0, 9), Latency(5000.0, 4990.0, 5010.0, 1.0, 9)


def entry(text: str) -> Entry:
    key = CacheKey(text, '{"M":64,"a.dtype":"torch.float16"}', 2, text, text, text, "graph")
    winner = Winner(Config({"mode": text, "block": 64}), LATENCY, {text: SLOWER})
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    return Entry(key, Provenance(text, text, text, text, text, text), winner, 1, moment, 9, 0, 9, origin=text)


def report(text: str) -> Report:
    of = entry(text)
    return Report(
        key=of.key, provenance=of.provenance, problem=of.key.fields, study_id=1, seed=0, space_size=9,
        finished_at=of.finished_at, config=of.winner.config, latency=LATENCY,
        speedups=(Speedup(text, SLOWER, ratio(SLOWER, LATENCY)),),
        limit=Limit({text: LATENCY}, {text: ratio(LATENCY, LATENCY)}, text), roofline=None, in_regimes={}, verdicts=(),
        routings=(), taxes=(), ladder=None, best=(), endings=(), disqualified=(), knobs=(), searched=9, remeasured=0,
        seconds=1.0, measuring=1.0, notes=(text,), repeat=text,
        copies=copies(of.key, of.winner.config),
    )  # fmt: skip


RESULTS = {
    "found": lambda text: Found(Config({"mode": text}), "nearest", entry(text), text),
    "entry": entry,
    "evaluation": lambda text: Evaluation(Outcome.CRASHED, text, seconds={text: 1.0}),
    "report": report,
}


class Parsed(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


@pytest.mark.parametrize("kind", RESULTS)
def test_every_name_is_text(kind: str) -> None:
    result: Any = RESULTS[kind](EVIL)
    parsed = Parsed(result._repr_html_())
    assert parsed.tags == {"div", "strong", "table", "tr", "th", "td"} and parsed.attributes == {"style"}
    assert "<script>alert(1)</script>" in parsed.text and "\x1b" not in parsed.text and "\u202e" not in parsed.text


def test_found_tells_the_entry_and_the_config() -> None:
    found = Found(Config({"mode": "push", "block": 64}), "exact", entry("push"), "")
    text = Parsed(found._repr_html_()).text
    for each in ("exact", "2.500 ms, 2.00 times as fast as push (5.000 ms), graph", "2 × push", "M=64", "block"):
        assert each in text
    assert len(repr(found)) < 200, "the entry is not repeated in one line"


def test_a_report_tells_what_to_paste() -> None:
    text = Parsed(report("push")._repr_html_()).text
    for each in (
        "2.00 ± 0.01 (by spread) times as fast",
        "1.00 of the limit",
        "= triton.Config({'mode': 'push'",
    ):
        assert each in text


def test_a_share_above_one_has_a_word() -> None:
    of = report("push")
    limit = Limit({"gemm": SLOWER}, {"gemm": ratio(SLOWER, LATENCY)}, "gemm")
    text = Parsed(dataclasses.replace(of, limit=limit)._repr_html_()).text
    assert "2.00 of the limit, faster than the library's slower part alone" in text
