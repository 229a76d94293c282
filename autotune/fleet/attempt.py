"""One attempt: claim a problem, tune it, keep the claim alive, and say how it ended. Runs on the host that tunes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from autotune.db import Lease, Store
from autotune.db.fleet import Fleet
from autotune.db.fleet_records import Claim, Wanted
from autotune.db.lease import BEAT_SECONDS
from autotune.errors import AutotuneError, StoreError
from autotune.fleet.tuning import PATIENCE, ChildTuning, End, Tuning

Start = Callable[[Wanted, str], Tuning]
"""Starts the tuning of a problem with results in the database of a URL."""

TICK_SECONDS = 0.2


def attempt(
    url: str, host: str, problem: int | None = None, token: str = "", *,
    cancelled: Callable[[], bool] = lambda: False, start: Start = ChildTuning,
) -> bool:  # fmt: skip
    """Claim a problem for this host, the named one or any, and tune it; False if there was none to claim.

    The ``token`` marks the claim's lease. Raises StoreError; a failed tuning is a row.
    """
    lease = Lease.new(token)
    with Store.open(url) as store:
        claim = store.fleet.claim(host, lease, problem)
        if claim is None:
            return False
        begin = time.monotonic()
        end = _tuned(store.fleet, claim, lease, cancelled, lambda wanted: start(wanted, url))
        store.fleet.end(claim.attempt, lease, end.state, end.reason, time.monotonic() - begin)
    return True


def _tuned(
    fleet: Fleet, claim: Claim, lease: Lease, cancelled: Callable[[], bool], start: Callable[[Wanted], Tuning]
) -> End:
    """Tune it while the claim is ours; stop it where the fleet is stopped, or the caller is."""
    try:
        tuning = start(claim.problem.wanted)
    except (AutotuneError, OSError) as error:
        return End("failed", str(error))
    beat_at = time.monotonic()
    try:
        while (end := tuning.wait(TICK_SECONDS)) is None:
            if cancelled():
                tuning.stop()
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + BEAT_SECONDS
                with suppress(StoreError):  # a server that restarts: the tuning itself waits for it
                    if fleet.beat(claim.attempt, lease, tuning.progress) != "running":
                        tuning.stop()
    except BaseException:  # Ctrl-C, or the engine's way to cancel
        tuning.stop()
        fleet.end(claim.attempt, lease, "stopped" if tuning.wait(2 * PATIENCE) else "lost", "interrupted")
        raise
    return end
