"""The configs that a context's ranks have agreed on: the given ones, else what rank 0's database says."""

from __future__ import annotations

import logging

from autotune.agreement import Agreement
from autotune.config import Config
from autotune.db import Entry
from autotune.db.engines import database_url, place_of
from autotune.errors import InvalidConfig, StoreError
from autotune.machine import Machine
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.runtime.entries import Entries, Measured, read_entries, read_measured
from autotune.runtime.first_calls import FirstCalls
from autotune.runtime.lookup import Found, lookup
from autotune.runtime.meeting import Meeting, Step
from autotune.settings import default_database_url
from autotune.task import Task
from autotune.workloads import Workload, provenance_of
from autotune.workloads import workload as workload_named

LOG = logging.getLogger("autotune")


class Choices:
    """Every method named as collective is called within a meeting, of which it is the first exchange."""

    def __init__(
        self, agreement: Agreement, meeting: Meeting, machine: Machine, url: str | None, regime: Regime
    ) -> None:
        self._agreement, self._meeting = agreement, meeting
        self._machine, self._url, self._regime = machine, url, regime
        self.known: dict[tuple[Workload, Problem], Found] = {}
        """The configs that were looked up."""
        self._of_family: dict[tuple[Workload, Problem], Found] = {}
        """First answers for invariant problems of all sizes, kept for good: what is tuned later would change bits."""
        self._told = False
        self._told_of: set[str] = set()
        """Workloads of which was said that they do not run what is tuned."""
        self.first_calls: FirstCalls | None = None
        """Where it is given, problems that nothing is tuned near are tuned when they are called first."""

    def tune(self, budget: str) -> None:
        """Tune at first calls from now on. Collective. Raises what ``FirstCalls`` raises."""

        def made() -> FirstCalls:
            return FirstCalls(self._agreement, budget, self._url, self._regime)

        self._meeting.first(lambda: Step(f"tune={made().budget}"))
        self.first_calls = made()

    def call(self, workload: Workload, problem: Problem, config: Config | None) -> str:
        """A call in words. Raises InvalidConfig for a given config that is not valid."""
        if config is None:
            return f"{problem.workload} {problem.to_json()}"
        asked = problem.family() if problem.is_invariant else problem
        violation = workload.space.violation(config, Task(asked, self._machine))
        if violation is not None:
            raise InvalidConfig(f"config not valid for {problem}: {violation}")
        return f"{problem.workload} {problem.to_json()} {config.to_json()}"

    def agree(self, call: str, workload: Workload, problem: Problem, config: Config | None) -> Found:
        """The config of all ranks: the given one, else rank 0's. Collective; ``call`` is the same on all ranks."""
        steps = self._meeting.first(lambda: self._step(call, workload, problem, config))
        found = steps[0].found
        assert found is not None
        if config is None:
            self._compare(problem, steps)
            if problem.is_invariant:
                found = self._of_family.setdefault((workload, problem.family()), found)
            elif self.first_calls is not None:
                found = self.first_calls.tuned(workload, problem, found)
            self._tell(workload.name, found)
            self.known[workload, problem] = found
        return found

    def entries(self, name: str) -> Entries:
        """A workload's entries on this device, as rank 0 reads them. Collective. Raises what ``lookup`` raises."""
        self._meeting.first(lambda: Step(f"entries of {name}"))
        every, measured = self._agreement.broadcast(lambda: self._read(workload_named(name)))
        return Entries(every, lambda entry: measured.get(entry.study_id, ()))

    def _read(self, workload: Workload) -> tuple[list[Entry], dict[int, Measured]]:
        """The entries, and what the studies measured of those whose winner a look-up may replace."""
        entries, today = read_entries(self._database, workload.name, self._machine.device), provenance_of(workload)
        lending = [
            each for each in entries
            if type(workload).waste is not Workload.waste and each.provenance == today
            and (each.key.world_size, each.key.regime) == (self._agreement.world_size, self._regime)
        ]  # fmt: skip
        return list(entries), read_measured(self._database, lending) if lending else {}

    def _step(self, call: str, workload: Workload, problem: Problem, config: Config | None) -> Step:
        """This rank's config for a problem. Raises what ``lookup`` raises, but rank 0 alone what its database does."""
        if config is not None:
            return Step(call, given(config))
        if (workload, problem) in self.known:
            return Step(call, self.known[workload, problem])
        if problem.is_invariant and (workload, problem.family()) in self._of_family:
            return Step(call, self._of_family[workload, problem.family()])
        try:
            found = lookup(workload, problem, machine=self._machine, url=self._url, regime=self._regime)
        except StoreError as error:
            if self._agreement.rank == 0:
                raise
            return Step(call, source=str(error))
        return Step(call, found, f"{place_of(database_url(self._database))}: {found.source}")

    def _compare(self, problem: Problem, steps: list[Step]) -> None:
        """Say once where the ranks' databases answer differently."""
        answers = {(step.found.config, step.found.source) if step.found is not None else None for step in steps}
        if len(answers) == 1 or self._told:
            return
        self._told = True
        if self._agreement.rank == 0:
            LOG.warning(
                "%s (%s): the ranks' databases give different answers, and all ranks run rank 0's (%s); give all of "
                "them one database, by AUTOTUNE_DB or a context's url, with the same content",
                problem.workload, problem, "; ".join(f"rank {rank}: {step.source}" for rank, step in enumerate(steps)),
            )  # fmt: skip

    def _tell(self, name: str, found: Found) -> None:
        """Say once of a workload that the environment chose its config."""
        if found.by_environment and self._agreement.rank == 0 and name not in self._told_of:
            self._told_of.add(name)
            LOG.warning("%s: %s, and no tuned config is served: %s", name, found.reason, found.config)

    @property
    def _database(self) -> str:
        return self._url or default_database_url()


def given(config: Config) -> Found:
    return Found(config, "given", None, "given by the caller")
