"""A traced call of a config on all ranks: its events, and how much slower it is than others."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Protocol

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.ranks.early_stop import slowest
from autotune.ranks.protocol import Done, Failed, Trace, Turn
from autotune.timeline import Traced


class Turns(Protocol):
    def turn(self, request: Turn | Trace) -> list[Done] | Failed: ...


def traced_call(ranks: Turns, config: Config, twin: Config, warmup: int, calls: int) -> Traced | Failed:
    """One call of ``twin``, which leaves stamps behind, or of the config itself, whose operations are then marked.

    A twin's slowdown is that of ``calls`` of it; of a marked call that call's own.
    """
    times = []
    for each in dict.fromkeys([config, twin]):
        answers = ranks.turn(Turn(each, warmup, calls))
        if isinstance(answers, Failed):
            return answers
        times.append(statistics.median(slowest([answer.times for answer in answers])))
    answers = ranks.turn(Trace())
    if isinstance(answers, Failed):
        return answers
    found = Traced.of(1.0, [answer.events for answer in answers])
    if not all(found.ranks):
        return Failed(Outcome.INVALID, "its kernels have no trace points")
    took = found.end if found.is_marked else times[-1]
    return replace(found, slowdown=took / times[0])
