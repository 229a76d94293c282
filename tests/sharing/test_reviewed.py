from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, LAPTOP
from sample_entries import make_entry
from scripts import run_script

from autotune.config import Config
from autotune.db import Entry, Store
from autotune.errors import StoreError
from autotune.machine import MI300X, Machine
from autotune.sharing import Here, Review, State, read, review, take, write


def bring(store: Store, *entries: Entry, replace: bool = False) -> list[Review]:
    """Review and take entries as tune import does, on eight GPUs."""
    reviews = review(entries, Here.of(store), EIGHT_GPUS, replace=replace)
    take(store, reviews)
    return reviews


def with_config(entry: Entry, **values: str | int | bool) -> Entry:
    winner = dataclasses.replace(entry.winner, config=Config({**entry.winner.config, **values}))
    return dataclasses.replace(entry, winner=winner)


def with_problem(entry: Entry, **values: object) -> Entry:
    problem = {**json.loads(entry.key.problem), **values}
    text = json.dumps({k: v for k, v in problem.items() if v is not None}, sort_keys=True, separators=(",", ":"))
    return dataclasses.replace(entry, key=dataclasses.replace(entry.key, problem=text))


@pytest.mark.parametrize(("median", "told"), [(500.0, ", faster here"), (300.0, "not faster here")])
def test_another_config_needs_replace(store: Store, median: float, told: str) -> None:
    bring(store, make_entry())
    theirs = with_config(make_entry(median=median), block_k=32)
    [told_first] = bring(store, theirs)
    assert told_first.state is State.CONFLICT and told in told_first.reason
    assert store.entries()[0].winner == make_entry().winner
    [then] = bring(store, theirs, replace=True)
    assert then.state is State.REPLACES and told in then.reason
    assert store.entries()[0].winner == theirs.winner
    assert [study.state for study in store.studies()] == ["superseded", "finished"]


def test_both_are_told_with_an_operators_door_or_both_without(store: Store) -> None:
    """A result without an operator's host overhead is no faster for lacking one."""
    alone = dataclasses.replace(make_entry().key, regime="isolated")
    ours = dataclasses.replace(make_entry(), key=alone)
    bare = dataclasses.replace(ours.winner.latency, host_overhead=None, isolated_overhead=None)
    bring(store, ours)
    theirs = dataclasses.replace(ours, winner=dataclasses.replace(ours.winner, latency=bare))
    [told] = bring(store, theirs)
    assert "424.8 µs" in told.reason and "431.0 µs" in told.reason


def test_a_study_under_way_is_not_pushed_aside_unasked(store: Store) -> None:
    entry = make_entry()
    study = store.study(entry.key, entry.provenance, seed=0, space_size=1)
    [found] = bring(store, entry)
    assert found.state is State.CONFLICT and f"study {study.id}" in found.reason
    assert store.studies() == [study]
    [then] = bring(store, entry, replace=True)
    assert then.state is State.REPLACES and len(store.entries()) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda entry: with_config(entry, block_m=100), "config: "),
        (lambda entry: with_config(entry, block_m=256, block_n=256, block_k=128, num_stages=6), "config: "),
        (lambda entry: with_problem(entry, m=0), "m=0"),
        (lambda entry: with_problem(entry, depth=3), "depth"),
        (lambda entry: with_problem(entry, bias=None), "in full"),
        (lambda entry: with_problem(entry, world_size=4), "is 4"),
        (lambda entry: with_problem(entry, **{"a.dtype": "torch.float16"}), "regime graph"),
    ],
)
def test_what_is_no_config_is_refused(store: Store, change: Callable[[Entry], Entry], told: str) -> None:
    good = make_entry(m=16)
    found, other = bring(store, change(make_entry()), good, replace=True)
    assert found.state is State.INVALID and told in found.reason
    assert other.state is State.NEW and [entry.key for entry in store.entries()] == [good.key]


KILLED_AT_THE_15TH = """
import os, signal, sys
from autotune.db import Store, store
from autotune.machine import INTERPRETED
from autotune.sharing import Here, read, review, take
adopted, original = [], store.rows.imported_row

def dying(entry):
    adopted.append(entry)
    if len(adopted) == 15:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(entry)

store.rows.imported_row = dying
with Store.open(sys.argv[1]) as into:
    take(into, review(read(open(sys.argv[2]).read()), Here.of(into), INTERPRETED))
"""


def test_an_import_that_is_killed_half_way_leaves_nothing(tmp_path: Path) -> None:
    file, path = tmp_path / "configs.json", tmp_path / "cache.db"
    file.write_text(write([make_entry(m=8 * size) for size in range(1, 21)]))
    done = run_script("-c", KILLED_AT_THE_15TH, str(path), str(file))
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Store.open(path) as store:
        assert store.studies() == []
        take(store, review(read(file.read_text()), Here.of(store), LAPTOP))
        assert len(store.entries()) == 20


def test_where_one_cannot_be_taken_none_is(store: Store) -> None:
    reviews = review([make_entry(m=16), make_entry()], Here.of(store), LAPTOP)
    theirs = store.study(reviews[1].entry.key, reviews[1].entry.provenance, seed=0, space_size=1)  # begun meanwhile
    with pytest.raises(StoreError, match=f"study {theirs.id}"):
        take(store, reviews)
    assert store.studies() == [theirs]


def test_a_config_is_checked_for_the_machine_it_is_for() -> None:
    with_tma = with_config(make_entry(), loads="tma")
    there = dataclasses.replace(with_tma.key, device=MI300X.device, arch=MI300X.arch, interconnect="xgmi")
    amd = dataclasses.replace(with_tma, key=there)
    here = Here.of(None)
    [nvidia_on_a_laptop, amd_on_nvidia] = [review([with_tma], here, LAPTOP)[0], review([amd], here, EIGHT_GPUS)[0]]
    assert nvidia_on_a_laptop.state is State.NEW
    assert amd_on_nvidia.state is State.INVALID and "tma" in amd_on_nvidia.reason
    smaller = dataclasses.replace(EIGHT_GPUS, device="NVIDIA X2", shared_memory=16 * 1024)
    [of_a_larger_one] = review([make_entry()], here, smaller)
    assert of_a_larger_one.state is State.NEW, "another device of the same architecture is not this one"


def test_an_unknown_machines_config_is_taken_and_said_to_be_unchecked() -> None:
    machine = Machine("cuda", "NVIDIA X1", "sm_170", 8, 200, 300 * 1024, 50 << 20, "nvlink")
    [found] = review([make_entry(machine)], Here.of(None), LAPTOP)
    assert found.state is State.NEW and "sm_170" in found.reason
    [strange] = review([with_config(make_entry(machine), mode="sneak")], Here.of(None), LAPTOP)
    assert strange.state is State.INVALID
    [there] = review([make_entry(machine)], Here.of(None), machine)
    assert there.reason == ""
