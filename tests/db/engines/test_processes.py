"""Several processes on one file, and processes that are killed while they write."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from writers import Writer, started

from autotune.db import Store


def test_eight_processes_make_and_fill_a_fresh_file_at_once(tmp_path: Path) -> None:
    processes, rounds, trials = 8, 3, 5
    with started(processes, trials) as writers:
        for round in range(rounds):
            path = tmp_path / f"{round}.db"
            for writer in writers:
                writer.tell(path)
            for writer in writers:  # none waits for a lock that is never given back
                assert [writer.heard() for _ in range(trials + 1)] == [*map(str, range(trials)), "done"]
            with Store.open(path, create=False) as store:
                [study] = store.studies()
                numbers = Counter(trial.number for trial in store.trials(study.id))
                assert numbers == dict.fromkeys(range(trials), processes)


def test_a_killed_writer_loses_at_most_the_record_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    for kept_on_for in (0.01, 0.05, 0.2):
        with Store.open(path) as store:
            before = sum(len(store.trials(study.id)) for study in store.studies())
        with Writer(10**6) as writer:
            assert writer.heard() == "ready"
            writer.tell(path)
            assert writer.heard() == "0"
            time.sleep(kept_on_for)
            writer.kill()
            told = [0, *map(int, writer.rest())]
        with Store.open(path, create=False) as store:
            [study] = store.studies()
            kept = [trial.number for trial in store.trials(study.id)][before:]
        assert kept[: len(told)] == told
        assert len(kept) <= len(told) + 1


def test_processes_killed_while_they_make_the_file_leave_nothing_in_the_way(tmp_path: Path) -> None:
    for delay in (0.0, 0.02, 0.05, 0.1):
        path = tmp_path / f"{delay}.db"
        with Writer(1) as writer:
            assert writer.heard() == "ready"
            writer.tell(path)
            time.sleep(delay)
            writer.kill()
        with Store.open(path) as store:
            assert len(store.studies()) <= 1
