"""The pool: what a job gives or raises, that a helper's end is its job's alone, that none is left once it is closed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from process_ends import gone

from autotune.errors import InvalidConfig
from autotune.processes.pool import HelperDied, HelperStuck, Pool

HOUR = 3600.0


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Two helpers, whose first job does nothing."""
    made = Pool(2, os.getpid)
    yield made
    made.close()


def test_a_job_returns_or_raises_what_its_function_does(pool: Pool) -> None:
    pid = pool.submit(HOUR, os.getpid).result()
    assert pid != os.getpid() and pool.submit(HOUR, divmod, 7, 2).result() == (3, 1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(HOUR, divmod, 7, 0).result()
    with pytest.raises(InvalidConfig, match="planted"):
        pool.submit(HOUR, exec, "from autotune.errors import *; raise InvalidConfig('planted')", {}).result()
    with pytest.raises(RuntimeError, match="Odd: planted"):
        pool.submit(HOUR, exec, "class Odd(Exception): pass\nraise Odd('planted')", {}).result()
    assert pool.submit(HOUR, os.getpid).result() == pid, "the same helper still"


def test_the_end_of_a_helper_is_that_of_its_job_alone(pool: Pool) -> None:
    jobs = [pool.submit(HOUR, time.sleep, 0.5), pool.submit(HOUR, os._exit, 7), pool.submit(HOUR, divmod, 7, 2)]
    with pytest.raises(HelperDied, match="exit code 7"):
        jobs[1].result()
    with pytest.raises(HelperDied, match="SIGKILL"):
        pool.submit(HOUR, signal.raise_signal, signal.SIGKILL).result()
    assert jobs[0].result() is None and jobs[2].result() == (3, 1)


def test_a_helper_that_is_stuck_is_ended(pool: Pool) -> None:
    pid = pool.submit(HOUR, os.getpid).result()
    with pytest.raises(HelperStuck):
        pool.submit(0.1, time.sleep, HOUR).result()
    assert gone(pid)
    assert pool.submit(HOUR, divmod, 7, 2).result() == (3, 1)


def test_once_it_is_closed_no_helper_is_left_whatever_it_was_at(pool: Pool) -> None:
    pid = pool.submit(HOUR, os.getpid).result()
    running, waiting = pool.submit(HOUR, time.sleep, HOUR), [pool.submit(HOUR, os.getpid) for _ in range(3)]
    pool.close()
    assert gone(pid)
    with pytest.raises(HelperDied):
        running.result()
    for each in waiting:
        assert each.cancelled() or isinstance(each.exception(), HelperDied) or isinstance(each.result(), int)
    pool.close()
