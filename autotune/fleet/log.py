"""A fleet's attempts as lines, as they begin and end."""

from __future__ import annotations

import json

from autotune.db.fleet import Fleet
from autotune.db.fleet_records import Attempt, Listed
from autotune.results.figures import dashed, problem_text, regime_options


class Log:
    """Tells what happened since it was asked last; the beginning is its making."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._newest = fleet.newest_attempt()
        self._open: set[int] = set()

    def lines(self) -> list[str]:
        lines = []
        for each in self._fleet.attempts(self._newest, self._open):
            if each.id > self._newest:
                lines.append(f"{each.host}: {title(each.problem)}")
                self._newest = each.id
            if each.state == "running":
                self._open.add(each.id)
            else:
                self._open.discard(each.id)
                lines.append(_end(each))
        return lines


def title(listed: Listed) -> str:
    """``all-gather-gemm m=16 n=64 k=64 … on 2 × cpu-interpreter``."""
    return f"{short_title(listed)} on {listed.wanted.key.world_size} × {listed.wanted.key.device}"


def short_title(listed: Listed) -> str:
    """The title without ranks, device, and flags that are off."""
    key = listed.wanted.key
    problem = {name: value for name, value in json.loads(key.problem).items() if value is not False}
    return f"{dashed(key.workload)} {problem_text(problem)}{regime_options(key.regime)}"


def _end(attempt: Attempt) -> str:
    took = f" in {attempt.seconds:.0f} s" if attempt.seconds is not None and attempt.state == "done" else ""
    why = f": {attempt.reason}" if attempt.reason else ""
    return f"{attempt.host}: {attempt.state}{took}: {title(attempt.problem)}{why}"
