from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import EIGHT_GPUS, Bench, begun, evaluation_of, latency_of
from typer.testing import CliRunner

from autotune.cli import app
from autotune.db import CacheKey, Store, TrialRecord, Winner
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.task import Task
from autotune.workloads import workload

FOUND = workload("all_gather_gemm")
PROBLEMS = (4096, 1024)


def store_result(store: Store, m: int, regime: Regime = DEFAULT_REGIME, **versions: str) -> None:
    task = Task(FOUND.problem_type.from_dict({"m": m, "n": 28672, "k": 8192, "world_size": 8}), EIGHT_GPUS)
    study = begun(store, FOUND, task, regime, **versions)
    for config in [*FOUND.first_configs(task), *FOUND.baselines(task).values()]:
        store.record(study.id, TrialRecord(config, evaluation_of(config, 8)))
    store.finish(
        study.id, Winner(FOUND.default_config(task), latency_of(400.0, 8), {"bsp graph": latency_of(530.0, 8)})
    )


@pytest.fixture
def exported(gpus: Bench, tmp_path: Path) -> Path:
    with Store.open() as store:
        for m in PROBLEMS:
            store_result(store, m)
    file = tmp_path / "configs.json"
    result = gpus.tune("export", "-o", str(file))
    assert result.exit_code == 0 and result.stdout == ""
    return file


def test_what_would_replace_ours_is_reported_and_needs_the_flag(gpus: Bench, exported: Path) -> None:
    before = gpus.tune("export").stdout
    values = json.loads(exported.read_text())
    values["entries"][0]["latency"]["median"] = 1000.0
    exported.write_text(json.dumps(values))
    result = gpus.tune("import", str(exported))
    assert result.exit_code == 1 and result.stderr.startswith("1 needs --replace")
    assert gpus.tune("export").stdout == before
    tried = gpus.tune("import", str(exported), "--replace", "--dry-run")
    assert tried.exit_code == 0 and tried.stderr.startswith("1 replaces")
    assert gpus.tune("export").stdout == before
    assert gpus.tune("import", str(exported), "--replace").exit_code == 0
    assert json.loads(gpus.tune("export").stdout) == values


@pytest.mark.parametrize("name", ["-", "windows.json"])
def test_import_reads_what_a_windows_editor_wrote(gpus: Bench, tmp_path: Path, exported: Path, name: str) -> None:
    written = b"\xef\xbb\xbf" + exported.read_bytes()
    file = tmp_path / name
    file.write_bytes(written)
    words = ["import", name if name == "-" else str(file), "--db", str(tmp_path / "there.db")]
    result = CliRunner().invoke(app.build(), words, input=written)
    assert result.exit_code == 0 and result.stderr.endswith("\n2 new\n")


def test_export_takes_a_workload_its_dimensions_and_a_device(gpus: Bench, exported: Path) -> None:
    [entry] = json.loads(gpus.tune("export", "all-gather-gemm", "--m", "1024").stdout)["entries"]
    assert entry["problem"]["m"] == 1024
    assert len(json.loads(gpus.tune("export", "all-gather-gemm", "--device", "NVIDIA H200").stdout)["entries"]) == 2
    for words in (["all-gather-gemm", "--m", "77"], ["--device", "NVIDIA H20"], ["--device", "H200"]):
        assert gpus.tune("export", *words).exit_code == 1


def test_export_of_one_regime(gpus: Bench) -> None:
    with Store.open() as store:
        for regime in (Regime.GRAPH, Regime.PIPELINED):
            store_result(store, 1024, regime)
    several = gpus.tune("export", "all-gather-gemm", "--format", "vllm")
    assert several.exit_code == 2 and "--regime" in several.stderr
    assert gpus.tune("export", "all-gather-gemm", "--format", "vllm", "--regime", "graph").exit_code == 0
    [entry] = json.loads(gpus.tune("export", "--regime", "graph").stdout)["entries"]
    assert entry["regime"] == "graph"
    assert [gpus.tune("export", "--regime", name).exit_code for name in ("isolated", "grap")] == [1, 2]


def test_thresholds_are_of_sizes_and_of_one_version_as_for_look_ups(gpus: Bench) -> None:
    with Store.open() as store:
        store_result(store, 2048, triton="another version")
        for m in PROBLEMS:
            store_result(store, m)
        [one, *_] = store.entries("all_gather_gemm")
        key = CacheKey("cast", '{"a.dtype":"torch.float16"}', 1, "NVIDIA H200", "sm_90", "nvlink")
        store.finish(store.study(key, one.provenance, seed=0, space_size=1).id, one.winner)
    assert gpus.json("lookup", "all-gather-gemm", "--m", "2048")["entry"]["problem"]["m"] in PROBLEMS
    refused = gpus.tune("export", "cast", "--format", "thresholds")
    assert refused.exit_code == 2 and not refused.stdout, "it has no size"
    result = gpus.tune("export", "--format", "thresholds")
    (found,) = json.loads(result.stdout)["maps"]
    assert [each["size"] for each in found["measured"]] == sorted(PROBLEMS) and found["workload"] == "all_gather_gemm"
    assert "cast" in result.stderr and result.stderr.endswith(": 1\n"), "how many are left out"
