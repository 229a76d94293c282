"""Tuning at first calls: a program tunes on its own ranks what it calls and nothing is tuned near, within a budget."""

from __future__ import annotations

import logging
import time

import torch.distributed as dist

from autotune.agreement import Agreement
from autotune.errors import InputError, NotTuned
from autotune.problem import Problem
from autotune.runtime.lookup import Found
from autotune.workloads import Workload

LOG = logging.getLogger("autotune")

EACH = 5.0
"""Seconds of a problem's search at most: of 34 searches on 2 H100 half were within 3 % of their end after 1.9 s, nine
of ten after 6.1 s.
"""


class FirstCalls:
    """What is left of a context's budget, and the searches that take it. Collective, as first calls are."""

    def __init__(self, agreement: Agreement, budget: str, url: str | None, regime: str) -> None:
        """Raises InvalidBudget, and InputError where the context has not all of the program's ranks."""
        from autotune.tuning.effort import parse_duration  # not before it is asked for: it imports the search

        self.budget, self._left = budget, parse_duration(budget)
        ranks = dist.get_world_size()
        if agreement.world_size != ranks:
            raise InputError(
                f"tune={budget!r}: the context has {agreement.world_size} of the program's {ranks} ranks, and only "
                "all of them together can tune: open it for all, or tune with the command"
            )
        self._agreement, self._url, self._regime = agreement, url, regime
        self._told = False

    def tuned(self, workload: Workload, problem: Problem, found: Found) -> Found:
        """The result of a search, where a look-up has ``found`` no entry; else what it has found."""
        if found.source not in ("predicted", "default") or found.by_environment:
            return found
        if not self._agreement.broadcast(lambda: self._left >= EACH):
            self._tell(problem)
            return found
        from autotune.runtime.in_program import tune

        begin = time.monotonic()
        if self._agreement.rank == 0:
            LOG.info("%s (%s): nothing is tuned near it: tuning", problem.workload, problem)
        try:
            return tune(workload, problem, budget=f"{EACH:g}s", url=self._url, regime=self._regime)
        except NotTuned as error:  # on every rank
            LOG.warning("%s: runs with its untuned config", error)
            return found
        finally:
            self._left -= time.monotonic() - begin

    def _tell(self, problem: Problem) -> None:
        """Say once that the budget is used up."""
        if not self._told and self._agreement.rank == 0:
            LOG.warning(
                "tune=%r is used up: %s (%s) and what comes after it run with untuned configs; the next run of this "
                "program tunes on, as does the command with autotune.collect()'s list",
                self.budget, problem.workload, problem,
            )  # fmt: skip
        self._told = True
