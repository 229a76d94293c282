"""Results in a notebook: HTML that stands alone and in which no name acts."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance, StudyRecord, Winner
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.results.result import Result
from autotune.results.study import Study
from autotune.runtime.lookup import Found

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b\u202e\"'"
LATENCY, SLOWER = Latency(2500.0, 2490.0, 2510.0, 1.0, 9), Latency(5000.0, 4990.0, 5010.0, 1.0, 9)


def entry(text: str) -> Entry:
    key = CacheKey(text, '{"M":64,"a.dtype":"torch.float16"}', 2, text, text, text, "graph")
    winner = Winner(Config({"mode": text, "block": 64}), LATENCY, {text: SLOWER})
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    return Entry(key, Provenance(text, text, text, text, text, text), winner, 1, moment, 9, 0, 9, origin=text)


def report(text: str) -> Study:
    of = entry(text)
    record = StudyRecord(1, of.key, of.provenance, 0, 9, "finished", of.finished_at, of.winner, text)
    return Study(record, (), None, Result.of(of), notes=(text,))


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
    for each in ("exact", "2.500 ms", "5.000 ms", "2 × push", "block=64"):
        assert each in text
    assert len(repr(found)) < 200, "the entry is not repeated in one line"
