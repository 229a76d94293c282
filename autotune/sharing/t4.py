"""Measurements in T4, the exchange format for autotuning results that Kernel Tuner and others read and write.

The text satisfies both of T4's schemas, results and metadata.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from autotune.db import Entry, TrialRecord
from autotune.outcome import Latency, Outcome
from autotune.text import json_text

VERSION = "1.0.0"

INVALIDITY = {
    Outcome.MEASURED: "correct",
    Outcome.INVALID: "constraints",
    Outcome.DID_NOT_COMPILE: "compile",
    Outcome.OUT_OF_RESOURCES: "constraints",
    Outcome.WRONG_RESULT: "correctness",
    Outcome.TIMED_OUT: "timeout",
    Outcome.CRASHED: "runtime",
}
"""T4's names of our outcomes."""

PHASES = {"compile": "compilation_time", "check": "validation", "measure": "benchmark", "total": "total"}
"""T4's names of our phases, where it has one."""

MILLISECONDS = 1e3
"""Per second; also microseconds per millisecond. T4 leaves the unit open, Kernel Tuner uses milliseconds."""


def to_t4(entry: Entry, trials: Sequence[TrialRecord]) -> str:
    """Every evaluation of the entry's study, as JSON text."""
    values = {
        "schema_version": VERSION,
        "results": [_result(trial) for trial in trials],
        "metadata": {
            "hardware": {
                "hardware_description": [
                    {
                        "device": entry.key.device,
                        "arch": entry.key.arch,
                        "devices": entry.key.world_size,
                        "interconnect": entry.key.interconnect,
                    }
                ]
            },
            "environment": {
                "requirements": [
                    f"{name}=={version}"
                    for name in ("triton", "iris", "torch")
                    if (version := getattr(entry.provenance, name))
                ],
                "device_query": {"driver": entry.provenance.driver},
            },
            "workload": entry.key.workload,
            "problem": json.loads(entry.key.problem),
        },
    }
    return json_text(values) + "\n"


def _result(trial: TrialRecord) -> dict[str, Any]:
    evaluation = trial.evaluation
    return {
        "timestamp": trial.created_at.isoformat() if trial.created_at is not None else "",
        "configuration": dict(sorted(trial.config.items())),
        "objectives": ["time"],
        "times": {PHASES.get(name, name): seconds * MILLISECONDS for name, seconds in evaluation.seconds.items()},
        "invalidity": INVALIDITY[evaluation.outcome],
        "correctness": int(evaluation.outcome is Outcome.MEASURED),
        "measurements": _measurements(evaluation.latency) if evaluation.latency is not None else [],
    }


def _measurements(latency: Latency) -> list[dict[str, Any]]:
    times = {
        "time": latency.median,
        "time_percentile_20": latency.low,
        "time_percentile_80": latency.high,
        "time_skew": latency.skew,
        **{f"time_rank_{rank}": median for rank, median in enumerate(latency.by_rank)},
    }
    times |= {
        name: value
        for name, value in (("time_host", latency.host), ("time_isolated", latency.isolated))
        if value is not None
    }
    return [
        *({"name": name, "value": value / MILLISECONDS, "unit": "ms"} for name, value in times.items()),
        {"name": "iterations", "value": latency.iterations, "unit": ""},
    ]
