"""A replay drives the real loop: the same seed gives the same run, whether interrupted or not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes import FakeScreen
from reduced_space import ALLOWED, FOUND, PROBLEM, TASK

from autotune.db import Store
from autotune.errors import InputError
from autotune.outcome import Outcome
from autotune.ranks.evaluation import MeasurePlan
from autotune.recordings.file import read, write
from autotune.recordings.recording import Recording
from autotune.recordings.replay import Replay
from autotune.task import Task
from autotune.timeline import Event, Traced, from_json
from autotune.tuning import EFFORTS, Budget, Result, tune
from autotune.workloads import workload

PLAN = MeasurePlan()
TRIALS = 30
"""As many as a quarter of the space has."""


def run(store: Store, replay: Replay, seed: int = 0) -> Result:
    reduced, effort = replay.recording.reduced(FOUND), EFFORTS["quick"]
    return tune(reduced, TASK, store, replay, FakeScreen(FOUND, TASK), budget=Budget(TRIALS), effort=effort, seed=seed)


def test_it_answers_as_recorded_and_calls_everything_else_invalid(recording: Recording) -> None:
    replay = Replay(recording)
    for config, evaluation in recording.evaluations.items():
        assert replay.evaluate(config, 1, PLAN) == replay.evaluate(config, 2, PLAN) == evaluation
    outside = FOUND.default_config(TASK).replace(block_k=32)
    assert replay.evaluate(outside, 1, PLAN).outcome is Outcome.INVALID
    assert replay.measure_parts(MeasurePlan()) == recording.parts and replay.restarts == 0


def test_it_has_the_calls_that_were_traced(recording: Recording, tmp_path: Path) -> None:
    with Store.open(tmp_path / "without") as store:
        result = run(store, Replay(recording))
        assert result.entry is not None and store.attached(1, "timeline") is None
    call = Traced(1.04, ((Event(0, 0, 1, 0, 1.0, 2.0),),))
    library = next(each for each in recording.evaluations if each["mode"] == "bsp" and each["launch"] == "eager")
    timeline = {library.to_json(): call, result.entry.winner.config.to_json(): call}
    write(dataclasses.replace(recording, timeline=timeline), tmp_path / "table.json.gz")
    with Store.open(tmp_path / "with") as store:
        run(store, Replay(read(tmp_path / "table.json.gz")))
        assert list(from_json(store.attached(1, "timeline") or "").values()) == [call, call]


def test_the_same_seed_on_the_same_table_gives_the_same_run(recording: Recording, tmp_path: Path) -> None:
    runs, winners = [], []
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        replay = Replay(recording)
        with Store.open(tmp_path / name) as store:
            result = run(store, replay, seed=seed)
        runs.append(replay.asked)
        winners.append(result.entry.winner)
    assert runs[0] == runs[1] != runs[2]
    assert winners[0] == winners[1]


def test_it_turns_to_no_other_problem(recording: Recording) -> None:
    replay = Replay(recording)
    replay.turn_to(FOUND, PROBLEM)
    with pytest.raises(InputError, match="recording"):
        replay.turn_to(FOUND, dataclasses.replace(PROBLEM, m=8192))


def test_the_reduced_space_comes_back_from_the_workload(recording: Recording) -> None:
    space = recording.space_of(FOUND)
    assert space.fingerprint() == FOUND.space.restricted(ALLOWED).fingerprint() == recording.provenance.space
    with pytest.raises(InputError, match="workload|not in both"):
        recording.space_of(workload("flash_decode"))
    without_modes = {name: values for name, values in recording.dimensions.items() if name != "mode"}
    for told, dimensions in {"tile_m": {**recording.dimensions, "tile_m": (64,)}, "mode": without_modes}.items():
        with pytest.raises(InputError, match=f"dimensions {told} are not in both"):
            dataclasses.replace(recording, dimensions=dimensions).space_of(FOUND)


ROOT = Path(__file__).parents[2]
FOLDERS = ("bench/recordings", "bench/recordings/one_gpu", "bench/recordings/two_gpus")
TABLES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.json.gz"))]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name.split(".")[0])
def test_every_config_replays_as_it_was_recorded(path: Path) -> None:
    table = read(path)
    found = workload(table.workload)
    problem, machine, space = table.problem_of(found), table.machine, table.space_of(found)
    replay = Replay(table)
    replay.turn_to(found, problem)
    assert all(replay.evaluate(config, 0, PLAN) is evaluation for config, evaluation in table.evaluations.items())
    forbidden = sum(space.violation(config, Task(problem, machine)) is not None for config in table.evaluations)
    assert forbidden < 0.1 * len(table.evaluations), "a constraint that is newer forbids a few at most"
