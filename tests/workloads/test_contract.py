"""What every workload keeps, whoever wrote it: the built-in ones, the guides' examples, and one without kernels."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import unittest.mock
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from edges import sampled
from fakes import LAPTOP, latency_of
from ranks_of_functions import run_ranks

import autotune
from autotune.config import Config
from autotune.errors import InvalidConfig
from autotune.heap.arena import ALIGNMENT
from autotune.kernels.launching.tensors import Allocate, meta
from autotune.machine import H100, MI300X, MI350X, Machine
from autotune.outcome import Evaluation, Outcome
from autotune.problem import Problem
from autotune.recordings.file import read, write
from autotune.recordings.recording import Recording
from autotune.runtime.operator import Operator
from autotune.task import Task
from autotune.workloads import Workload, names, provenance_of, workload
from autotune.workloads.launched import LaunchedWorkload

ROOT = Path(__file__).parents[2]
USERS = {
    "all_gather": f"{ROOT}/docs/examples/all_gather.py:AllGatherWorkload",
    "fused_matmul": f"{ROOT}/docs/examples/fused_matmul.py:FusedMatmul",
    "launchers_all_reduce": f"{ROOT}/docs/examples/launcher_table.py:TunedLauncher",
    "toy_sum": f"{ROOT}/tests/cli/toy_workload.py:ToyWorkload",
}
WORKLOADS = {**{name: workload(name) for name in names()}, **{name: workload(path) for name, path in USERS.items()}}
LAUNCHED = {name: found for name, found in WORKLOADS.items() if isinstance(found, LaunchedWorkload)}

MACHINES = {"h100": H100, "mi300x": MI300X, "mi350x": MI350X, "laptop": LAPTOP}

each = pytest.mark.parametrize("found", WORKLOADS.values(), ids=WORKLOADS)
each_launched = pytest.mark.parametrize("found", LAUNCHED.values(), ids=LAUNCHED)


def test_the_built_in_ones_and_the_examples_are_here() -> None:
    assert set(WORKLOADS) >= {*SHAPES, *USERS}
    assert set(WORKLOADS) - set(LAUNCHED) == {"launchers_all_reduce", "toy_sum"}


@each
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_defaults_are_valid_everywhere(found: Workload, machine: Machine, world_size: int) -> None:
    problem = found.default_problem(machine, world_size)
    assert problem.world_size == world_size and problem.workload == found.name
    default, first = found.default_config(Task(problem, machine)), found.first_configs(Task(problem, machine))
    assert first[0] == default
    for config in (*first, *found.baselines(Task(problem, machine)).values()):
        found.space.check(config, Task(problem, machine))
        assert found.predict(Task(problem, machine), config) is None or machine.kind != "interpreter"


@each
def test_a_recording_of_its_problem_comes_back(found: Workload, tmp_path: Path) -> None:
    problem, file = found.default_problem(H100, 4), tmp_path / "table.json.gz"
    config = found.default_config(Task(problem, H100))
    recording = Recording(
        workload=found.name, problem=problem.as_dict(), machine=H100, provenance=provenance_of(found),
        recorded_at=datetime.now(UTC), origin="synthetic", restriction={},
        dimensions={name: dimension.values for name, dimension in found.space.dimensions.items()},
        evaluations={config: Evaluation(Outcome.MEASURED, latency=latency_of(5.0))},
    )  # fmt: skip
    write(recording, file)
    again = read(file)
    assert again.problem_of(found) == problem and list(again.evaluations) == [config]


@each
def test_problems_and_configs_come_back_from_json(found: Workload) -> None:
    problem = found.default_problem(H100, 4)
    again = type(problem).from_dict(json.loads(problem.to_json()))
    assert again == problem and hash(again) == hash(problem) and again.to_json() == problem.to_json()
    for config in sampled(found.space.narrowed(Task(problem, H100)), Task(problem, H100), 20):
        back = Config.from_json(config.to_json())
        assert back == config and found.space.violation(back, Task(problem, H100)) is None


@each_launched
def test_knobs_are_the_dimensions_of_the_space(found: LaunchedWorkload) -> None:
    for machine in (H100, LAPTOP):
        task = Task(found.default_problem(machine, 2), machine)
        for config in sampled(found.space.narrowed(task), task, 10):
            for dimension in found.space.dimensions_of(str(config["mode"])):
                for value in dimension.values if dimension.name != "mode" else ():
                    other = config.replace(**{dimension.name: value})
                    knobs = dataclasses.asdict(found.kernels.knobs.of(other))
                    assert {name: knobs[name] for name in other} == dict(other)


READ = re.compile(r'\b(?:config|default|base)(?:\[|\.get\(|\.integer\()"(\w+)"')
PACKAGE = Path(autotune.__file__).parent


def test_configs_are_read_as_knobs() -> None:
    """Launchers, workloads, run time and taxes read a config by a name where there are no knobs, and nowhere else."""
    files = [file for room in ("kernels", "workloads", "runtime", "taxes") for file in (PACKAGE / room).rglob("*.py")]
    found = {
        (file.name, name)
        for file in files
        if not file.stem.endswith("space")
        for name in READ.findall(file.read_text())
    }
    assert found == {
        ("launched.py", "launch"), ("measure.py", "mode"), ("entries.py", "launch"), ("entries.py", "mode"),
        ("lookup.py", "mode"), ("mode.py", "mode"),
    }  # fmt: skip


@each_launched
def test_what_is_no_knob_is_refused(found: LaunchedWorkload) -> None:
    config = found.default_config(Task(found.default_problem(H100, 2), H100))
    number = next(d.name for d in found.space.dimensions_of(str(config["mode"])) if d.ordinal)
    wrong = {"no such knob": config.replace(of_others=1), "must be of type int": config.replace(**{number: "4"})}
    wrong["the mode is missing"] = Config({})
    for told, each in wrong.items():
        with pytest.raises(InvalidConfig, match=told):
            found.kernels.knobs.of(each)


SHAPES: dict[str, list[dict[str, Any]]] = {
    "all_gather_gemm": [
        {"m": 8, "n": 512, "k": 8192}, {"m": 4096, "n": 28672, "k": 8192, "layout": "k", "dtype": "fp32"},
        {"m": 8 * 129, "n": 8 * 360, "k": 72, "bias": True},
    ],
    "gemm_reduce_scatter": [
        {"m": 8, "n": 8, "k": 8 * 32}, {"m": 8 * 129, "n": 300, "k": 8 * 512}, {"m": 8 * 1024, "n": 8192, "k": 28672},
    ],
    "gemm_all_reduce": [
        {"m": 1, "n": 8192, "k": 8192}, {"m": 40, "n": 360, "k": 8192}, {"m": 2000, "n": 8192, "k": 8192},
        {"m": 3, "n": 24, "k": 8192},
    ],
    "flash_decode": [
        {"batch": batch, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "kv_len": 1000}
        for batch, q_heads, kv_heads, head_dim in ((1, 96, 12, 128), (16, 96, 12, 128), (3, 3, 1, 64), (2, 5, 1, 256))
    ] + [{"batch": 3, "q_heads": 24, "kv_heads": 2, "head_dim": 64, "kv_len": 1000, "result": "heads"},
         {"batch": 3, "q_heads": 64, "kv_heads": 1, "head_dim": 512, "rope": 64, "kv_len": 1000}],
    "gemm_all_reduce_norm": [
        {"m": 1, "n": 8192, "k": 8192}, {"m": 40, "n": 360, "k": 8192, "bias": True},
        {"m": 64, "n": 8192, "k": 8192, "dtype": "fp8", "scales": "row", "b_order": "nk"},
    ],
    "all_reduce_norm": [
        {"m": 1, "n": 8}, {"m": 1000, "n": 5120}, {"m": 64, "n": 16384, "dtype": "fp32"}, {"m": 8192, "n": 8192},
    ],
    "moe_dispatch": [
        {"tokens": 1, "hidden": 7168, "experts": 256, "top_k": 8},
        {"tokens": 129, "hidden": 72, "experts": 8, "top_k": 3},
        {"tokens": 1024, "hidden": 4096, "experts": 64, "top_k": 4, "dtype": "fp32"},
        {"tokens": 33, "hidden": 7168, "experts": 64, "top_k": 8, "dtype": "fp8", "scales": "block"},
    ],
    "moe_combine": [
        {"tokens": 1, "hidden": 7168, "experts": 256, "top_k": 8},
        {"tokens": 129, "hidden": 72, "experts": 8, "top_k": 3},
        {"tokens": 1024, "hidden": 4096, "experts": 64, "top_k": 4, "dtype": "fp32"},
    ],
    "moe_gemm_combine": [
        {"tokens": 1, "hidden": 7168, "experts": 256, "top_k": 8, "width": 2048},
        {"tokens": 129, "hidden": 72, "experts": 8, "top_k": 3, "width": 40},
        {"tokens": 1024, "hidden": 4096, "experts": 64, "top_k": 4, "width": 1024, "dtype": "fp32"},
    ],
    "moe_dispatch_gemm": [
        {"tokens": 1, "hidden": 7168, "experts": 256, "top_k": 8, "width": 2048},
        {"tokens": 129, "hidden": 72, "experts": 8, "top_k": 3, "width": 40, "epilogue": "none", "b_order": "kn"},
        {"tokens": 1024, "hidden": 4096, "experts": 64, "top_k": 4, "width": 512, "dtype": "fp32"},
    ],
    "all_gather": [{"rows": 1, "columns": 7}, {"rows": 1000, "columns": 8191, "dtype": "fp32"}],
    "fused_matmul": [{"m": 8, "n": 16, "k": 16}],
}  # fmt: skip
"""Problems for eight ranks whose tiles and units stand out in their own ways."""


@each_launched
def test_the_heap_holds_the_operands_and_the_scratch_of_every_config(found: LaunchedWorkload) -> None:
    for fields in SHAPES[found.name]:
        problem = found.problem_type.from_dict({**fields, "world_size": 8})
        operands = taken(lambda shared, problem=problem: found.kernels.tensors(problem, shared, meta))
        most = 0
        for config in sampled(found.space.narrowed(Task(problem, H100)), Task(problem, H100), 120):
            knobs = found.kernels.knobs.of(config)
            of_config = taken(
                lambda shared, problem=problem, knobs=knobs: found.kernels.scratch(
                    Task(problem, H100), knobs, shared, meta
                )
            )
            assert of_config <= found.kernels.scratch_bytes(problem), f"{problem} {config}"
            copied = found.kernels.read_by_peers(problem, knobs)
            room = 0 if copied is None else math.prod(copied) * problem.element_size
            most = max(most, operands + of_config + room * (operands == 0))
        assert 0 < most <= found.heap_bytes(problem), problem


def taken(allocate: Callable[[Allocate], object]) -> int:
    sizes = []

    def shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        sizes.append(-(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT)
        return meta(shape, dtype)

    allocate(shared)
    return sum(sizes)


def test_users_operators_agree_with_the_reference(tmp_path: Path) -> None:
    """In every mode; the tests of operators have the built-in ones."""
    own = {name: USERS[name] for name in ("all_gather",)}  # the one with an operator
    expected = sorted([name, mode] for name in own for mode in LAUNCHED[name].space.modes)
    for answer in run_ranks(__file__, "operators_on_ranks", 2, tmp_path, argument=own):
        assert sorted(answer) == expected


def operators_on_ranks(references: dict[str, str]) -> list[list[str]]:
    right = []
    with autotune.Context(64 << 20, url="sqlite:///no-such-file.db") as context, torch.no_grad():
        for name, reference in references.items():
            found: Any = workload(reference)
            problem = found.default_problem(context.machine, context.heap.world_size)
            task, operator = Task(problem, context.machine), Operator(found)
            for config in (*found.first_configs(task), *found.baselines(task).values()):
                right += [[name, str(config["mode"])]] * is_right(context, operator, problem, config)
                context.release()
    return right


def is_right(context: autotune.Context, operator: Any, problem: Problem, config: Config) -> bool:
    """True if the operator, on the inputs of the tuner's operation, gives what that compares with."""
    found = operator.workload
    kernels = found.kernels
    operation: Any = found.operation(Task(problem, context.machine), context.heap, context.spin_limit)
    operation.refresh(3)
    tensors = operation._tensors
    given = [getattr(tensors, name) for name in kernels.operands]
    operands = [None if tensor is None else tensor.clone() for tensor in given]  # nowhere on the heap
    options = tuple(getattr(problem, name) for name in found.options)
    assert found.problem_of(context.heap.world_size, operands, options) == problem
    with unittest.mock.patch.object(kernels, "plan", wraps=kernels.plan) as plan:
        results = operator.all_of(context, operands, options, None, config)
        assert plan.call_count == (config["mode"] != "bsp"), "a first call plans once"
        again = operator.all_of(context, operands, options, results, config)
        assert all(a is b for a, b in zip(again, results, strict=True)) and plan.call_count == (
            config["mode"] != "bsp"
        ), "a second one does not"
    for name, result in zip(kernels.results, results, strict=True):
        getattr(tensors, name).copy_(result)
    error, allowed = operation.error(), found.tolerance_of(Task(problem, context.machine), config)
    return bool(error.overall <= allowed.overall and error.element <= allowed.element)
