"""The state machine under any sequence of steps: nothing is lost, nothing is done twice, wherever a process dies."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from small_fleet import far_lease, host, m_of, wanted
from sqlalchemy import text

from autotune.db import Lease, Store
from autotune.db.fleet import HOSTS_PER_PROBLEM, MOST_LOST
from autotune.db.fleet_records import AttemptState, Claim

HOSTS = ("a", "b", "c")


class FleetSteps(RuleBasedStateMachine):
    """Hosts claim, beat, end and die; people add, stop, resume and forgive."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.store = Store.open(f"{self.folder}/cache.db")
        self.fleet = self.store.fleet
        self.added: set[int] = set()
        self.finished: Counter[int] = Counter()
        for name in HOSTS:
            self.fleet.register(host(name))

    def teardown(self) -> None:
        """From here everything can be brought to an end: no problem is stuck or forgotten."""
        for each in self.fleet.running():
            assert self.fleet.lose(each.attempt, each.held, "its process died")
        self.fleet.resume()
        self.fleet.forgive()
        while (claim := self.fleet.claim("a", lease := Lease.new())) is not None:
            self.finished[m_of(claim.problem.wanted)] += 1
            self.fleet.end(claim.attempt, lease, "done")
        assert set(self.finished) == self.added
        assert self.fleet.counts().done == len(self.added)
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(first=st.integers(1, 6), count=st.integers(1, 3))
    def add(self, first: int, count: int) -> None:
        sizes = range(first, first + count)
        assert self.fleet.add(wanted(m) for m in sizes) == len(set(sizes) - self.added)
        self.added |= set(sizes)

    @rule(target=claims, name=st.sampled_from(HOSTS))
    def claim(self, name: str) -> tuple[Claim, Lease] | None:
        lease = far_lease()
        found = self.fleet.claim(name, lease)
        if found is None:
            return None
        assert not self.finished[m_of(found.problem.wanted)], "it is done"
        return found, lease

    @rule(held=claims, progress=st.text(max_size=20))
    def beat(self, held: tuple[Claim, Lease] | None, progress: str) -> None:
        if held is not None:
            claim, lease = held
            ours = [each for each in self.fleet.running() if each.attempt == claim.attempt]
            state = self.fleet.beat(claim.attempt, lease, progress)
            assert (state in ("running", "stopping")) == bool(ours)

    @rule(held=consumes(claims), state=st.sampled_from(["done", "done", "failed", "lost", "stopped"]))
    def end(self, held: tuple[Claim, Lease] | None, state: AttemptState) -> None:
        if held is not None:
            claim, lease = held
            self.fleet.end(claim.attempt, lease, state, state)
            if state == "done":
                self.finished[m_of(claim.problem.wanted)] += 1

    @rule(held=claims)
    def seems_dead(self, held: tuple[Claim, Lease] | None) -> None:
        """Its heartbeat has not been heard: it is given up, and may be alive all the same."""
        for each in self.fleet.running():
            if held is not None and each.attempt == held[0].attempt:
                assert self.fleet.lose(each.attempt, each.held, "silent")

    @rule(held=consumes(claims))
    def dies(self, held: tuple[Claim, Lease] | None) -> None:
        """Nobody hears of it until the teardown looks for it."""

    @rule()
    def stop(self) -> None:
        self.fleet.stop()
        counts = self.fleet.counts()
        assert counts.wanted == counts.running == 0

    @rule()
    def resume(self) -> None:
        self.fleet.resume()

    @rule()
    def forgive(self) -> None:
        self.fleet.forgive()
        assert self.fleet.counts().failed == 0

    @invariant()
    def rows_agree(self) -> None:
        counts = self.fleet.counts()
        assert counts.total == len(self.added)
        under_way = [each.problem.id for each in self.fleet.running()]
        assert len(under_way) == len(set(under_way)) == counts.running + counts.stopping
        with self.store._database.engine.connect() as connection:
            rows = connection.execute(text("SELECT p.id, p.problem, p.state FROM fleet_problems p ORDER BY p.id")).all()
            attempts = connection.execute(
                text("SELECT problem_id, host, state FROM fleet_attempts WHERE forgiven = 0")
            ).all()
        for problem in rows:
            mine = [(each.host, each.state) for each in attempts if each.problem_id == problem.id]
            assert (problem.state in ("running", "stopping")) == any(state == "running" for _, state in mine)
            assert problem.state != "done" or any(state == "done" for _, state in mine)
            if problem.state == "failed":
                failed_on = {name for name, state in mine if state == "failed"}
                lost = sum(state == "lost" for _, state in mine)
                assert len(failed_on) >= HOSTS_PER_PROBLEM or lost >= MOST_LOST


FleetSteps.TestCase.settings = settings(
    max_examples=5, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_sequence_of_steps = FleetSteps.TestCase


@pytest.mark.slow
class TestManySequences(FleetSteps.TestCase):
    settings = settings(FleetSteps.TestCase.settings, max_examples=50)


def test_given_up_forgiven_and_home_after_all() -> None:
    """A sequence that was found once."""
    steps = FleetSteps()
    steps.add(count=1, first=1)
    held = steps.claim(name="a")
    steps.seems_dead(held=held)
    steps.forgive()
    steps.end(held=held, state="done")
    steps.rows_agree()
    steps.teardown()
