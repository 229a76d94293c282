"""A traced call of a config on all ranks: its events, and how much slower it is than others."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

from autotune.config import Config
from autotune.outcome import Outcome
from autotune.ranks.early_stop import slowest
from autotune.ranks.protocol import Done, Failed, Trace, Turn
from autotune.timeline import Traced


def traced_call(
    ask: Callable[[Turn | Trace], list[Done] | Failed], config: Config, twin: Config, warmup: int, calls: int
) -> Traced | Failed:
    """One call of ``twin``, whose kernels leave stamps behind; else its operations are marked. ``ask`` asks all ranks.

    A stamped call's slowdown is that of ``calls`` of it, a marked call's its own.
    """
    times = []
    for each in dict.fromkeys([config, twin]):
        answers = ask(Turn(each, warmup, calls))
        if isinstance(answers, Failed):
            return answers
        times.append(statistics.median(slowest([answer.times for answer in answers])))
    answers = ask(Trace())
    if isinstance(answers, Failed):
        return answers
    found = Traced.of(1.0, [answer.events for answer in answers])
    if not all(found.ranks):
        return Failed(Outcome.INVALID, "nothing of the call can be traced")
    return replace(found, slowdown=(found.end if found.is_marked else times[-1]) / times[0])
