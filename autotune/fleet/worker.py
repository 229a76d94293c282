"""A host's worker: it walks the list and tunes what is neither finished nor leased, until nothing is left."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from autotune.db import CacheKey, Lease, Store
from autotune.db.lease import Silence
from autotune.db.records import Standing, columns
from autotune.errors import AutotuneError, FleetError, StoreError
from autotune.fleet.problem_list import Asked
from autotune.fleet.standing import is_done, is_stop, title
from autotune.machine import Machine
from autotune.task import Task
from autotune.tuning import Progress, Result
from autotune.workloads import provenance_of

LOG = logging.getLogger("autotune")

LOOK_SECONDS = 5.0
"""Seconds between two looks at leases of others, while nothing else is left."""

Watch = Callable[[Progress], None]
Tune = Callable[[Asked, Watch], Result]
"""Tunes a problem; the function is called with the progress, and may raise."""


class Taken(Exception):
    """Another process has leased the problem since the last look."""


class Worker:
    """Tunes the problems that this host can take, the widest first, and verifies between sizes once those around them
    are tuned. One that fails is not tried again.
    """

    def __init__(
        self, store: Store, machine: Machine, asked: Sequence[Asked], tune: Tune, tell: Callable[[str], None],
        gpus: int,
    ) -> None:  # fmt: skip
        """``gpus``: the widest problem that this host takes."""
        self._store, self._tune, self._tell = store, tune, tell
        mine = [each for each in asked if each.device in (None, machine.device) and each.problem.world_size <= gpus]
        mine.sort(key=lambda each: (not each.search, -each.problem.world_size))
        self._left = {
            each: (CacheKey.of(Task(each.problem, machine), each.regime), provenance_of(each.workload)) for each in mine
        }
        self._families = {each: _family(each) for each in mine}
        self._lease = Lease.new()
        self._silences: dict[int, Silence] = {}
        self._begun: Asked | None = None

    def run(self) -> None:
        """Work until all is done or has failed here. While others hold the rest, wait: they may die.

        Raises StoreError, FleetError after ``stop``, KeyboardInterrupt.
        """
        for _, standing in self._standings():
            if standing is not None and is_stop(standing.held):  # this command resumes what was stopped
                self._free(standing)
        while self._left:
            free = self._look()
            if not any(map(self._attempt, free)) and self._left:
                time.sleep(LOOK_SECONDS)

    def _standings(self) -> list[tuple[Asked, Standing | None]]:
        """Each problem that is left, with None before its study."""
        known = self._store.standings()
        return [(each, known.get((*columns(key), *columns(by)))) for each, (key, by) in self._left.items()]

    def _look(self) -> list[Asked]:
        """Drop what is done, and return what is free."""
        found = self._standings()
        if any(standing is not None and is_stop(standing.held) for _, standing in found):
            raise FleetError("stopped; measurements are kept, and the same command resumes")
        self._left = {each: self._left[each] for each, standing in found if not is_done(each, standing)}
        waited_for = {self._families[each] for each in self._left if each.search}
        ready = {each for each in self._left if each.search or self._families[each] not in waited_for}
        return [each for each, standing in found if each in ready and self._is_free(standing)]

    def _is_free(self, standing: Standing | None) -> bool:
        """True if nobody tunes it; the lease of a dead process is ended."""
        if standing is None or standing.held is None:
            return True
        silence = self._silences.setdefault(standing.study_id, Silence())
        silence.hear(standing.held)
        return silence.over is not None and self._free(standing)

    def _free(self, standing: Standing) -> bool:
        """End a lease, unless its heart has beaten since the look."""
        if self._store.take_lease(standing.study_id, self._lease, standing.held) is not None:
            return False
        self._store.release(standing.study_id, self._lease)
        return True

    def _attempt(self, asked: Asked) -> bool:
        """Tune one problem; False if another process was faster."""
        begin = time.monotonic()
        try:
            result = self._tune(asked, partial(self._watch, asked))
        except Taken:
            return False
        except StoreError as error:  # not the problem's fault: the database was away, or another process took over
            self._look()  # or was it stopped?
            self._tell(f"left: {title(asked)}: {error}")
        except Exception as error:  # noqa: BLE001  whatever it is, it costs this problem alone
            LOG.info("%s", title(asked), exc_info=True)
            self._fail(asked, str(error) if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}")
        else:
            if result.interrupted:
                raise KeyboardInterrupt
            if result.entry is None:
                trials = self._store.trials(result.study.id)
                reasons = [each.evaluation.reason for each in trials if each.evaluation.reason]
                self._fail(asked, "; the last: ".join(["no config passed", *reasons[-1:]]))
            elif not result.from_cache:
                self._tell(f"done in {time.monotonic() - begin:.0f} s: {title(asked)}")
        self._left.pop(asked, None)
        return True

    def _watch(self, asked: Asked, progress: Progress) -> None:
        if progress.waiting:
            raise Taken
        if self._begun is not asked:
            self._begun = asked
            self._tell(title(asked))

    def _fail(self, asked: Asked, reason: str) -> None:
        self._tell(f"failed: {title(asked)}: {reason}")
        self._store.fail(*self._left[asked], f"{socket.gethostname()}: {reason}")


def _family(asked: Asked) -> tuple[object, ...]:
    """Equal for problems that differ only in sizes along which configs are tuned for ranges."""
    fixed = {name: value for name, value in asked.problem.as_dict().items() if name not in asked.problem.free}
    return asked.workload, asked.regime, *fixed.items()
