"""Several processes on one file, and processes that are killed while they write."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from writers import heard, start_writer, started, tell

from autotune.db import Store


def test_sixteen_processes_make_and_fill_a_fresh_file_at_once(tmp_path: Path) -> None:
    processes, rounds, trials = 16, 30, 5
    with started(processes, trials) as writers:
        for round in range(rounds):
            path = tmp_path / f"{round}.db"
            begin = time.monotonic()
            for writer in writers:
                tell(writer, path)
            for writer in writers:
                assert [heard(writer) for _ in range(trials + 1)] == [*map(str, range(trials)), "done"]
            assert time.monotonic() - begin < 300, "nobody waits for a lock that is never given back"
            with Store.open(path, create=False) as store:
                [study] = store.studies()
                numbers = Counter(trial.number for trial in store.trials(study.id))
                assert numbers == dict.fromkeys(range(trials), processes)


def test_a_killed_writer_loses_at_most_the_record_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    for kept_on_for in (0.01, 0.05, 0.2):
        with Store.open(path) as store:
            before = sum(len(store.trials(study.id)) for study in store.studies())
        with start_writer(10**6) as writer:
            assert heard(writer) == "ready"
            tell(writer, path)
            assert heard(writer) == "0"
            time.sleep(kept_on_for)
            writer.kill()
            assert writer.stdout is not None
            told = [0, *(int(line) for line in writer.stdout.read().splitlines())]
        with Store.open(path, create=False) as store:
            [study] = store.studies()
            kept = [trial.number for trial in store.trials(study.id)][before:]
        assert kept[: len(told)] == told
        assert len(kept) <= len(told) + 1


def test_processes_killed_while_they_make_the_file_leave_nothing_in_the_way(tmp_path: Path) -> None:
    for delay in (0.0, 0.02, 0.05, 0.1):
        path = tmp_path / f"{delay}.db"
        with start_writer(1) as writer:
            assert heard(writer) == "ready"
            tell(writer, path)
            time.sleep(delay)
            writer.kill()
        with Store.open(path) as store:
            assert len(store.studies()) <= 1
