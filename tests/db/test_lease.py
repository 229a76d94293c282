"""Leases in the tables: the process that tunes a study."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sample import TRIAL, WINNER

from autotune.db import Held, Lease, Store
from autotune.db.lease import LONGEST_PAUSE, SILENT_SECONDS, Silence
from autotune.errors import StoreError

THERE = dataclasses.replace(Lease.new(), host="far", system="another boot pid:[1]", pid=4711)
"""A lease of a process on another host."""


def test_one_process_holds_it_until_it_lets_go(store: Store, study: int) -> None:
    first, second = Lease.new(), Lease.new()
    assert store.take_lease(study, first) is None
    assert store.take_lease(study, first) is None, "again, were the first answer lost"
    held = store.take_lease(study, second)
    assert held is not None and held.lease == first and held.is_here and not held.is_gone
    assert str(held) == f"process {os.getpid()} on {first.host} since {first.since}"
    store.release(study, second)
    assert store.take_lease(study, second) is not None, "it is not the second's to release"
    store.release(study, first)
    assert store.take_lease(study, second) is None


def test_a_silent_one_is_taken_over_and_learns_of_it(store: Store, study: int) -> None:
    mine = Lease.new()
    assert store.take_lease(study, THERE) is None
    seen = store.take_lease(study, mine)
    assert seen is not None and not seen.is_here and not seen.is_gone
    assert store.beat(study, THERE)
    now = store.take_lease(study, mine, over=seen)
    assert now is not None and now.heartbeat > seen.heartbeat, "it lives: its heart beat meanwhile"
    assert store.take_lease(study, mine, over=now) is None
    assert not store.beat(study, THERE) and store.beat(study, mine)


def test_nothing_is_stored_under_a_lease_that_another_process_took(store: Store, study: int) -> None:
    mine = Lease.new()
    assert store.take_lease(study, mine) is None
    store.record(study, TRIAL, mine)
    seen = store.take_lease(study, THERE)
    assert store.take_lease(study, THERE, over=seen) is None
    for write in (lambda: store.record(study, TRIAL, mine), lambda: store.finish(study, WINNER, mine)):
        with pytest.raises(StoreError, match="4711"):
            write()
    store.record(study, TRIAL, THERE)
    store.finish(study, WINNER, THERE)
    store.release(study, THERE)
    with pytest.raises(StoreError, match="another process"):
        store.finish(study, WINNER, mine)
    assert len(store.trials(study)) == 2 and len(store.entries()) == 1


def test_a_process_that_is_gone_is_known_by_its_number_and_start(store: Store, study: int) -> None:
    code = "import autotune.db; print(autotune.db.Lease.new().text)"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert Held(text, 1).is_here and Held(text, 1).is_gone
    mine = Lease.new()
    assert not Held(mine.text, 1).is_gone
    assert Held(dataclasses.replace(mine, started="1").text, 1).is_gone, "another process had this number before"


def test_another_users_process_that_proc_hides_is_known_by_its_silence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /proc is mounted with hidepid=2: no entry, and a signal is not permitted."""

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        started = Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[19]
        unreaped = Held(dataclasses.replace(Lease.new(), pid=ended.pid, started=started).text, 1)
        assert unreaped.is_here and unreaped.is_gone, "it has ended, though its parent has not asked yet"
    held = Held(dataclasses.replace(Lease.new(), pid=ended.pid, started="1").text, 1)
    assert held.is_here and held.is_gone
    monkeypatch.setattr(os, "kill", forbidden)
    assert not held.is_here and not held.is_gone


def listened(monkeypatch: pytest.MonkeyPatch, looks: list[tuple[float, Held]]) -> Held | None:
    """The lease to take over after these looks, each so many seconds after the one before."""
    now, silence = 1000.0, Silence()
    monkeypatch.setattr("autotune.db.lease.time", SimpleNamespace(monotonic=lambda: now))
    assert silence.over is None
    for seconds, held in looks:
        now += seconds
        silence.hear(held)
    return silence.over


def test_a_holder_elsewhere_is_given_up_after_a_minute_without_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    held, later = Held(THERE.text, 3), Held(THERE.text, 4)
    looks = int(SILENT_SECONDS / 5)
    assert listened(monkeypatch, [(5, held)] * looks) is None, "the first look starts the clock"
    assert listened(monkeypatch, [(5, held)] * (looks + 1)) == held
    assert listened(monkeypatch, [(5, held)] * looks + [(5, later)]) is None, "it beat at last"
    assert listened(monkeypatch, [(5, held)] * looks + [(5, later)] + [(5, later)] * (looks - 1)) is None
    assert listened(monkeypatch, [(5, held)] * looks + [(5, later)] + [(5, later)] * looks) == later


def test_a_waiter_that_slept_takes_nothing_over(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(THERE.text, 3)
    assert listened(monkeypatch, [(1, held), (8 * 3600, held)]) is None, "the holder may have slept too"
    asleep = [(8 * 3600.0, held)] * int(SILENT_SECONDS / LONGEST_PAUSE)
    assert listened(monkeypatch, [(1, held), *asleep]) == held


def test_a_process_of_this_host_is_not_given_up_however_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Lease.new()
    assert listened(monkeypatch, [(5, Held(here.text, 3))] * 100) is None, "it lives: stopped, or cut off"
    gone = Held(dataclasses.replace(here, started="1").text, 3)
    assert listened(monkeypatch, [(5, gone)]) == gone


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"pid": "x"}'])
def test_a_damaged_lease_is_known_by_its_silence_alone(text: str) -> None:
    held = Held(text, 3)
    assert not held.is_here and not held.is_gone and str(held)
    for pid in (-1, 0, 2**70):  # numbers that no process has
        other = Held(dataclasses.replace(Lease.new(), pid=pid).text, 1)
        assert other.is_gone or not other.is_here


def test_a_lease_cannot_speak_to_the_terminal(store: Store, study: int) -> None:
    store.take_lease(study, dataclasses.replace(THERE, host="far\x1b]0;x\x07\n"))
    assert r"far\x1b]0;x\x07\n" in str(store.take_lease(study, Lease.new()))
