"""Recording: the whole reduced space, each config once, every outcome kept, interrupted or not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from fakes import FakeGang, evaluation_of, formula
from reduced_space import ALLOWED, FOUND, PROBLEM, TASK, recorded

from autotune.errors import InputError
from autotune.outcome import Outcome
from autotune.recordings.file import read, write
from autotune.recordings.recording import Recording


def test_every_valid_config_of_the_reduced_space_is_measured_once_and_every_outcome_kept(tmp_path: Path) -> None:
    gang = FakeGang(PROBLEM)
    seen: list[tuple[int, int]] = []
    found = recorded(tmp_path, gang, watch=lambda done, size: seen.append((done, size)))
    size = len(found.evaluations)
    assert seen == [(done, size) for done in range(size + 1)]
    space = FOUND.space.restricted(ALLOWED)
    configs = list(space.enumerate(TASK))
    assert list(found.evaluations) == configs and len(configs) > 50
    assert Counter(gang.calls) == Counter(configs)
    assert gang.calls != configs, "in the order of enumeration a drift would fall on a dimension"
    for config, evaluation in found.evaluations.items():
        expected = evaluation_of(config)
        assert (evaluation.outcome, evaluation.reason) == (expected.outcome, expected.reason)
        if evaluation.latency is not None:
            assert evaluation.latency.median == formula(config)
    outcomes = {evaluation.outcome for evaluation in found.evaluations.values()}
    assert {Outcome.MEASURED, Outcome.OUT_OF_RESOURCES, Outcome.WRONG_RESULT} <= outcomes
    assert found.optimum == min(formula(c) for c, e in found.evaluations.items() if e.latency)
    assert set(found.parts) == {"all_gather", "gemm"}


def test_a_lifted_constraint_lets_in_what_the_compilers_then_refuse(tmp_path: Path) -> None:
    gang = FakeGang(PROBLEM)
    found = recorded(tmp_path, gang, allowed={**ALLOWED, "block_k": [128]}, lifted=["shared memory"])
    violation = {config: FOUND.space.violation(config, TASK) for config in found.evaluations}
    breaking = {config for config, why in violation.items() if why is not None}
    assert breaking and all("shared memory" in str(violation[config]) for config in breaking)
    assert breaking < set(gang.calls) == set(found.evaluations)
    path = tmp_path / "lifted.json.gz"
    write(found, path)
    assert (again := read(path)).lifted == ["shared memory"]
    assert set(again.space_of(FOUND).enumerate(TASK)) == set(found.evaluations)


def test_an_interrupted_recording_goes_on_where_it_stopped(tmp_path: Path, recording: Recording) -> None:
    first, second = FakeGang(PROBLEM), FakeGang(PROBLEM)
    first.interrupt_after = 23
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path, first)
    resumed = recorded(tmp_path, second)
    assert len(first.calls) == 23 and not set(first.calls) & set(second.calls)
    assert resumed.evaluations == recording.evaluations


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"limit": 10}, "limit"),
        ({"allowed": {**ALLOWED, "mode": ["push"], "loads": ["tma"], "num_stages": [6], "block_k": [512]}},
         "has no valid config"),
        ({"allowed": {"warps": [8]}}, "warps"),
        ({"allowed": {"num_warps": []}}, "dimension num_warps: no value"),
        ({"lifted": ["gravity"]}, "gravity"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded(tmp_path: Path, options: dict[str, object], told: str) -> None:
    gang = FakeGang(PROBLEM)
    with pytest.raises(InputError, match=told):
        recorded(tmp_path, gang, **options)
    assert not gang.started
