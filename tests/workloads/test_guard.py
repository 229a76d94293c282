"""A user's methods: what they raise names workload and method, what they give is checked where it is used first."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import LAPTOP, Bench, bench_of
from typer.testing import CliRunner

import autotune
from autotune.cli import app
from autotune.errors import InvalidConfig, InvalidProblem, WorkloadError
from autotune.machine import INTERPRETED
from autotune.task import Task
from autotune.workloads import workload
from autotune.workloads.guard import WHOLE, guard_results
from autotune.workloads.tolerance import Error

TOY = Path(__file__).parents[1] / "cli" / "toy_workload.py"
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return bench_of(LAPTOP, monkeypatch, tmp_path)


def wrong_toy(folder: Path, method: str, body: str) -> str:
    """The toy with another method, as FILE:CLASS; its line of that body is the file's last."""
    given = "machine, world_size" if method == "default_problem" else "task"
    given = {"predict": "task, config", "tolerance": "problem", "heap_bytes": "problem",
             "tolerance_of": "task, config", "unlike_measured": "config, regime",
             "source_hash": "*_"}.get(method, given)  # fmt: skip
    file = folder / "wrong.py"
    file.write_text(f"{TOY.read_text()}\nclass Wrong(ToyWorkload):\n    def {method}(self, {given}):\n        {body}\n")
    return f"{file}:Wrong"


RAISES = "return {}['planted']"
FAULTS = [
    *((method, RAISES, 1) for method in (
        "default_problem", "default_config", "first_configs", "baselines", "predict", "unlike_measured", "source_hash",
    )),
    ("default_problem", "raise SystemExit(0)", 1),
    ("default_config", "return Config({'mode': 'tritn'})", 2),
    ("first_configs", "return [Config({'mode': 'bsp'}), Config({'mode': 'push', 'block_m': 7})]", 2),
    ("baselines", "return {'mine': Config({'mode': 'bps'}), 'right': Config({'mode': 'bsp'})}", 2),
    ("default_config", "return {'mode': 'bsp'}", 1), ("first_configs", "return None", 1),
    ("baselines", "return [1]", 1), ("default_problem", "return {'width': 8}", 1),
    ("unlike_measured", "return True", 1), ("unlike_measured", "return ''", 1), ("source_hash", "return ''", 1),
    ("source_hash", "return 3", 1),
]  # fmt: skip


@pytest.mark.parametrize(("method", "body", "code"), FAULTS)
def test_what_a_method_raises_or_gives_wrongly_is_one_line_that_names_it(
    laptop: Bench, tmp_path: Path, method: str, body: str, code: int
) -> None:
    result = laptop.tune("run", wrong_toy(tmp_path, method, body), "--trials", "3")
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1].startswith(f"tune: error: workload toy_sum: {method}")


def test_a_tolerance_of_a_config_is_checked_and_arguments_may_be_named(tmp_path: Path) -> None:
    found = workload(wrong_toy(tmp_path, "tolerance_of", "return 0.1"))
    problem = found.default_problem(INTERPRETED, world_size=2)
    config = found.default_config(task=Task(problem, INTERPRETED))
    assert found.tolerance(problem=problem).overall > 0 and found.heap_bytes(problem=problem) > 0
    with pytest.raises(WorkloadError, match="tolerance_of"):
        found.tolerance_of(Task(problem, INTERPRETED), config)


@pytest.mark.parametrize(
    ("given", "size"), [("-1", None), ("1.5", None), ("None", None), ("0", 0), ("__import__('numpy').int64(64)", 64)]
)
def test_bytes_of_the_heap_are_a_whole_number_and_none_is_one(tmp_path: Path, given: str, size: int | None) -> None:
    found = workload(wrong_toy(tmp_path, "heap_bytes", f"return {given}"))
    problem = found.default_problem(INTERPRETED, world_size=2)
    if size is None:
        with pytest.raises(WorkloadError, match="heap_bytes"):
            found.heap_bytes(problem)
    else:
        assert (told := found.heap_bytes(problem)) == size and type(told) is int


def test_an_error_of_ours_in_a_users_method_keeps_its_words_and_kind(tmp_path: Path) -> None:
    body = "from autotune.errors import InvalidProblem; raise InvalidProblem('width=8: too narrow')"
    found = workload(wrong_toy(tmp_path, "default_config", body))
    problem = found.default_problem(INTERPRETED, world_size=2)
    with pytest.raises(InvalidProblem) as told:
        found.default_config(Task(problem, INTERPRETED))
    assert str(told.value) == "width=8: too narrow"


def test_a_look_up_serves_no_default_that_is_none_of_the_space(tmp_path: Path) -> None:
    found = workload(wrong_toy(tmp_path, "default_config", "return Config({'mode': 'tritn'})"))
    with pytest.raises(InvalidConfig, match="default_config"):
        autotune.lookup(found, found.problem_type(width=8, world_size=2), url=str(tmp_path / "none.db"))  # type: ignore[call-arg]


@pytest.mark.parametrize("value", ["float('nan')", "-1.0", "'soon'"])
def test_a_prediction_that_is_no_time_counts_as_none(laptop: Bench, tmp_path: Path, value: str) -> None:
    reference = wrong_toy(tmp_path, "predict", f"return {value}")
    assert laptop.tune("run", reference, "--trials", "3").exit_code == 0
    found = workload(reference)
    problem = found.problem_type(width=8, world_size=2)  # type: ignore[call-arg]
    assert found.predict(Task(problem, INTERPRETED), found.default_config(Task(problem, INTERPRETED))) is None


def test_what_raises_on_a_rank_names_the_workload(tmp_path: Path) -> None:
    reference = wrong_toy(tmp_path, "unused", "pass")
    words = ["run", reference, "--width", "64", "--trials", "2", "--db", str(tmp_path / "cache.db")]
    done = CliRunner().invoke(app.build(), words)
    before, _, told = done.stderr.partition("tune: error: ")
    assert done.exit_code == 1 and "Traceback" not in before
    assert reference in told and "NotImplementedError" in told


ON_RANKS = """
import sys
sys.path.append({examples!r})
import fused_matmul

class OwnKernels(fused_matmul.FusedMatmulKernels):
    {kernels}

KERNELS = fused_matmul.KERNELS = OwnKernels()

class OwnOperation(fused_matmul.Operation):
    {operation}

class Forgetful(fused_matmul.FusedMatmul):
    kernels = KERNELS
    def operation(self, *given):
        {forgetful} OwnOperation(*given)
"""


@pytest.mark.parametrize("method", ["operation", "prepare", "plan"])
def test_what_a_method_gives_on_a_rank_is_one_line_that_names_it(tmp_path: Path, method: str) -> None:
    forgets = f"def {method}(self, *given): pass"
    parts = {
        "kernels": forgets if method == "plan" else "pass",
        "operation": forgets if method == "prepare" else "pass",
        "forgetful": "" if method == "operation" else "return",
    }
    file = tmp_path / "forgetful.py"
    file.write_text(ON_RANKS.format(examples=str(EXAMPLES), **parts))
    sizes = ["--m", "16", "--n", "16", "--k", "16", "--world-size", "1", "--trials", "2"]
    done = CliRunner().invoke(app.build(), ["run", f"{file}:Forgetful", *sizes, "--db", str(tmp_path / "cache.db")])
    assert done.exit_code == 1 and f".{method} gave None" in done.stderr.splitlines()[-1]


A, B = [1.0], SimpleNamespace(data_ptr=0)
GIVEN: dict[str, tuple[object, object]] = {
    "inputs": ([B, B], [B, A]), "outputs": ([B], [A, B]), "error_of": (Error(0.0, 0.0), 0.0),
    "parts": ({"gemm": print}, {"gemm": print, "copy": None}), "tensors": (Error(0.0, 0.0), A), "run": (print, None),
    "library": (print, None), "error": (Error(0.0, 0.0), None), "scratch": (None, (1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("method", GIVEN)
def test_what_other_methods_give_on_a_rank_is_checked(method: str) -> None:
    for value, fits in zip(GIVEN[method], (True, False), strict=True):

        def users(self: object, value: object = value) -> object:
            return value

        users.__name__ = method
        kind = type("Own", (), {method: users})
        guard_results(kind)
        if fits:
            assert getattr(kind(), method)() is value
        else:
            with pytest.raises(WorkloadError, match=f"Own.{method}"):
                getattr(kind(), method)()


def test_a_recording_may_leave_out_the_default_and_a_baseline(tmp_path: Path) -> None:
    """A replay's space is a part of the workload's: the tuner leaves out what it lacks, as of built-in ones."""
    found = copy.copy(workload(f"{TOY}:ToyWorkload"))
    problem = found.default_problem(INTERPRETED, 2)
    found.__dict__.update({"space": found.space.restricted({"block_m": [64], "mode": ["push"]}), WHOLE: found.space})
    assert found.default_config(Task(problem, INTERPRETED))["block_m"] == 16
    assert found.baselines(Task(problem, INTERPRETED))["bsp"]["mode"] == "bsp"
