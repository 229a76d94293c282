"""The examples' operators: right in every mode, compiled for GPUs, quoted by the docs; a launcher gets its table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from every_mode import check_all, few, on_cpu, whole
from scripts import run_script

import autotune
from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.machine import H100, MI300X, MI350X, Machine, machine
from autotune.task import Task
from autotune.tuning.screening import Screen
from autotune.workloads import workload

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
MATMUL, LAUNCHER, NORM, GATHER = (
    workload(f"{EXAMPLES}/{name}")
    for name in (
        "fused_matmul.py:FusedMatmul", "launcher_table.py:TunedLauncher", "own_operator.py:SumAndNorm",
        "all_gather.py:AllGatherWorkload",
    )
)  # fmt: skip
TILES: Any = {"BLOCK_M": [16, 32], "BLOCK_N": [32, 64], "num_warps": [4], "num_stages": [2]}
BLOCKS: Any = {"block": [128, 256], "num_warps": [4]}


@pytest.mark.parametrize(
    ("found", "world_size", "sizes", "values", "count"),
    [
        whole(MATMUL, 1, {"m": 20, "n": 40, "k": 48}, TILES, 3), (MATMUL, 2, {"m": 34, "n": 36, "k": 36}, TILES, 3),
        (MATMUL, 3, {"m": 3, "n": 16, "k": 32}, TILES, 3), (LAUNCHER, 2, {"elements": 1000}, BLOCKS, 4),
        whole(LAUNCHER, 3, {"elements": 1000}, BLOCKS, 4), whole(LAUNCHER, 2, {"elements": 1}, BLOCKS, 4),
        # Chunks do not divide the rows.
        (NORM, 2, {"rows": 50, "columns": 96, "dtype": "fp32"}, {}, 99),
        *(whole(NORM, 2, {"rows": 50, "columns": 96, "dtype": dtype}, {}, 99) for dtype in ("bf16", "fp16")),
        (GATHER, 2, {"rows": 8, "columns": 300}, {}, 4), (GATHER, 3, {"rows": 1, "columns": 7}, {}, 4),
        whole(GATHER, 1, {"rows": 3, "columns": 50}, {}, 4),
    ],
)  # fmt: skip
def test_every_mode_is_right(found: Any, world_size: int, sizes: dict[str, Any], values: Any, count: int) -> None:
    problem, space = found.problem_type(world_size=world_size, **sizes), found.space.restricted(values)
    configs = few(problem, space.enumerate(Task(problem, on_cpu())), count)
    check_all(found, problem, configs, {*space.modes}, calls=3 if found is LAUNCHER else 2)


@pytest.mark.gpu(2)
@pytest.mark.parametrize(
    ("found", "sizes", "count"),
    [(MATMUL, {"m": 1030, "n": 520, "k": 1000}, 12), *((LAUNCHER, {"elements": n}, 16) for n in (4096, 1_000_003))],
)
def test_every_mode_is_right_on_gpus(found: Any, sizes: dict[str, Any], count: int) -> None:
    problem = found.problem_type(world_size=2, **sizes)
    configs = few(problem, found.space.enumerate(Task(problem, machine())), count)
    check_all(found, problem, configs, {*found.space.modes})


@pytest.mark.parametrize(
    ("found", "sizes", "modes", "values"),
    [
        (MATMUL, {"m": 4096, "n": 4096, "k": 4096}, ("pull", "gather"),
         {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}),
        (GATHER, {"rows": 64, "columns": 8192}, ("push", "pull"), {"block": 2048, "num_warps": 4}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", [H100, whole(MI300X), whole(MI350X)], ids=lambda target: target.arch)
def test_kernels_compile_ahead_of_the_ranks(
    target: Machine, found: Any, sizes: dict[str, int], modes: tuple[str, ...], values: dict[str, int]
) -> None:
    with Screen(found, Task(found.problem_type(world_size=8, **sizes), target)) as screen:
        for mode in modes:
            config = Config({"mode": mode, **values})
            assert screen.verdict(config, screen.submit(config)) is None


def test_a_problem_that_the_ranks_cannot_share() -> None:
    with pytest.raises(InvalidProblem, match="must divide it"):
        MATMUL.problem_type(m=7, n=16, k=16, world_size=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("page", "heading", "file"),
    [("decorator.md", "## A whole operator", "fused_matmul.py"), ("kernels.md", "", "all_gather.py")],
)
def test_the_docs_quote_the_examples(page: str, heading: str, file: str) -> None:
    text, code = (ROOT / "docs" / page).read_text(), (EXAMPLES / file).read_text()
    quoted = re.findall(r"```python\n(.*?)```", text[text.index(heading) :], re.DOTALL)
    assert quoted
    for block in quoted:
        for line in filter(str.strip, block.splitlines()):
            assert line.strip() in code, line


def test_a_tuned_launcher_writes_the_table_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, file = {"AUTOTUNE_DB": str(tmp_path / "tuned.db")}, tmp_path / "table.json"
    monkeypatch.setenv("AUTOTUNE_DB", settings["AUTOTUNE_DB"])
    words = (str(EXAMPLES / "launcher_table.py"), "--sizes", "64,256", "--trials", "1", str(file))
    done = run_script(*words, ranks=2, settings=settings)
    assert done.returncode == 0, done.stderr
    table = json.loads(file.read_text())
    assert [*table] == ["64", "256"]
    for elements, row in table.items():
        found = autotune.lookup(LAUNCHER, LAUNCHER.problem_type(elements=int(elements), world_size=2))  # type: ignore[call-arg]
        assert found.source == "exact"
        shots = {"one_shot": 1, "two_shot": 2}[str(found.config["mode"])]
        assert row == {"shots": shots, **{name: value for name, value in found.config.items() if name != "mode"}}
