"""The independent stopwatch: its arithmetic, what it flags, what it may import, and a run of it on two ranks."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import fakes
import outside
import pytest
from every_mode import whole
from fakes import LAPTOP, bench_of
from listed import LIST
from scripts import run_on_gpus, run_script

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / "bench" / f"{name}.py" for name in ("outside", "outside_cases", "outside_experts", "latencies", "listed")),
    ROOT / "autotune" / "model_runs" / "clock.py",
]


def test_it_shares_no_code_with_the_tuner() -> None:
    looked_up = {f"autotune.{name}" for name in ("machine", "task", "settings", "runtime.lookup", "workloads")}
    benches = {"arguments", "tables", *(path.stem for path in FILES)}
    allowed = {"autotune", "autotune.model_runs.clock", *looked_up, *benches}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                ours = name.startswith("autotune") or (ROOT / "bench" / f"{name}.py").exists()
                assert not ours or name in allowed, f"{path.name} imports {name}"


def tuned(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "BASELINE", 5000.0)  # else the library's way would win
    bench = bench_of(LAPTOP, monkeypatch, database.parent)
    words = [
        "--m", "8", "--n", "64", "--k", "32", "--dtype", "fp32", "--world-size", "2", "--trials", "3",
        "--effort", "quick",
    ]  # fmt: skip
    done = bench.tune("gemm-reduce-scatter", *words, "--db", str(database))
    assert done.exit_code == 0, done.output


def rows_of(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text())["rows"])


def test_a_run_sets_what_it_sees_beside_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with ``--strict`` it fails where anything is flagged."""
    tuned(tmp_path / "cache.db", monkeypatch)
    words = ["--toy", "--only", "rs", "--db", str(tmp_path / "cache.db"), "--json", str(tmp_path / "rows.json")]
    done = run_script(str(FILES[0]), *words, "--strict", ranks=2)
    rows = rows_of(tmp_path / "rows.json")
    assert [row["regime"] for row in rows] == ["pipelined", "isolated", outside.BOUND], "no graphs without GPUs"
    for row in rows:
        assert row["source"] == "exact" and row["config"]["mode"] != "bsp"
        assert row["ours"] > 0 and row["plain"] > 0
        assert row["ratio"]["value"] == pytest.approx(row["plain"] / row["ours"])
        assert row["ratio"]["value"] < 0.995 and "slower than plain" in row["flags"], "the interpreter is slow"
    assert rows[0]["claim"]["ratio"] > 1 and "claim is off" in rows[0]["flags"]
    assert done.returncode == 1 and "Traceback" not in done.stderr, "--strict"
    assert done.stdout.count("| rs | m=8 ") == 3


NAMES = (
    "ag-rows", "ag-k", "ag-fp8", "ag-swiglu", "rs-fp8", "ar-8192", "arn", "garn-28672", "fd", "moe-dispatch",
    "moe-combine",
)  # fmt: skip
FEW = ("ag-fp8", "ar-8192", "garn-28672", "fd")
"""One with scales, one with a norm; mixtures run in the tests of ``between``, GEMM + reduce-scatter in the others."""


@pytest.mark.parametrize("names", [FEW, whole(NAMES)], ids=["few", "all"])
def test_all_workloads_run_and_nobody_exits_without_strict(tmp_path: Path, names: tuple[str, ...]) -> None:
    words = [word for name in names for word in ("--only", name.replace("ag-rows", "ag-rows/m=8"))]
    done = run_script(str(FILES[0]), "--toy", *words, "--regimes", "pipelined", "--db", str(tmp_path / "none.db"),
                      "--json", str(tmp_path / "rows.json"), ranks=2)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "rows.json")
    assert [row["table"] for row in rows] == list(names)
    assert all(row["source"] == "default" and "not tuned (default)" in row["flags"] for row in rows)


def test_a_wrong_result_is_loud(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(
        "import autotune, outside\n"
        "right = autotune.gemm_reduce_scatter\n"
        "autotune.gemm_reduce_scatter = lambda *words, **named: 1.01 * right(*words, **named)\n"
        "outside.main()\n"
    )
    done = run_script(str(script), "--toy", "--only", "rs", "--db", str(tmp_path / "none.db"), ranks=2)
    assert done.returncode != 0 and "1.0e-02" in done.stderr


@pytest.mark.gpu(1)
def test_two_ranks_on_gpus_go_through_all_regimes(tmp_path: Path) -> None:
    """With one GPU the two ranks share it: graphs of ours, plain torch through the host."""
    done = run_on_gpus(str(FILES[0]), "--toy", "--db", str(tmp_path / "none.db"), "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "rows.json")
    assert {row["table"] for row in rows} == {each.name for each in LIST}
    assert {row["regime"] for row in rows} == {*outside.REGIMES, outside.BOUND}
