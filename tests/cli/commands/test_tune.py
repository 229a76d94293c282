from __future__ import annotations

import json
import os
import re
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import pytest
from fakes import RATES, Bench, FakeGang

from autotune.config import Config
from autotune.db import Lease, Store
from autotune.outcome import Evaluation, Outcome
from autotune.tuning import claim, live
from autotune.workloads import workload

SMALL = ("all-gather-gemm", "--trials", "12", "--effort", "quick")


def test_a_run_ends_with_the_winner_and_what_to_do_next(gpus: Bench) -> None:
    result = gpus.tune(*SMALL)
    assert result.exit_code == 0, result.output
    for text in (
        "m=4096 n=28672 k=8192",
        "8 × NVIDIA H200 (sm_90, nvlink)",
        "winner   ",
        "times as fast as bsp graph (530.0 µs ± 0.0 %)",
        "gemm alone 330.0 µs",
        "measured",
        "cache.db (study 1",
    ):
        assert text in result.stdout
    assert result.stdout.splitlines()[-1] == "Next:       tune report all-gather-gemm"
    assert gpus.gangs[0].started == gpus.gangs[0].closed == 1


def test_fp8_with_scales_is_a_problem_of_its_own(gpus: Bench) -> None:
    scaled = ("--dtype", "fp8", "--scales", "row")
    found = gpus.tune(*SMALL, *scaled)
    assert found.exit_code == 0, found.output
    assert "dtype=fp8" in found.stdout and "scales=row" in found.stdout and "b_order=nk" in found.stdout
    assert found.stdout.splitlines()[-1] == "Next:       tune report all-gather-gemm --dtype fp8 --scales row"
    assert "exact" in gpus.tune("lookup", "all-gather-gemm", *scaled).stderr
    for other in ((), ("--dtype", "fp8", "--scales", "tensor"), (*scaled, "--out-dtype", "fp16")):
        assert "nothing tuned for this problem here" in gpus.tune("lookup", "all-gather-gemm", *other).stderr
    assert "exact" in gpus.tune("lookup", "all-gather-gemm", *scaled, "--out-dtype", "bf16").stderr
    assert gpus.tune("report", "all-gather-gemm", "--scales", "row", "--out-dtype", "auto").exit_code == 0
    assert gpus.tune("report", "all-gather-gemm", "--scales", "none").exit_code == 1


def test_piped_the_view_is_plain_lines_on_stderr(gpus: Bench) -> None:
    lines = gpus.tune(*SMALL).stderr.splitlines()
    assert re.fullmatch(r"\[0:0\d\] starting the ranks", lines[0])
    assert "baselines: 1 of 12 trials (1 measured), 8% of the budget; best 550.0 µs" in lines[1]
    assert lines[-1].startswith("[0:") and "done: 12 of 12 trials" in lines[-1]
    assert "x bsp graph (530.0 µs), mode push" in lines[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("all-gather-gemm", "--seed", "-1"), "seed -1: allowed: 0 to 4294967295"),
        (("grid", "all-gather-gemm", "--seed", str(2**32)), "seed 4294967296: allowed: 0 to 4294967295"),
        (("all-gather-gemm", "--m", "16,64"), "several sizes are tuned"),
        (("all-gather-gemm", "--m", "16..64"), "several sizes are tuned"),
        (
            ("all-gather-gemm", "--dtype", "bfloat16"),
            "allowed: bf16, fp16, fp32, fp8, fp8_e5m2, fp8_fnuz; did you mean bf16?",
        ),
        (("all-gather-gemm", "--dtype", "fp8"), "with dtype=fp8 allowed: tensor, row, block; say how"),
        (
            ("all-gather-gemm", "--dtype", "fp8_fnuz", "--scales", "row"),
            "on sm_90: this machine has no matrix units for",
        ),
        (("all-gather-gemm", "--scales", "block"), "scales=block: with dtype=bf16 allowed: none"),
        (("flash-decode", "--kv-dtype", "fp8"), "a cache of fp8 has scales, tensor or head"),
        (("all-gather-gemm", "--layout", "row"), "allowed: rows, k; did you mean rows?"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(gpus: Bench, words: tuple[str, ...], told: str) -> None:
    result = gpus.tune(*words)
    assert result.exit_code == 2 and result.stdout == "" and told in result.stderr, result.output
    assert isinstance(result.exception, SystemExit)


def test_json_is_all_there_is_on_stdout(gpus: Bench) -> None:
    result = gpus.tune(*SMALL, "--json")
    values = json.loads(result.stdout)
    assert values["config"]["mode"] == "push"
    assert values["finished"] and not values["from_cache"] and not values["interrupted"]
    assert values["spent"]["trials"] > 0 and values["spent"]["trials_a_minute"] > 0
    assert values["problem"]["m"] == 4096 and values["world_size"] == 8
    assert values["limit_share"] == pytest.approx(330.0 / values["latency"]["median"])
    assert values["speedups"]["bsp graph"]["value"] == pytest.approx(530.0 / values["latency"]["median"])
    assert sum(count for outcome, count in values["outcomes"].items() if outcome != "invalid") == 12
    assert "Next:" in result.stderr


def test_options_are_the_problems_fields(gpus: Bench) -> None:
    words = ("--m", "64", "--n", "256", "--k", "128", "--dtype", "fp16", "--layout", "k", "--b-order", "nk", "--bias")
    problem = gpus.json(*SMALL, *words, "--in-place", "--world-size", "4")["problem"]
    given = {
        "m": 64, "n": 256, "k": 128, "dtype": "fp16", "layout": "k", "b_order": "nk", "bias": True, "in_place": True,
        "world_size": 4,
    }  # fmt: skip
    assert problem == {**problem, **given}


def test_fields_not_given_come_from_a_default_that_the_ranks_need_not_divide(gpus: Bench) -> None:
    problem = gpus.json(*SMALL, "--world-size", "3", "--m", "4095", "--n", "28671")["problem"]
    assert (problem["m"], problem["n"], problem["k"]) == (4095, 28671, 8192)


def test_the_second_time_it_answers_from_the_cache(gpus: Bench) -> None:
    first = gpus.json(*SMALL)
    again = gpus.tune(*SMALL)
    assert again.exit_code == 0
    assert "(from the cache)" in again.stdout and "Tune again: tune all-gather-gemm --force" in again.stdout
    assert gpus.gangs[1].calls == [] and gpus.gangs[1].started == 0
    cached = gpus.json(*SMALL)
    assert cached["from_cache"] and cached["config"] == first["config"] and cached["outcomes"] == first["outcomes"]


def test_force_tunes_anew(gpus: Bench) -> None:
    gpus.tune(*SMALL)
    values = gpus.json(*SMALL, "--force")
    assert not values["from_cache"] and values["study"] == 2
    assert len(gpus.gangs[1].calls) >= 12


def test_where_nothing_can_be_measured_it_fails_with_the_reason(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "broken", True)
    result = gpus.tune(*SMALL)
    assert result.exit_code == 1
    assert "No config could be measured. The last one: crashed, rank 1 died in phase compile: SIGSEGV" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(" --force")
    assert gpus.json(*SMALL)["finished"] is False


def test_where_nothing_can_be_measured_anew_it_fails_and_the_old_result_stays(gpus: Bench) -> None:
    old = gpus.json(*SMALL)
    gpus.prepare = lambda gang: setattr(gang, "broken", True)
    assert gpus.tune(*SMALL, "--force").exit_code == 1
    assert gpus.json("lookup", *SMALL[: SMALL.index("--trials")])["entry"]["study"] == old["study"]


def test_a_finalist_that_timed_out_is_named_with_its_reason(gpus: Bench) -> None:
    def prepare(gang: FakeGang) -> None:
        works = gang.evaluate

        def evaluate(config: Config, seed: int, plan: Any) -> Evaluation:
            if plan.measured and config["mode"] != "bsp":
                return Evaluation(Outcome.TIMED_OUT, "no answer from rank 1 in phase measure within 30 s")
            return works(config, seed, plan)

        gang.evaluate = evaluate  # type: ignore[method-assign]

    gpus.prepare = prepare
    result = gpus.tune("all-gather-gemm", "--trials", "1", "--effort", "quick")
    told = "timed out: no answer from rank 1 in phase measure within 30 s (mode=push"
    assert result.exit_code == 0 and told in result.stdout
    values = gpus.json("all-gather-gemm", "--trials", "1", "--effort", "quick")
    assert {each["outcome"] for each in values["out_in_the_finals"]} == {"timed out"}


def test_two_limits_are_printed(gpus: Bench) -> None:
    text = gpus.tune(*SMALL).stdout
    assert re.search(r"limit +0\.\d\d of the limit: all_gather alone", text)
    assert re.search(r"roofline +0\.\d\d of the roofline: \w+ busy for", text)
    values = gpus.json(*SMALL)
    roofline = values["roofline"]
    problem = workload("all_gather_gemm").problem_type.from_dict(values["problem"])
    assert roofline["rates"] == RATES
    assert roofline["times"]["flops"] == pytest.approx(problem.flops / RATES["flops"])
    assert roofline["times"]["links"] == pytest.approx(problem.bytes_moved / RATES["links"])
    assert values["roofline_share"] == pytest.approx(max(roofline["times"].values()) / values["latency"]["median"])


def test_without_gpus_it_says_so_and_takes_a_small_problem(laptop: Bench) -> None:
    result = laptop.tune(*SMALL)
    assert result.exit_code == 0, result.output
    first = result.stderr.splitlines()[0]
    assert first.startswith("no GPU found: 2 ranks run under Triton's interpreter")
    assert "they say nothing about GPUs" in result.stdout


def test_time_and_trials_together_whichever_is_first(gpus: Bench) -> None:
    values = gpus.json("all-gather-gemm", "--effort", "quick", "--budget", "10m", "--trials", "3")
    assert sum(values["outcomes"].values()) - values["outcomes"].get("invalid", 0) == 3


def test_the_seed_is_kept(gpus: Bench) -> None:
    assert gpus.json(*SMALL, "--seed", "7")["seed"] == 7


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["all-gather-gemm", "--m", "4100"], "m=4100 is sharded over world_size=8, which must divide it"),
        (["all-gather-gemm", "--m", "4100"], "use 4096 or 4104"),
        (["all-gather-gemm", "--world-size", "9"], "this machine has 8 GPUs, one per rank; use 1 to 8"),
        (["all-gather-gemm", "--world-size", "0"], "world_size=0"),
        (["all-gather-gemm", "--dtype", "int8"], "allowed: bf16, fp16, fp32"),
        (["all-gather-gemm", "--budget", "1s"], "allowed: 5s to 168h"),
        (["all-gather-gemm", "--budget", "soon"], "write it like 90s, 5m or 1.5h"),
        (["all-gather-gemm", "--trials", "0"], "allowed: 1 to 100000"),
        (["all-gather-gemm", "--effort", "huge"], "allowed: quick, standard, full"),
        (
            ["scatter-gemm"],
            "no command or workload named 'scatter-gemm'; workloads: all-gather-gemm, ",
        ),
        (["show", "scatter-gemm"], "workloads: all-gather-gemm"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(gpus: Bench, words: list[str], told: str) -> None:
    result = gpus.tune(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("tune: error: ") and told in line
    assert not gpus.gangs


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--world-size", "9"], "at most 8 ranks"),
        (["--m", "65536", "--n", "4096"], "use smaller dimensions, or leave them out for a default that fits"),
    ],
)
def test_too_large_for_the_interpreter(laptop: Bench, words: list[str], told: str) -> None:
    result = laptop.tune("all-gather-gemm", *words)
    assert result.exit_code == 2 and told in result.stderr


@pytest.mark.parametrize("command", ["run", "grid", "record", "taxes", "model", "fleet"])
def test_no_command_gives_the_interpreter_days_of_work(laptop: Bench, tmp_path: Path, command: str) -> None:
    sizes = {"m": 4096, "n": 28672, "k": 8192}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    problems = {"problems": [{"workload": "all-gather-gemm", "world_size": 2, **sizes}]}
    (tmp_path / "problems.yaml").write_text(json.dumps(problems))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
                    "num_attention_heads": 64})
    )  # fmt: skip
    words = {
        "record": [*options, "--values", "mode=pull", "--out", str(tmp_path / "table.json.gz")],
        "model": [str(tmp_path / "config.json"), "--tp", "2", "--tokens", "4096"],
        "fleet": [str(tmp_path / "problems.yaml")],
    }.get(command, options)
    result = laptop.tune(command, *(["all-gather-gemm"] if words[0] == "--m" else []), *words)
    assert result.exit_code == 2 and result.stdout == "" and not laptop.gangs
    assert "without GPUs, Triton's interpreter runs at most" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("words", [["all-gather-gemm", "--m", "many"], ["--frob"], ["all-gather-gemm", "--frob"]])
def test_what_typer_refuses_is_exit_code_2_too(gpus: Bench, words: list[str]) -> None:
    result = gpus.tune(*words)
    assert result.exit_code == 2 and result.stdout == "" and "Traceback" not in result.stderr


def test_a_foreign_database_is_left_as_it_is(gpus: Bench, tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("not a database at all, but somebody's notes\n" * 50)
    before = foreign.read_bytes()
    result = gpus.tune(*SMALL, "--db", str(foreign))
    assert result.exit_code == 2 and "is not a SQLite database" in result.stderr
    assert foreign.read_bytes() == before


def test_bad_input_loses_nothing_that_is_stored(gpus: Bench, tmp_path: Path) -> None:
    gpus.tune(*SMALL)
    gpus.tune("all-gather-gemm", "--m", "4100", "--force")
    with Store.open(tmp_path / "cache.db") as store:
        assert len(store.entries()) == 1


def test_underscores_do_as_well(gpus: Bench) -> None:
    assert gpus.json("all_gather_gemm", *SMALL[1:])["finished"]


def test_a_users_workload_gets_everything(toy: Bench) -> None:
    assert "toy-sum" in toy.tune("--help").stdout
    page = toy.tune("toy-sum", "--help").stdout
    assert "--round-to" in page and "--in-place" in page and "Adds up [width] numbers" in page
    values = toy.json("toy-sum", "--width", "64", "--in-place", "--trials", "5")
    assert values["problem"] == {
        "width": 64, "round_to": "even", "in_place": True, "dtype": "bf16", "world_size": 2,
    }  # fmt: skip
    assert values["config"] == {"mode": "push", "block_m": 64}
    assert toy.json("lookup", "toy-sum", "--width", "64", "--in-place")["source"] == "exact"
    assert "# toy-sum: width=64" in toy.tune("report", "toy-sum").stdout


def test_the_command_says_who_tunes_and_ctrl_c_ends_the_wait(gpus: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim.time, "sleep", lambda seconds: signal.default_int_handler(signal.SIGINT, None))
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 3)
    assert gpus.tune("all-gather-gemm", "--trials", "9").exit_code == 130
    with Store.open() as store:
        [study] = store.studies()
        assert store.take_lease(study.id, Lease.new()) is None
        result = gpus.tune("all-gather-gemm", "--trials", "9")
        assert result.exit_code == 130 and "Traceback" not in result.output
        assert f"waiting: process {os.getpid()} on " in result.stderr and result.stderr.endswith("interrupted\n")
        assert gpus.gangs[-1].calls == []
        assert store.take_lease(study.id, Lease.new()) is not None, "it is still the other's"


def test_a_run_is_written_into_an_optuna_storage_too(
    gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LAST_SECONDS", 600.0)
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    result = gpus.tune(*SMALL, "--optuna-storage", url)
    assert result.exit_code == 0, result.output
    sizes = gpus.tune("grid", *SMALL, "--m", "64,128", "--optuna-storage", url)
    assert sizes.exit_code == 0, sizes.output
    studies = sorted(optuna.get_all_study_summaries(url), key=lambda summary: summary.datetime_start or datetime.max)
    assert [re.findall(r" m=\d+", study.study_name) for study in studies] == [[" m=4096"], [" m=64"], [" m=128"]]
    assert all(study.n_trials >= 12 and study.best_trial is not None for study in studies)


def test_an_export_adds_what_an_optuna_storage_has_missed(
    gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LAST_SECONDS", 600.0)
    file = tmp_path / "optuna.db"
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 6)
    assert gpus.tune(*SMALL, "--optuna-storage", f"sqlite:///{file}").exit_code == 130
    gpus.prepare = lambda gang: None
    assert gpus.tune(*SMALL).exit_code == 0, "without the storage"
    assert gpus.tune("export", SMALL[0], "--format", "optuna", "-o", str(file)).exit_code == 0
    [study] = optuna.get_all_study_summaries(f"sqlite:///{file}")
    assert study.n_trials == 12 and "winner" in study.user_attrs


@pytest.mark.parametrize("words", [SMALL, ("grid", *SMALL, "--m", "64,128")])
def test_an_optuna_storage_that_cannot_be_opened_ends_the_command_before_it_starts(
    gpus: Bench, tmp_path: Path, words: tuple[str, ...]
) -> None:
    result = gpus.tune(*words, "--optuna-storage", f"sqlite:///{tmp_path}/nowhere/optuna.db")
    assert result.exit_code == 2 and not any(gang.started for gang in gpus.gangs)
    assert result.stderr.splitlines()[-1].startswith(
        f"tune: error: Optuna storage sqlite:///{tmp_path}/nowhere/optuna.db: "
    )


def test_knobs_have_the_spaces_order_in_a_first_run_and_from_the_cache(gpus: Bench) -> None:
    words = ("all-gather-gemm", "--trials", "6", "--effort", "quick")
    first, again = (gpus.tune(*words).stdout for _ in range(2))
    lines = [next(line for line in text.splitlines() if line.startswith("config")) for text in (first, again)]
    assert lines[0] == lines[1] and "(from the cache)" in again
    names = re.findall(r"(\w+)=", lines[0])
    order = list(workload("all_gather_gemm").space.dimensions)
    assert names == sorted(names, key=order.index) and names[0] == "mode"
    for text in ("as Python", "as command", "as JSON"):
        assert text in first and text in again
