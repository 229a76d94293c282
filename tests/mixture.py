"""The tests that the mixtures of experts share; a workload's file is a table of what differs."""

from __future__ import annotations

import random
from typing import Any

import pytest
from every_mode import check_all, few, on_cpu, ranks_a_gpu, variants

from autotune.machine import Machine, machine
from autotune.workloads import workload

FP8 = {"dtype": "fp8", "b_order": "nk"}

ROUTINGS: list[dict[str, Any]] = [{"routing": "uniform"}, {"routing": "zipf", "exponent": 1.2}]


class MixtureTests:
    """The workload is right in every mode: under the interpreter, and on all GPUs there are.

    Each check calls it with a plain routing, with one that leaves out a rank's tokens and single ids, and with one that
    sends every token to one expert.
    """

    name: str
    modes: set[str]
    steps: list[dict[str, int]]
    """Numbers to go with each mode's words."""
    gpu_steps: list[dict[str, int]]
    small: list[Any]
    """Ranks, sizes and a count of configs, or the modes to have one of each, for the interpreter."""
    large: list[dict[str, Any]]
    """Sizes for GPUs."""
    count = 4
    """Configs of a random problem."""
    local_experts = [1, 2, 5, 16]
    hidden = [64, 72, 256]
    gpu_hidden = [64, 72, 2048, 7168]

    def further(self, rng: random.Random, gpu: bool) -> dict[str, Any]:
        """Fields of a random problem that other mixtures lack."""
        return {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "small_sizes" in metafunc.fixturenames:
            metafunc.parametrize(("world_size", "small_sizes", "count"), self.small)
        if "large_sizes" in metafunc.fixturenames:
            metafunc.parametrize("large_sizes", self.large, ids=said)

    def test_every_mode_is_right_under_the_interpreter(
        self, world_size: int, small_sizes: dict[str, Any], count: int | set[str]
    ) -> None:
        here, steps = on_cpu(), self.steps
        if small_sizes.get("scales") == "block":
            steps = [{**step, "block_n": 128, "block_k": 128} for step in steps]
        self.check(self.problem(world_size=world_size, **small_sizes), here, steps, count)

    @pytest.mark.slow
    def test_random_problems_are_right_under_the_interpreter(self) -> None:
        here, rng = on_cpu(), random.Random(21)
        for _ in range(60):
            problem = self.drawn(rng, rng.choice([2, 2, 2, 3, 4]), gpu=False)
            self.check(problem, here, self.steps, self.count)

    @ranks_a_gpu
    def test_every_mode_is_right_on_gpus(self, ranks: int, large_sizes: dict[str, Any]) -> None:
        here = machine()
        self.check(self.problem(world_size=here.gpus * ranks, **large_sizes), here, self.gpu_steps, 16)

    @pytest.mark.gpu(2, each=True)
    @pytest.mark.parametrize("problems", [40, pytest.param(200, marks=pytest.mark.slow)])
    def test_random_problems_are_right_on_gpus(self, problems: int) -> None:
        here, rng = machine(), random.Random(22)
        for _ in range(problems):
            self.check(self.drawn(rng, here.gpus, gpu=True), here, [*self.steps, *self.gpu_steps], self.count)

    def problem(self, **fields: Any) -> Any:
        return workload(self.name).problem_type(**fields)

    def drawn(self, rng: random.Random, world_size: int, *, gpu: bool) -> Any:
        """A random problem."""
        experts = rng.choice(self.local_experts) * world_size
        return self.problem(
            tokens=rng.choice([1, 3, 8, 17, 40]), hidden=rng.choice(self.gpu_hidden if gpu else self.hidden),
            experts=experts, top_k=rng.randint(1, min(8, experts)), dtype=rng.choice(["bf16", "fp32"]),
            world_size=world_size, **rng.choice(ROUTINGS), **self.further(rng, gpu),
        )  # fmt: skip

    def check(self, problem: Any, here: Machine, steps: list[dict[str, int]], count: int | set[str]) -> None:
        found = workload(self.name)
        modes, count = (count, 1) if isinstance(count, set) else (self.modes, count)
        configs = [each for each in variants(found, problem, here, steps) if each["mode"] in modes]
        if not (here.is_interpreter or problem.dtype == "bf16" or problem.row_scales):
            modes = modes - {"custom_collective"}  # the library has no such grouped GEMM on GPUs
        check_all(found, problem, few(problem, configs, count), modes, calls=3)


class GroupedTests(MixtureTests):
    """The same of a mixture with a grouped GEMM."""

    fp8_sizes: dict[str, Any]
    fp8_forms: list[dict[str, Any]] = [{}]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        super().pytest_generate_tests(metafunc)
        if "form" in metafunc.fixturenames:
            metafunc.parametrize("form", self.fp8_forms, ids=said)

    @pytest.mark.slow
    @pytest.mark.parametrize("world_size", [1, 3])
    @pytest.mark.parametrize("scales", ["row", "block"])
    def test_fp8_is_right_in_every_form(self, world_size: int, scales: str, form: dict[str, Any]) -> None:
        sizes = {"tokens": 19, "experts": 2 * world_size, "top_k": 2, **self.fp8_sizes, **form, **FP8}
        problem = self.problem(**sizes, scales=scales, world_size=world_size)
        self.check(problem, on_cpu(), [{**step, "block_k": 128} for step in self.steps], 8)


def said(fields: dict[str, Any]) -> str:
    """A problem's fields in a test's name."""
    told = ("tokens", "dtype", "scales", "gate_up")
    return " ".join(f"{name}={fields[name]}" for name in told if name in fields) or "plain"
