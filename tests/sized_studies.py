"""A study as if another config had won, or of other sizes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from fakes import latency_of

from autotune.config import Config
from autotune.db import CacheKey, TrialRecord
from autotune.outcome import Evaluation, Outcome
from autotune.results.result import Result
from autotune.results.study import Study


def won(study: Study, key: CacheKey | None = None, **fields: Any) -> Study:
    """The study with other ``fields`` of its winner, or of another key."""
    key, winner = key or study.key, dataclasses.replace(study.result.winner, **fields)
    entry = dataclasses.replace(study.result.entry, key=key, winner=winner)
    record = dataclasses.replace(study.record, key=key, winner=winner)
    return dataclasses.replace(study, record=record, result=Result.of(entry, study.workload))


def of_size(study: Study, m: int, *, push: float = 100.0, pull: float = 150.0, **fields: object) -> Study:
    """The study as if it had been of another size, with two measured configs; the faster one won."""
    latencies = {Config({"mode": "push"}): latency_of(push), Config({"mode": "pull"}): latency_of(pull)}
    trials = [TrialRecord(c, Evaluation(Outcome.MEASURED, latency=latency)) for c, latency in latencies.items()]
    config = min(latencies, key=lambda config: latencies[config].median)
    sized = dataclasses.replace(with_fields(study, m=m, **fields), trials=tuple(trials))
    return won(sized, config=config, latency=latencies[config])


def named(study: Study, size: int) -> Study:
    """A study whose fields have other names, with its first integer of that size."""
    name = next(name for name, value in study.problem.items() if isinstance(value, int))
    return with_fields(study, **{name: size})


def with_fields(study: Study, **fields: object) -> Study:
    problem = json.dumps({**study.key.fields, **fields}, sort_keys=True, separators=(",", ":"))
    return won(study, dataclasses.replace(study.key, problem=problem))
