"""Identical runs at once: one tunes, the others wait for it, and take over what a dead one left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fakes import begun, far_lease
from small_space import TASK, WORKLOAD, Ranks, kept, run, time_of

from autotune.config import Config
from autotune.db import Lease, Store
from autotune.db.lease import Held
from autotune.errors import StoreError
from autotune.tuning import Progress, Result, claim

TESTS = Path(__file__).parents[1]
HERE = f"process {os.getpid()} on "


class SlowRanks(Ranks):
    """Tell when they are asked for the first time, and answer once they may."""

    def __init__(self) -> None:
        super().__init__(time=self._when_allowed)
        self.asked, self.allowed = threading.Event(), threading.Event()

    def _when_allowed(self, config: Config) -> float:
        self.asked.set()
        assert self.allowed.wait(120)
        return time_of(config)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "POLL_SECONDS", 0.02)


def study_of(store: Store) -> int:
    return begun(store, WORKLOAD, TASK).id


def until_waiting(seen: list[str], interrupt: bool = False) -> Callable[[Progress], None]:
    """Notes what is waited for; Ctrl-C then, if asked for."""

    def watch(progress: Progress) -> None:
        if progress.waiting:
            seen.append(progress.phase)
            if interrupt:
                raise KeyboardInterrupt

    return watch


def test_identical_runs_measure_everything_once(path: Path) -> None:
    first, others = SlowRanks(), [Ranks() for _ in range(3)]
    seen: list[list[str]] = [[] for _ in others]
    with ThreadPoolExecutor(4) as pool:
        tuned = pool.submit(run, path, first)
        assert first.asked.wait(120)
        joined = [
            pool.submit(run, path, ranks, watch=until_waiting(phases))
            for ranks, phases in zip(others, seen, strict=True)
        ]
        while not all(seen):
            time.sleep(0.01)
        first.allowed.set()
        entry = tuned.result().entry
        assert entry is not None
        assert [each.result().entry for each in joined] == [entry] * 3
        assert all(each.result().from_cache for each in joined)
    assert all(phases[0].startswith(f"waiting: {HERE}") for phases in seen)
    assert all(ranks.calls == ranks.log == [] for ranks in others), "the others' ranks are not even started"


def test_force_waits_and_then_tunes_anew(path: Path) -> None:
    first, second = SlowRanks(), Ranks()
    seen: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        tuned = pool.submit(run, path, first)
        assert first.asked.wait(120)
        anew = pool.submit(run, path, second, watch=until_waiting(seen), force=True)
        while not seen:
            time.sleep(0.01)
        assert second.calls == []
        first.allowed.set()
        before, after = tuned.result().entry, anew.result().entry
    assert before is not None and after is not None and before.study_id != after.study_id
    assert len(second.calls) == len(first.calls)
    with Store.open(path) as store:
        assert [study.state for study in store.studies()] == ["superseded", "finished"]
        assert store.entries() == [after]


def test_what_a_killed_process_left_is_taken_over_at_once(path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from small_space import *\n"
        "def hang(config):\n"
        "    if len(ranks.calls) == 6: print('tuning', flush=True); time.sleep(600)\n"
        "    return time_of(config)\n"
        "ranks = Ranks(time=hang); run(Path(sys.argv[1]), ranks)"
    )
    words = [sys.executable, "-c", code, str(path)]
    places = f"{TESTS}{os.pathsep}{TESTS.parent}"
    with subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": places}) as process:
        assert process.stdout is not None and process.stdout.readline() == b"tuning\n"
        seen: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            run(path, Ranks(), watch=until_waiting(seen, interrupt=True))
        assert f"process {process.pid} on " in seen[0]
        process.kill()
    measured = [record.config for record in kept(path)]
    assert len(measured) == 5
    ranks = Ranks()
    assert run(path, ranks).entry is not None
    assert not set(ranks.configs[:10]) & set(measured), "nothing measured is measured again"


def test_a_heart_goes_on_after_a_beat_that_failed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beat, beats, again = Store.beat, list[bool](), threading.Event()

    def away_once(store: Store, study: int, lease: Lease) -> bool:
        beats.append(True)
        if len(beats) == 1:
            raise StoreError("planted: the server restarts")
        again.set()
        return beat(store, study, lease)

    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(Store, "beat", away_once)
    ranks = SlowRanks()
    with ThreadPoolExecutor(1) as pool:
        tuned = pool.submit(run, path, ranks)
        beaten = again.wait(120)
        ranks.allowed.set()
        assert beaten and tuned.result().entry is not None
    assert not any(thread.name == "lease" for thread in threading.enumerate())


def test_a_run_whose_study_was_taken_over_ends_in_words_and_changes_nothing(path: Path) -> None:
    late = SlowRanks()
    with ThreadPoolExecutor(1) as pool, Store.open(path) as store:
        tuned = pool.submit(run, path, late)
        assert late.asked.wait(120)
        silent = store.take_lease(study_of(store), far_lease())
        assert store.take_lease(study_of(store), theirs := far_lease(), over=silent) is None
        late.allowed.set()
        with pytest.raises(StoreError, match="study 1"):
            tuned.result()
        assert len(late.calls) == 1 and kept(path) == [], "what it measured since then is not among the other's rounds"
        assert store.beat(study_of(store), theirs), "and the lease is still the other's"


def test_a_run_whose_study_another_finished_meanwhile_does_not_finish_it_again(path: Path) -> None:
    def takes_over(config: Config) -> float:
        if len(late.calls) == 24:  # in its finals
            with Store.open(path) as store:
                silent = store.take_lease(study_of(store), far_lease())
                assert store.take_lease(study_of(store), theirs := far_lease(), over=silent) is None
                store.release(study_of(store), theirs)
            others.append(run(path, Ranks()))
        return time_of(config)

    others: list[Result] = []
    late = Ranks(time=takes_over)
    with pytest.raises(StoreError, match="study 1"):
        run(path, late)
    with Store.open(path) as store:
        assert store.entries() == [others[0].entry]


def test_what_another_finished_before_the_lease_was_ours_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, begun, others = Store.take_lease, list[Lease](), list[Result]()

    def late(store: Store, study: int, lease: Lease, over: Held | None = None) -> Held | None:
        begun.append(lease)
        if len(begun) == 1:
            others.append(run(path, Ranks()))
        return take(store, study, lease, over)

    monkeypatch.setattr(Store, "take_lease", late)
    idle = Ranks()
    result = run(path, idle)
    assert result.from_cache and result.entry == others[0].entry and idle.log == [] == idle.calls
