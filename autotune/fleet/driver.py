"""The loop of ``tune fleet``: find what is lost, hand out what is wanted, wait. All it knows is in the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autotune.db.fleet import Fleet
from autotune.db.fleet_records import HostRecord, Kind, UnderWay
from autotune.db.lease import Silence
from autotune.errors import FleetError
from autotune.fleet.engine import Ended, Engine

POLL_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""Seconds between two looks for leases of dead processes."""

MOST_UNABLE = 20
"""Tasks in a row that could not even claim a problem, after which the fleet gives up."""


def drive(fleet: Fleet, engine: Engine, watch: Callable[[], None] = lambda: None) -> None:
    """Hand out problems until none is left that a host of this engine can take.

    While another command's hosts are at work this one waits, so that what they lose is not lost. ``watch`` is called
    after every look at the database. Raises StoreError, FleetError.
    """
    losses, unable = _Losses(fleet), 0
    known: set[str] = set()
    while True:
        hosts = engine.hosts()
        for host in hosts:
            if host.name not in known:
                fleet.register(host)
                known.add(host.name)
        hand_out(fleet, engine, hosts)
        losses.look(engine)
        watch()
        if not engine.at_work and not losses.others:
            hand_out(fleet, engine, hosts)  # what others gave back between the two looks
            if not engine.at_work:
                return
        ends = engine.ended(POLL_SECONDS)
        for end in ends:
            losses.give_up(end)
        unable = unable + sum(bool(end.unable) for end in ends) if all(end.unable for end in ends) else 0
        if unable >= MOST_UNABLE:
            raise FleetError(f"{unable} tasks in a row could not start; the last: {ends[-1].unable}")


def hand_out(fleet: Fleet, engine: Engine, hosts: Sequence[HostRecord]) -> None:
    """Give each host with free GPUs the widest problems that it takes.

    A host whose widest problem does not fit into what is free waits for it, or narrow ones would keep it out for ever.
    """
    alike: dict[tuple[Kind, int], list[HostRecord]] = {}
    for host in hosts:
        if engine.free(host):
            alike.setdefault((host.kind, host.gpus), []).append(host)
    for group in alike.values():
        limit = sum(engine.free(host) for host in group)
        for problem in fleet.doable([host.name for host in group], limit, engine.at_work):
            able = [host for host in group if host.name not in problem.failed_on]
            fitting = [host for host in able if engine.free(host) >= problem.wanted.key.world_size]
            if fitting:
                engine.start(problem, min(fitting, key=engine.free))
            elif len(able) == len(group):
                break


class _Losses:
    """Attempts of dead processes, found by the engine's word or by their leases."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._silences: dict[int, Silence] = {}
        self._looked_at = -LOOK_SECONDS
        self.others = 0
        """Attempts of other commands that are under way, at problems that this engine's hosts could take."""

    def look(self, engine: Engine) -> None:
        """Give up on attempts of other commands whose process is gone, or on another host and silent."""
        if engine.at_work and time.monotonic() < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        at_work = set(engine.at_work)
        kinds = {host.kind for host in engine.hosts()}
        running = self._fleet.running()
        others = [each for each in running if each.problem.id not in at_work and each.problem.wanted.kind in kinds]
        self._silences = {each.attempt: self._silences.get(each.attempt, Silence()) for each in others}
        self.others = sum(not self._is_lost(each) for each in others)

    def give_up(self, end: Ended) -> None:
        if not end.lost:
            return
        for each in self._fleet.running():
            lease = each.held.lease
            if each.problem.id == end.problem and lease is not None and lease.token == end.token:
                self._fleet.lose(each.attempt, each.held, end.lost)

    def _is_lost(self, under_way: UnderWay) -> bool:
        silence = self._silences[under_way.attempt]
        silence.hear(under_way.held)
        over = silence.over
        return over is not None and self._fleet.lose(under_way.attempt, over, "its process died")
