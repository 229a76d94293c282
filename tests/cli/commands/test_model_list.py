"""``tune model`` of a list of problems: its entries' options count, and nothing that is said is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import Bench, FakeGang

from autotune.config import Config
from autotune.db import Store


def test_a_lists_own_trials_effort_and_seed_are_kept(laptop: Bench, tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    entry = "{workload: gemm-all-reduce, m: %s, n: 64, k: 64, world_size: 2, %s}"
    few, thorough = entry % (4, "trials: 3, seed: 5"), entry % (8, "trials: 4, effort: full")
    file.write_text(f"problems: [{few}, {thorough}]")

    def searches(*words: str) -> dict[int, tuple[int, int, int]]:
        """By M: trials beside the baseline, seed, and iterations of a config."""
        plans: dict[int, int] = {}

        def watched(gang: FakeGang) -> None:
            evaluate = gang.evaluate

            def noting(config: Config, seed: int, plan: Any) -> Any:
                plans.setdefault(gang.problems[-1].as_dict()["m"], plan.iterations)
                return evaluate(config, seed, plan)

            gang.evaluate = noting

        laptop.prepare = watched
        assert laptop.tune("model", str(file), "--force", *words).exit_code == 0
        with Store.open() as store:
            newest = {each.key.fields["m"]: each for each in store.studies()}
            tried = {
                m: {each.config for each in store.trials(study.id) if each.source not in ("baseline", "final")}
                for m, study in newest.items()
            }
        return {m: (len(tried[m]), study.seed, plans[m]) for m, study in newest.items()}

    assert searches() == {4: (2, 5, 9), 8: (3, 0, 25)}
    assert searches("--trials", "2", "--effort", "standard", "--seed", "7") == {4: (1, 7, 15), 8: (1, 7, 15)}
    assert {seed for _, seed, _ in searches("--seed", "0").values()} == {0}


def test_problems_that_differ_in_no_size_are_told_apart(laptop: Bench, tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    entry = "{workload: gemm-all-reduce, m: 4, n: 64, k: 64, world_size: 2, %s}"
    file.write_text(f"problems: [{entry % 'dtype: bf16'}, {entry % 'dtype: fp16, bias: true'}]")
    result = laptop.tune("model", str(file), "--trials", "2")
    assert result.exit_code == 0
    for fields in ("dtype=bf16 bias=false", "dtype=fp16 bias=true"):
        assert result.stdout.count(f"m=4 n=64 k=64 {fields} ") == 1


def test_a_list_for_another_device_is_refused(laptop: Bench, tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("problems: [{workload: gemm-all-reduce, m: 4, n: 64, k: 64, world_size: 2, device: NVIDIA H200}]")
    result = laptop.tune("model", str(file), "--trials", "3")
    assert result.exit_code == 2 and not laptop.gangs
    assert "problems for the device 'NVIDIA H200', and this machine has 'cpu-interpreter'" in result.stderr


@pytest.mark.parametrize(
    "words", [("--tp", "4"), ("--tokens", "7"), ("--dtype", "fp8"), ("--zipf", "1.5"), ("--experts-by-width",)]
)
def test_options_of_a_model_are_refused_beside_a_list(laptop: Bench, tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("problems: [{workload: gemm-all-reduce, m: 4, n: 64, k: 64, world_size: 2}]")
    result = laptop.tune("model", str(file), "--trials", "3", *words)
    assert result.exit_code == 2 and not laptop.gangs
    assert f"{words[0]}: for a model's config.json, and list.yaml is a list of problems" in result.stderr


def test_a_list_made_from_a_list_loses_nothing_that_its_entries_say(laptop: Bench, tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("problems: [{workload: gemm-all-reduce, m: 4, n: 64, k: 64, world_size: 2, seed: 3, device: X}]")
    result = laptop.tune("model", str(file), "--list")
    assert result.exit_code == 2 and "--list would leave out device, seed; tune fleet takes" in result.stderr
