"""A study as if it had been of other sizes."""

from __future__ import annotations

import dataclasses

from fakes import latency_of

from autotune.config import Config
from autotune.db import TrialRecord
from autotune.outcome import Evaluation, Outcome
from autotune.report.page import Study


def of_size(study: Study, m: int, *, push: float = 100.0, pull: float = 150.0, **fields: object) -> Study:
    """The study as if it had been of another size, with two measured configs; the faster one won."""
    assert study.report is not None
    latencies = {Config({"mode": "push"}): latency_of(push), Config({"mode": "pull"}): latency_of(pull)}
    trials = [TrialRecord(c, Evaluation(Outcome.MEASURED, latency=latency)) for c, latency in latencies.items()]
    won = min(latencies, key=lambda config: latencies[config].median)
    report = dataclasses.replace(study.report, config=won, latency=latencies[won])
    problem = {**study.problem, "m": m, **fields}
    return dataclasses.replace(study, problem=problem, trials=tuple(trials), report=report)


def named(study: Study, size: int) -> Study:
    """The same of a study whose fields have other names."""
    name = next(name for name, value in study.problem.items() if isinstance(value, int))
    return dataclasses.replace(study, problem={**study.problem, name: size})
