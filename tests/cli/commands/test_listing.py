from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fakes import Bench, FakeGang

from autotune.cli import output, session
from autotune.config import Config
from autotune.db import Store, Winner
from autotune.outcome import Evaluation, Latency, Regime
from autotune.results.figures import microseconds

SMALL = ("all-gather-gemm", "--trials", "8", "--effort", "quick")


def test_list_of_nothing(gpus: Bench, tmp_path: Path) -> None:
    result = gpus.tune("list")
    assert result.exit_code == 0 and result.stdout == "" and "nothing is tuned yet" in result.stderr
    assert gpus.json("list") == []
    assert not (tmp_path / "cache.db").exists(), "listing makes no database"


def test_list(gpus: Bench) -> None:
    gpus.tune(*SMALL)
    gpus.tune(*SMALL, "--m", "1024")
    heading, newest, oldest = gpus.tune("list").stdout.splitlines()
    assert heading.split() == ["workload", "problem", "device", "latency", "speedup", "mode", "tuned"]
    assert "m=1024 n=28672 k=8192  " in newest and "m=4096" in oldest, "in the problem's order, without defaults"
    assert "8 × NVIDIA H200" in newest and "x bsp graph" in newest and "push" in newest
    assert [entry["problem"]["m"] for entry in gpus.json("list")] == [1024, 4096]
    with Store.open() as store:
        newer, older = store.entries()
        stale = dataclasses.replace(older.provenance, triton="2.0.0")
        again = store.study(older.key, stale, seed=0, space_size=1)
        store.finish(again.id, older.winner)
    _, *lines = gpus.tune("list").stdout.splitlines()
    of = [re.findall(r"\(study (\d+)\)", line) for line in lines]
    assert of == [[str(again.id)], [], [str(older.study_id)]], "of two of one key it says which"
    assert lines[0].endswith(", stale") and newer.key.fields["m"] == 1024


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


def test_list_of_what_is_not_known(gpus: Bench) -> None:
    gpus.tune(*SMALL)
    for words, said in {
        ("all-gather-gem",): "did you mean all-gather-gemm?",
        ("--em", "4096"): "no stored problem has a field em; there are b_order, bias",
        ("--m",): "expected a field",
        ("--m", "64..16"): "--m 64..16: write a number, a list like 16,64 or a range like 16..1024",
        ("--m", "large"): "--m large: write a number, a list",
        ("all-gather-gemm", "4096"): "4096: expected a field",
    }.items():
        result = gpus.tune("list", *words)
        assert result.exit_code == 2 and said in result.stderr and result.stdout == "", words


def test_list_fits_80_columns(gpus: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.tune(*SMALL, "--layout", "k", "--bias", "--dtype", "fp16")
    gpus.tune("flash-decode", "--trials", "8", "--effort", "quick")
    monkeypatch.setattr(output, "table_width", lambda: 80)
    lines = gpus.tune("list").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "flash-decode on 8 × NVIDIA H200" in lines and "all-gather-gemm on 8 × NVIDIA H200" in lines
    assert "layout=k" in "".join(line.split("  ")[0] for line in lines)


def test_an_unfinished_study_of_a_decorated_kernel_has_no_command(gpus: Bench) -> None:
    gpus.tune(*SMALL)
    with Store.open() as store:
        (study,) = store.studies()
        call = '{"n":64,"x.dtype":"torch.float32"}'
        key = dataclasses.replace(study.key, workload="my_kernel", problem=call)
        store.study(key, study.provenance, seed=0, space_size=3)
    listed = gpus.tune("list")
    assert "unfinished: the next launch of my_kernel with this key continues it" in listed.stderr


def test_how_to_continue_is_told_with_the_database_that_was_given_without_its_password(
    gpus: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus.tune(*SMALL)
    with Store.open() as store:
        (entry,) = store.entries()
        smaller = dataclasses.replace(entry.key, problem=entry.key.problem.replace('"m":4096', '"m":256'))
        store.study(smaller, entry.provenance, seed=0, space_size=1)
    monkeypatch.setattr(session, "open_store", lambda db, create: Store.open(create=create))
    told = gpus.tune("list", "--db", "postgresql://me:secret@host/db").stderr
    assert "the same command continues it, as tune all-gather-gemm " in told
    assert told.endswith("me:***@host/db\n") and "secret" not in told


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
    assert "show one with: tune show my-kernel --study 3\n" in listed.stderr, "of the newest kernel with several"
    assert "tune all-gather-gemm " in listed.stderr and "--m 256 " in listed.stderr, "the newest goes on"
    assert "recorded on" not in listed.stdout, "a recording has no end"
    assert not any("--regime" in line for line in listed.stdout.splitlines() if "kernel" in line)
    assert [each["study"] for each in gpus.json("list")][:2] == [begun[256], begun[512]]
    assert [each["study"] for each in gpus.json("list", "--m", "512")] == [begun[512]]
    assert [each["study"] for each in gpus.json("list", "my-kernel")] == [3, 2]
    assert "did you mean my-kernel?" in gpus.tune("list", "my-kernl").stderr
    assert gpus.tune("list", "--m", "77").stderr == "nothing of --m 77 is tuned yet; tune list shows everything\n"
    assert gpus.tune("list", "my-kernel", "--q", "7").stderr.startswith("nothing of my-kernel --q 7 is ")
    with Store.open() as store:
        new = dataclasses.replace(of, workload="gone", problem='{"rows":7,"world_size":8}')
        store.study(new, now, seed=0, space_size=1)
    gone = gpus.tune("list", "--rows", "7")
    assert gone.exit_code == 0, "a field of none that is finished"
    assert gone.stderr.endswith("unfinished: the command that began gone continues it\n")


def test_an_interrupted_study_is_listed_and_shown(gpus: Bench) -> None:
    def prepare(gang: FakeGang) -> None:
        works, gang.interrupt_after = gang.evaluate, 6

        def evaluate(config: Config, seed: int, plan: Any) -> Evaluation:
            gang.broken = len(gang.calls) == 2
            return works(config, seed, plan)

        gang.evaluate = evaluate  # type: ignore[method-assign]

    gpus.prepare = prepare
    assert gpus.tune(*SMALL, "--m", "512").exit_code == 130
    listed = gpus.tune("list")
    (row,) = listed.stdout.splitlines()[1:]
    assert "m=512" in row and re.search(r"unfinished, \d+ trials$", row)
    command = re.search(r"the same command continues it, as tune (.*)", listed.stderr)
    shown = gpus.tune("show", "all-gather-gemm", "--m", "512")
    told = re.search(r"unfinished: \d+ trials \(\d+ measured.*\), the best (.*);", shown.stdout)
    assert shown.exit_code == 1 and told is not None
    assert told[0].startswith("unfinished: 6 trials (5 measured, 1 crashed), the best ")
    with Store.open() as store:
        (study,) = store.studies()
        found = [trial.evaluation.latency for trial in store.trials(study.id)]
        other = dataclasses.replace(study.provenance, triton="another version")
        stale = store.study(dataclasses.replace(study.key, regime="graph"), other, seed=0, space_size=3)
    values = json.loads(gpus.tune("show", "all-gather-gemm", "--m", "512", "--json").stdout)
    assert values["unfinished"].endswith(f"the best {told[1]}") and not values["found"]
    assert told[1] == microseconds(min(latency.of(Regime.PIPELINED) for latency in found if latency is not None))
    graph = gpus.tune("show", "all-gather-gemm", "--m", "512", "--regime", "graph")
    assert "unfinished" not in graph.stdout, "of another version: nothing continues it"
    assert graph.stderr.endswith("next: tune all-gather-gemm --m 512 --regime graph\n")
    with Store.open() as store:
        store.forget(stale.id)
    (values,) = gpus.json("list")
    assert not values["finished"] and values["config"] is None and values["trials"] >= 6
    gpus.prepare = lambda gang: None
    assert command is not None and gpus.json(*command[1].split(), "--trials", "12")["resumed"] == 6
    assert [each["finished"] for each in gpus.json("list")] == [True]


def test_no_command_continues_what_was_begun_with_another_version(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 6)
    assert gpus.tune(*SMALL, "--m", "512").exit_code == 130
    with Store.open() as store:
        (study,) = store.studies()
        other = dataclasses.replace(study.provenance, triton="another version")
        store.study(dataclasses.replace(study.key, device="another GPU"), other, seed=0, space_size=3)
    listed = gpus.tune("list", "--m", "512")
    assert re.findall(r"another GPU +unfinished, 0 trials, stale\n", listed.stdout)
    assert "continues it, as tune all-gather-gemm" in listed.stderr and "--m 512" in listed.stderr
    with Store.open() as store:
        store.forget(study.id)
    assert "continues it" not in gpus.tune("list").stderr


def test_show(gpus: Bench) -> None:
    gpus.tune(*SMALL)
    result = gpus.tune("show", "all-gather-gemm")
    assert result.exit_code == 0
    for text in ("winner", "bsp graph", "bsp eager", "all_gather alone 209.0 µs", "torch", "source_hash", "driver"):
        assert text in result.stdout
    values = gpus.json("show", "all-gather-gemm")
    assert values["found"] and values["config"]["mode"] == "push"
    assert set(values["provenance"]) == {"source_hash", "space", "triton", "iris", "torch", "driver"}
    assert set(values["limits"]) == {"all_gather", "gemm"}


def test_show_without_a_dimension_takes_what_is_there(gpus: Bench) -> None:
    gpus.tune(*SMALL, "--m", "1024")
    found = gpus.json("show", "all-gather-gemm")
    assert found["found"] and found["problem"]["m"] == 1024
    assert " m=1024 " in gpus.tune("show", "all-gather-gemm").stdout.splitlines()[0]
    assert gpus.tune("show", "all-gather-gemm", "--regime", "graph").exit_code == 1
    gpus.tune(*SMALL, "--m", "512")
    several = gpus.tune("show", "all-gather-gemm")
    assert several.exit_code == 0 and all(f" m={m} " in several.stdout for m in (512, 1024))
    assert len(gpus.json("show", "all-gather-gemm")["entries"]) == 2
    hint = re.search(r"next: .*tune (show .*)", several.stderr)
    assert hint is not None and gpus.json(*hint[1].split())["problem"]["m"] == 512
    assert gpus.tune("show", "all-gather-gemm", "--study", "7").exit_code == 2


def test_show_explains_a_miss_field_by_field(gpus: Bench) -> None:
    gpus.tune(*SMALL)
    result = gpus.tune("show", "all-gather-gemm", "--m", "8192", "--bias")
    assert result.exit_code == 1
    table = [line.split() for line in result.stdout.splitlines()[-3:]]
    assert table == [["field", "stored", "requested"], ["bias", "false", "true"], ["m", "4096", "8192"]]
    assert "next: tune all-gather-gemm --m 8192 --bias" in result.stderr
    values = json.loads(gpus.tune("show", "all-gather-gemm", "--m", "8192", "--json").stdout)
    assert not values["found"] and values["key_differences"] == {"m": ["4096", "8192"]}
    assert values["provenance_differences"] == {} and values["nearest"]["problem"]["m"] == 4096


def test_show_explains_a_stale_entry(gpus: Bench, tmp_path: Path) -> None:
    gpus.tune(*SMALL)
    with Store.open(tmp_path / "cache.db") as store:
        (entry,) = store.entries()
        stale = dataclasses.replace(entry.provenance, triton="2.0.0")
        other = dataclasses.replace(entry.key, problem=entry.key.problem.replace('"m":4096', '"m":2048'))
        study = store.study(other, stale, seed=0, space_size=1)
        store.finish(study.id, Winner(entry.winner.config, Latency(1.0, 1.0, 1.0, 0.0, 1)))
    result = gpus.tune("show", "all-gather-gemm", "--m", "2048")
    assert result.exit_code == 1
    assert "triton" in result.stdout and "2.0.0" in result.stdout
    assert "stale: triton 2.0.0 is now " in result.stdout
    now = entry.provenance.triton
    assert ["triton", "2.0.0", now] in [line.split() for line in result.stdout.splitlines()]
    values = json.loads(gpus.tune("show", "all-gather-gemm", "--m", "2048", "--json").stdout)
    assert values["provenance_differences"] == {"triton": ["2.0.0", now]}
    assert values["key_differences"] == {} and not values["found"]


def test_list_counts_stale_entries_and_says_why(gpus: Bench, tmp_path: Path) -> None:
    gpus.tune(*SMALL)
    assert "stale" not in gpus.tune("list").stderr
    with Store.open(tmp_path / "cache.db") as store:
        (entry,) = store.entries()
        stale = dataclasses.replace(entry.provenance, source_hash="abc", space="f00d")
        for m in (2048, 1024):
            other = dataclasses.replace(entry.key, problem=entry.key.problem.replace('"m":4096', f'"m":{m}'))
            store.finish(store.study(other, stale, seed=0, space_size=1).id, entry.winner)
    listed = gpus.tune("list")
    told = listed.stderr
    assert [line.endswith(", stale") for line in listed.stdout.splitlines()[1:]] == [True, True, False]
    assert "stale, and not served: 2 of 3: the kernels' sources have changed (source_hash abc is now " in told
    assert "the search space has changed (space f00d is now " in told


def test_show_where_there_is_nothing(gpus: Bench) -> None:
    result = gpus.tune("show", "all-gather-gemm")
    assert result.exit_code == 1 and "not in the cache" in result.stdout and "no database" in result.stderr
    assert json.loads(gpus.tune("show", "all-gather-gemm", "--json").stdout)["nearest"] is None


def test_lookup_says_where_it_came_from(gpus: Bench, tmp_path: Path) -> None:
    tuned = gpus.json(*SMALL)["config"]
    exact = gpus.tune("lookup", "all-gather-gemm")
    assert exact.exit_code == 0 and json.loads(exact.stdout) == tuned and exact.stderr == "exact\n"
    near = gpus.json("lookup", "all-gather-gemm", "--m", "5120")
    assert near["source"] == "nearest" and near["config"] == tuned and near["entry"]["problem"]["m"] == 4096
    told = gpus.tune("lookup", "all-gather-gemm", "--m", "5120").stderr
    assert told.startswith("nearest of all-gather-gemm  m=4096 n=28672 ") and near["reason"] and near["reason"] in told
    there = gpus.json("lookup", "all-gather-gemm", "--db", str(tmp_path / "none.db"))
    assert there["source"] == "default" and there["reason"], "nothing of the usual database"
    far = gpus.tune("lookup", "all-gather-gemm", "--m", "16")
    assert json.loads(far.stdout)["mode"] and far.stderr.startswith("default: ")
    assert "next: tune all-gather-gemm --m 16" in far.stderr
    where = ("--db", str(tmp_path / "none.db"))
    for verb in ("lookup", "show"):
        told = gpus.tune(verb, "all-gather-gemm", "--m", "16", "--regime", "graph", *where).stderr
        assert told.endswith(f"next: tune all-gather-gemm --m 16 {' '.join(where)} --regime graph\n")
    missed = gpus.tune("show", "all-gather-gemm", "--world-size", "4", *where).stdout
    assert missed.endswith(" world_size=4\n"), "nothing of the usual database is near"


@pytest.mark.parametrize("words", [["list"], ["show", "all-gather-gemm"], ["lookup", "all-gather-gemm"], ["report"]])
def test_a_foreign_database(gpus: Bench, tmp_path: Path, words: list[str]) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("somebody's notes\n" * 50)
    result = gpus.tune(*words, "--db", str(foreign))
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("tune: error: ") and "is not a SQLite database" in result.stderr
