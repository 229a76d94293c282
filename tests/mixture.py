"""The tests that the mixtures of experts share; a workload's file is a table of what differs."""

from __future__ import annotations

import random
from typing import Any

import pytest
from every_mode import EveryModeTests, on_cpu

from autotune.machine import Machine, machine

FP8 = {"dtype": "fp8", "b_order": "nk"}


def sent(comm_programs: int, transfer_tokens: int, split: int, copy_kib: int) -> dict[str, int]:
    """A step's numbers of the programs that send."""
    return locals()


ROUTINGS: list[dict[str, Any]] = [{"routing": "uniform"}, {"routing": "zipf", "exponent": 1.2}]


class MixtureTests(EveryModeTests):
    """Each check calls with a plain routing, with one that leaves out a rank's tokens and single ids, and with one that
    sends every token to one expert.
    """

    calls = 3
    count = 4
    """Configs of a random problem."""
    local_experts = [1, 2, 5, 16]
    hidden = [64, 72, 256]
    gpu_hidden = [64, 72, 2048, 7168]

    def further(self, rng: random.Random, gpu: bool) -> dict[str, Any]:
        """Fields of a random problem that other mixtures lack."""
        return {}

    @pytest.mark.slow
    def test_random_problems_are_right_under_the_interpreter(self) -> None:
        here, rng = on_cpu(), random.Random(21)
        for _ in range(60):
            problem = self.drawn(rng, rng.choice([2, 2, 2, 3, 4]), gpu=False)
            self.check(problem, here, self.steps, self.count)

    @pytest.mark.gpu(2, each=True)
    @pytest.mark.parametrize("problems", [40, pytest.param(200, marks=pytest.mark.slow)])
    def test_random_problems_are_right_on_gpus(self, problems: int) -> None:
        here, rng = machine(), random.Random(22)
        for _ in range(problems):
            self.check(self.drawn(rng, here.gpus, gpu=True), here, [*self.steps, *self.gpu_steps], self.count)

    def drawn(self, rng: random.Random, world_size: int, *, gpu: bool) -> Any:
        """A random problem."""
        experts = rng.choice(self.local_experts) * world_size
        return self.problem(
            tokens=rng.choice([1, 3, 8, 17, 40]), hidden=rng.choice(self.gpu_hidden if gpu else self.hidden),
            experts=experts, top_k=rng.randint(1, min(8, experts)), dtype=rng.choice(["bf16", "fp32"]),
            world_size=world_size, **rng.choice(ROUTINGS), **self.further(rng, gpu),
        )  # fmt: skip

    def steps_of(self, problem: Any, steps: list[dict[str, int]]) -> list[dict[str, int]]:
        if getattr(problem, "scales", "") == "block" and steps is self.steps:
            return [{**step, "block_n": 128, "block_k": 128} for step in steps]
        return steps

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        if not (here.is_interpreter or problem.dtype == "bf16" or problem.row_scales):
            return self.modes - {"custom_collective"}  # the library has no such grouped GEMM on GPUs
        return self.modes

    @staticmethod
    def said(sizes: dict[str, Any]) -> str:
        told = ("tokens", "dtype", "scales", "gate_up")
        return " ".join(f"{name}={sizes[name]}" for name in told if name in sizes) or "plain"


class GroupedTests(MixtureTests):
    """The same of a mixture with a grouped GEMM."""

    fp8_sizes: dict[str, Any]
    fp8_forms: list[dict[str, Any]] = [{}]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        super().pytest_generate_tests(metafunc)
        if "form" in metafunc.fixturenames:
            metafunc.parametrize("form", self.fp8_forms, ids=self.said)

    @pytest.mark.slow
    @pytest.mark.parametrize("world_size", [1, 3])
    @pytest.mark.parametrize("scales", ["row", "block"])
    def test_fp8_is_right_in_every_form(self, world_size: int, scales: str, form: dict[str, Any]) -> None:
        sizes = {"tokens": 19, "experts": 2 * world_size, "top_k": 2, **self.fp8_sizes, **form, **FP8}
        problem = self.problem(**sizes, scales=scales, world_size=world_size)
        self.check(problem, on_cpu(), [{**step, "block_k": 128} for step in self.steps], 8)
