from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import optuna
import pytest
from fakes import Bench, push_of
from model_configs import config

from autotune.db import Lease, Store
from autotune.machine import H100
from autotune.outcome import Evaluation, Outcome
from autotune.results.figures import config_text
from autotune.task import Task
from autotune.tuning import claim, live
from autotune.workloads import workload

SMALL = ("all-gather-gemm", "--trials", "12", "--effort", "quick")
WORKLOAD = workload("all_gather_gemm")
PUSH = push_of(Task(WORKLOAD.default_problem(H100, 8), H100))


def test_json_is_all_there_is_on_stdout(gpus: Bench) -> None:
    result = gpus.tune(*SMALL, "--json")
    values = json.loads(result.stdout)
    assert values["config"]["mode"] == "push"
    assert values["finished"] and not values["from_cache"] and not values["interrupted"]
    assert values["spent"]["trials"] > 0 and values["spent"]["trials_a_minute"] > 0
    assert values["problem"]["m"] == 4096 and values["world_size"] == 8
    assert sum(count for outcome, count in values["outcomes"].items() if outcome != "invalid") == 12


def test_fields_not_given_come_from_a_default_that_the_ranks_need_not_divide(gpus: Bench) -> None:
    problem = gpus.json(*SMALL, "--world-size", "3", "--m", "4095", "--n", "28671")["problem"]
    assert (problem["m"], problem["n"], problem["k"]) == (4095, 28671, 8192)


def test_a_finalist_that_timed_out_is_named_with_its_reason(gpus: Bench) -> None:
    late = Evaluation(Outcome.TIMED_OUT, "no answer from rank 1")
    gpus.hook = lambda gang, config, seed, plan: late if plan.measured and config["mode"] != "bsp" else None
    values = gpus.json("all-gather-gemm", "--trials", "1", "--effort", "quick")
    assert {each["outcome"] for each in values["out_in_the_finals"]} == {"timed out"}


@pytest.mark.parametrize("command", ["run", "grid", "record", "taxes", "model", "fleet"])
def test_no_command_gives_the_interpreter_days_of_work(laptop: Bench, tmp_path: Path, command: str) -> None:
    sizes = {"m": 4096, "n": 28672, "k": 8192}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    problems = {"problems": [{"workload": "all-gather-gemm", "world_size": 2, **sizes}]}
    (tmp_path / "problems.yaml").write_text(json.dumps(problems))
    model = config(tmp_path, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)
    words = {
        "record": [*options, "--values", "mode=pull", "--out", str(tmp_path / "table.json.gz")],
        "model": [model, "--tp", "2", "--tokens", "4096"],
        "fleet": [str(tmp_path / "problems.yaml")],
    }.get(command, options)
    result = laptop.tune(command, *(["all-gather-gemm"] if words[0] == "--m" else []), *words)
    assert result.exit_code == 2 and result.stdout == "" and not laptop.gangs
    assert "interpreter" in result.stderr.splitlines()[-1]


def test_the_command_says_who_tunes_and_ctrl_c_ends_the_wait(gpus: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim.time, "sleep", lambda seconds: signal.default_int_handler(signal.SIGINT, None))
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 3)
    assert gpus.tune("all-gather-gemm", "--trials", "9").exit_code == 130
    with Store.open() as store:
        [study] = store.studies()
        assert store.take_lease(study.id, Lease.new()) is None
        result = gpus.tune("all-gather-gemm", "--trials", "9")
        assert result.exit_code == 130 and "Traceback" not in result.output
        assert str(os.getpid()) in result.stderr
        assert gpus.gangs[-1].calls == []
        assert store.take_lease(study.id, Lease.new()) is not None, "it is still the other's"


def test_an_export_adds_what_a_storage_missed(gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LAST_SECONDS", 600.0)
    file = tmp_path / "optuna.db"
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 6)
    assert gpus.tune(*SMALL, "--optuna-storage", f"sqlite:///{file}").exit_code == 130
    [study] = optuna.get_all_study_summaries(f"sqlite:///{file}")
    assert " m=4096" in study.study_name and 0 < study.n_trials < 12
    gpus.prepare = lambda gang: None
    assert gpus.tune(*SMALL).exit_code == 0, "without the storage"
    assert gpus.tune("export", SMALL[0], "--format", "optuna", "-o", str(file)).exit_code == 0
    [study] = optuna.get_all_study_summaries(f"sqlite:///{file}")
    assert study.best_trial is not None and study.n_trials == 12 and "winner" in study.user_attrs


@pytest.mark.parametrize("words", [SMALL, ("grid", *SMALL, "--m", "64,128")])
def test_a_storage_that_cannot_be_opened_is_refused_first(gpus: Bench, tmp_path: Path, words: tuple[str, ...]) -> None:
    result = gpus.tune(*words, "--optuna-storage", f"sqlite:///{tmp_path}/nowhere/optuna.db")
    assert result.exit_code == 2 and not any(gang.started for gang in gpus.gangs)


def test_interrupted_it_says_so_and_the_same_command_goes_on(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 7)
    result = gpus.tune(*SMALL, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 130 and told["interrupted"] and not told["finished"]
    assert told["microseconds"] == told["latency"]["median"] > 0 and gpus.gangs[0].closed
    gpus.prepare = lambda gang: None
    values = gpus.json(*SMALL)
    assert values["resumed"] == 7 and values["finished"]
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 0)
    assert gpus.json(*SMALL, "--force")["config"] is None, "interrupted before anything was measured"


def test_it_is_measured_as_is_asked_for_and_each_time_is_its_own(gpus: Bench) -> None:
    given = []

    gpus.prepare = lambda gang: setattr(gang, "host", lambda config: 25.0)
    gpus.hook = lambda gang, config, seed, plan: given.append((seed, plan.screen, plan.iterations))
    words = ("all-gather-gemm", "--config", PUSH.to_json(), "--seed", "7", "--effort", "full")
    latency = gpus.json(*words)["latency"]
    assert given == [(7, 25, 25)]
    assert latency["host"] == 25.0 and latency["isolated"] == latency["median"] + 25.0


def test_a_config_may_be_pasted_as_it_is_shown(gpus: Bench) -> None:
    assert PUSH["preload_b"] is False and isinstance(PUSH["block_m"], int)
    result = gpus.tune("all-gather-gemm", "--config", config_text(PUSH))
    assert result.exit_code == 0 and gpus.gangs[0].calls == [PUSH], result.output
