"""Ctrl-C at any moment of a write: nothing is half-written, and the file is not locked any more."""

from __future__ import annotations

import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import FrameType

import pytest
from sample import TRIAL
from studies import begin

from autotune.db import Store, TrialRecord

LOCKS = ("acquire", "release", "__enter__", "__exit__")
"""Python handles no signal between these and the block that they guard."""


class CtrlC:
    """Raises KeyboardInterrupt at one of the moments at which Python handles signals."""

    def __init__(self, moment: int = -1) -> None:
        self.moments, self._moment = 0, moment

    def __call__(self, frame: FrameType, event: str, called: object) -> None:
        if event == "call" or (event == "c_return" and getattr(called, "__name__", "") not in LOCKS):
            self.moments += 1
            if self.moments == self._moment:
                raise KeyboardInterrupt

    def during(self, store: Store, study: int, trial: TrialRecord) -> None:
        try:
            sys.setprofile(self)
            store.record(study, trial)
        except BaseException:  # noqa: BLE001  SQLAlchemy turns some into errors of its own
            pass
        finally:
            sys.setprofile(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_write_keeps_no_lock(path: Path) -> None:
    with Store.open(path) as store:
        study = begin(store).id
        whole = CtrlC()
        for _ in range(2):  # the first one fills caches
            whole.moments = 0
            whole.during(store, study, TRIAL)
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            for moment in range(1, whole.moments, 3):  # more than ten of them would leave a lock
                CtrlC(moment).during(store, study, TRIAL)
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
        before = store.trials(study)
        assert 0 < len(before) < whole.moments
        store.record(study, TRIAL)
        assert [each == TRIAL for each in store.trials(study)] == [True] * (len(before) + 1)
        other_thread = threading.Thread(target=store.trials, args=(study,), daemon=True)
        other_thread.start()
        other_thread.join(10)
        assert not other_thread.is_alive(), "an interrupted write keeps a lock from other threads"
