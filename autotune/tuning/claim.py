"""One process at a time tunes a study: a second one waits and takes its result, or takes over from a dead one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from autotune.db import Lease, Store, StudyRecord
from autotune.db.lease import BEAT_SECONDS, Silence
from autotune.errors import StoreError
from autotune.tuning.progress import Progress

LOG = logging.getLogger("autotune")

POLL_SECONDS = 0.5
"""Seconds between two looks at a study that another process tunes."""


@contextmanager
def claimed(
    store: Store, begin: Callable[[], StudyRecord], watch: Callable[[Progress], None],
    serves: Callable[[StudyRecord], bool] = lambda study: True, *, anew: bool = False,
) -> Iterator[tuple[StudyRecord, Lease]]:  # fmt: skip
    """Yields the study that ``begin`` finds or makes: finished, or leased to this process while the context lasts; and
    the lease, which the store asks for whenever it takes something of the run.

    While another process tunes it, wait and name that process to ``watch``. ``anew`` supersedes an existing study once
    that process is done, as does a finished one that ``serves`` refuses. Raises StoreError.
    """
    lease = Lease.new()
    study = _awaited(store, begin, watch, lease, serves, anew)
    if study.state == "finished":
        yield study, lease
        return
    over = threading.Event()
    heart = threading.Thread(target=_beat, args=(store, study.id, lease, over), name="lease", daemon=True)
    heart.start()
    try:
        yield study, lease
    finally:
        over.set()
        heart.join()
        with suppress(StoreError):  # who waits sees that this process is gone, or hears no heartbeat
            store.release(study.id, lease)


def _awaited(
    store: Store, begin: Callable[[], StudyRecord], watch: Callable[[Progress], None], lease: Lease,
    serves: Callable[[StudyRecord], bool], anew: bool,
) -> StudyRecord:  # fmt: skip
    """A finished study, or one leased to this process now."""
    silence = Silence()
    progress, since = Progress(), time.monotonic()
    while True:
        study = begin()
        if study.state == "finished" and not anew:
            if serves(study):
                return study
            anew = True
        held = store.take_lease(study.id, lease, silence.over)
        if held is not None:
            silence.hear(held)
            progress.phase = f"waiting: {held} is tuning this problem"
            progress.waiting, progress.seconds = True, time.monotonic() - since
            watch(progress)
            time.sleep(POLL_SECONDS)
        elif anew and (study.state == "finished" or store.trials(study.id)):
            store.forget(study.id)
            store.release(study.id, lease)
            anew = False
        elif begin() == study:
            return study
        else:  # it was finished, or superseded, before the lease was ours
            store.release(study.id, lease)


def _beat(store: Store, study_id: int, lease: Lease, over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        with suppress(StoreError):  # a server that restarts: the loop itself waits for it, and says so
            if not store.beat(study_id, lease):
                LOG.warning("study %d: another process took it over because this one's heartbeat stopped", study_id)
                return
