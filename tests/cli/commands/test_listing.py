from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from fakes import Bench

from autotune.cli import session
from autotune.db import Store, Winner
from autotune.outcome import Latency, Regime
from autotune.results.figures import microseconds

SMALL = ("all-gather-gemm", "--trials", "8", "--effort", "quick")


def test_list_of_some(gpus: Bench) -> None:
    gpus.tune(*SMALL)
    gpus.tune(*SMALL, "--m", "1024")
    for words, sizes in {
        ("all-gather-gemm",): [1024, 4096],
        ("all_gather_gemm", "--m", "1024"): [1024],
        ("--m=4096", "--dtype", "bf16"): [4096],
        ("flash-decode",): [],
        ("--dtype", "fp16"): [],
        ("--m", "16..1500"): [1024],
        ("all-gather-gemm", "--m", "4096,1..1024"): [1024, 4096],
        ("--m", "77"): [],
    }.items():
        result = gpus.tune("list", *words, "--json")
        assert result.exit_code == 0
        assert [entry["problem"]["m"] for entry in json.loads(result.stdout)] == sizes, words


def test_how_to_continue_is_told_with_the_database_but_no_password(
    gpus: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.tune(*SMALL)
    with Store.open() as store:
        (entry,) = store.entries()
        smaller = dataclasses.replace(entry.key, problem=entry.key.problem.replace('"m":4096', '"m":256'))
        store.study(smaller, entry.provenance, seed=0, space_size=1)
    monkeypatch.setattr(session, "open_store", lambda db, create: Store.open(create=create))
    told = gpus.tune("list", "--db", "postgresql://me:secret@host/db").stderr
    assert "me:***@host/db" in told and "secret" not in told


def test_several_kernels_and_unfinished_studies(gpus: Bench) -> None:
    gpus.tune(*SMALL)
    with Store.open() as store:
        (entry,) = store.entries()
        of, now = entry.key, entry.provenance
        kernel = dataclasses.replace(of, workload="my_kernel", problem='{"q":64,"x.dtype":"t"}', regime="graph")
        other = dataclasses.replace(kernel, workload="one_kernel")
        for key, source in ((kernel, "a"), (kernel, "b"), (other, "a"), (of, "c")):
            study = store.study(key, dataclasses.replace(now, source_hash=source), seed=0, space_size=1)
            store.finish(study.id, entry.winner)
        begun = {}
        for m in (512, 256):
            smaller = dataclasses.replace(of, problem=of.problem.replace('"m":4096', f'"m":{m}'))
            begun[m] = store.study(smaller, now, seed=0, space_size=1).id
        recorded = dataclasses.replace(now, space=f"{now.space} recorded")
        store.study(dataclasses.replace(of, device="recorded on"), recorded, seed=0, space_size=1)
    listed = gpus.tune("list")
    assert "--m 256 " in listed.stderr, "the newest goes on"
    assert "recorded on" not in listed.stdout, "a recording has no end"
    assert [each["study"] for each in gpus.json("list")][:2] == [begun[256], begun[512]]
    assert [each["study"] for each in gpus.json("list", "--m", "512")] == [begun[512]]
    assert [each["study"] for each in gpus.json("list", "my-kernel")] == [3, 2]
    assert "my-kernel?" in gpus.tune("list", "my-kernl").stderr
    with Store.open() as store:
        new = dataclasses.replace(of, workload="gone", problem='{"rows":7,"world_size":8}')
        store.study(new, now, seed=0, space_size=1)
    assert gpus.tune("list", "--rows", "7").exit_code == 0, "a field of none that is finished"


def test_an_interrupted_study_is_listed_and_shown(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 6)
    gpus.hook = lambda gang, config, seed, plan: setattr(gang, "broken", len(gang.calls) == 2)
    assert gpus.tune(*SMALL, "--m", "512").exit_code == 130
    listed = gpus.tune("list")
    (row,) = listed.stdout.splitlines()[1:]
    assert "m=512" in row and "unfinished" in row
    command = re.search(r"the same command continues it, as tune (.*)", listed.stderr)
    shown = gpus.tune("show", "all-gather-gemm", "--m", "512")
    assert shown.exit_code == 1 and re.search(r"6 trials \(\d measured, 1 crashed", shown.stdout)
    with Store.open() as store:
        (study,) = store.studies()
        found = [trial.evaluation.latency for trial in store.trials(study.id) if trial.evaluation.latency is not None]
        other = dataclasses.replace(study.provenance, triton="another version")
        stale = store.study(dataclasses.replace(study.key, regime="graph"), other, seed=0, space_size=3)
    values = json.loads(gpus.tune("show", "all-gather-gemm", "--m", "512", "--json").stdout)
    best = microseconds(min(latency.of(Regime.PIPELINED) for latency in found))
    assert values["unfinished"].endswith(best) and not values["found"]
    graph = gpus.tune("show", "all-gather-gemm", "--m", "512", "--regime", "graph")
    assert "unfinished" not in graph.stdout, "of another version: nothing continues it"
    with Store.open() as store:
        store.forget(stale.id)
    (values,) = gpus.json("list")
    assert not values["finished"] and values["config"] is None and values["trials"] >= 6
    gpus.prepare = lambda gang: None
    assert command is not None and gpus.json(*command[1].split(), "--trials", "12")["resumed"] == 6
    assert [each["finished"] for each in gpus.json("list")] == [True]


def test_show_without_a_dimension_takes_what_is_there(gpus: Bench) -> None:
    gpus.tune(*SMALL, "--m", "1024")
    found = gpus.json("show", "all-gather-gemm")
    assert found["found"] and found["problem"]["m"] == 1024
    assert gpus.tune("show", "all-gather-gemm", "--regime", "graph").exit_code == 1
    gpus.tune(*SMALL, "--m", "512")
    several = gpus.tune("show", "all-gather-gemm")
    assert several.exit_code == 0 and all(f" m={m} " in several.stdout for m in (512, 1024))
    assert len(gpus.json("show", "all-gather-gemm")["entries"]) == 2
    hint = re.search(r"Next: tune (show .*?)  #", several.stderr)
    assert hint is not None and gpus.json(*hint[1].split())["problem"]["m"] == 512
    assert gpus.tune("show", "all-gather-gemm", "--study", "7").exit_code == 2


def test_show_explains_a_stale_entry(gpus: Bench, tmp_path: Path) -> None:
    gpus.tune(*SMALL)
    with Store.open(tmp_path / "cache.db") as store:
        (entry,) = store.entries()
        stale = dataclasses.replace(entry.provenance, triton="2.0.0")
        other = dataclasses.replace(entry.key, problem=entry.key.problem.replace('"m":4096', '"m":2048'))
        study = store.study(other, stale, seed=0, space_size=1)
        store.finish(study.id, Winner(entry.winner.config, Latency(1.0, 1.0, 1.0, 0.0, 1)))
    result = gpus.tune("show", "all-gather-gemm", "--m", "2048", "--json")
    values = json.loads(result.stdout)
    assert result.exit_code == 1 and values["provenance_differences"] == {"triton": ["2.0.0", entry.provenance.triton]}
    assert values["key_differences"] == {} and not values["found"]


def test_lookup_says_where_it_came_from(gpus: Bench, tmp_path: Path) -> None:
    tuned = gpus.json(*SMALL)["config"]
    exact = gpus.tune("lookup", "all-gather-gemm")
    assert exact.exit_code == 0 and json.loads(exact.stdout) == tuned
    near = gpus.json("lookup", "all-gather-gemm", "--m", "5120")
    assert near["source"] == "nearest" and near["config"] == tuned and near["entry"]["problem"]["m"] == 4096
    where = ("--db", str(tmp_path / "none.db"))
    there = gpus.json("lookup", "all-gather-gemm", *where)
    assert there["source"] == "predicted" and there["reason"], "nothing of the usual database"
    for verb in ("lookup", "show"):
        told = gpus.tune(verb, "all-gather-gemm", "--m", "16", "--regime", "graph", *where).stderr
        assert told.endswith(f" tune all-gather-gemm --m 16 {' '.join(where)} --regime graph\n")
