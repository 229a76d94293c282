"""Kernels are right on ranks whose atomics reach no peer's memory, as over PCIe; the spaces leave out the others."""

from __future__ import annotations

import dataclasses
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from every_mode import HEAP, ONCE, on_cpu, whole

from autotune.config import Config
from autotune.errors import GangError
from autotune.heap import device
from autotune.heap.loading import import_iris
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.machine import INTERPRETED
from autotune.outcome import Outcome
from autotune.ranks import evaluation
from autotune.ranks.gang import Gang
from autotune.ranks.protocol import Failed, MeasureBarrier
from autotune.task import Task
from autotune.workloads import names, workload
from autotune.workloads.built_in.all_reduce_norm import AllReduceNormWorkload

OVER_PCIE = dataclasses.replace(INTERPRETED, interconnect="pcie-peer")
GEMM = {"m": 32, "n": 64, "k": 64, "dtype": "fp16"}
EXPERTS = {"tokens": 5, "hidden": 64, "experts": 4, "top_k": 2, "dtype": "fp16"}
HEADS = {"batch": 1, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "kv_len": 32, "page_size": 16, "dtype": "fp16"}
LAUNCHES = ("protocol", "combine", "combine_site", "exchange")


def problem(name: str) -> Any:
    fields = {**GEMM, **EXPERTS, **HEADS, "width": 32, "world_size": 2}
    kind = workload(name).problem_type
    return kind(**{field.name: fields[field.name] for field in dataclasses.fields(kind) if field.name in fields})


def drawn(name: str, words: tuple[str, ...]) -> Iterator[Config]:
    """A config of each mode and of each combination of some words that the interpreter takes."""
    task, rng = Task(problem(name), INTERPRETED), random.Random(1)
    space = workload(name).space.narrowed(task)
    for mode in space.modes:
        dimensions = {d.name: d for d in space.dimensions_of(mode)}
        named = [name for name in words if name in dimensions and name != "mode"]
        for values in itertools.product(*(dimensions[each].values for each in named)):
            for _ in range(400):
                config = Config({name: rng.choice(d.values) for name, d in dimensions.items()} | {"mode": mode})
                config = config.replace(**dict(zip(named, values, strict=True)))
                config = config.replace(comm_programs=1) if "comm_programs" in config else config
                if space.violation(config, task) is None:
                    yield config
                    break


@pytest.fixture(scope="module", autouse=True)
def _briefly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(evaluation.LONGEST_STAGGER, "interpreter", 0.02)
        patch.setitem(evaluation.BURSTS, "interpreter", 1)
        yield


def refusing() -> Gang:
    on_cpu()
    first = workload(f"{__file__}:OverPcie")
    return Gang(first, Task(first.problem_type(m=2, n=64, world_size=2), OVER_PCIE), HEAP)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Gang]:
    with refusing() as shared:
        yield shared


@pytest.mark.parametrize("words", [("protocol",), whole(LAUNCHES)], ids=["few", "all"])
@pytest.mark.parametrize("name", names())
def test_what_is_left_is_right_without_them(name: str, words: tuple[str, ...], ranks: Gang) -> None:
    found, of = workload(name), problem(name)
    left = [config for config in drawn(name, words) if found.space.violation(config, Task(of, OVER_PCIE)) is None]
    assert found.default_config(Task(of, OVER_PCIE))["mode"] == "bsp" and any(each["mode"] == "bsp" for each in left)
    ranks.turn_to(found, of)
    for seed, config in enumerate(left):
        evaluated = ranks.evaluate(config, seed, ONCE)
        assert evaluated.outcome is Outcome.MEASURED, (config, evaluated.reason)
    assert not isinstance(ranks.turn(MeasureBarrier(1, 3)), Failed), "the barrier before a timed call"


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_what_is_refused_needs_them(name: str) -> None:
    found, of = workload(name), problem(name)
    for config in drawn(name, LAUNCHES):
        violation = found.space.violation(config, Task(of, OVER_PCIE))
        if violation is None:
            continue
        assert "signals arrive" in violation
        with refusing() as own, pytest.raises(GangError, match="on a peer.s memory"):
            own.turn_to(found, of)
            own.prove(config, 0, latency=0.0)


iris = import_iris()


def _values(of: Any) -> Any:
    return of.handle.data if hasattr(of, "handle") else np.asarray(of)


def at_home(function: Any, first_rank: int) -> Callable[..., Any]:
    """One of Iris' functions where the two ranks among its arguments are the same."""

    def called(*arguments: Any, mask: Any = None, **how: Any) -> Any:
        one, other = map(_values, arguments[first_rank : first_rank + 2])
        if np.any((one != other) & (True if mask is None else _values(mask))):
            raise RuntimeError(f"{function.fn.__name__} on a peer's memory")
        return function(*arguments, mask=mask, **how)

    return called


@dataclass(frozen=True, kw_only=True)
class OverPcieProblem(AllReduceNorm):
    workload = "over_pcie"


class OverPcie(AllReduceNormWorkload):
    """For ranks between whose GPUs only stores go, as over PCIe: where they begin with it, a kernel that adds to a
    peer's memory, or reads it, ends in an error, whatever workload comes next.
    """

    name, problem_type = "over_pcie", OverPcieProblem


if sys.argv[0].endswith("rank.py"):
    iris.atomic_add = at_home(iris.atomic_add, 2)
    iris.load = device.load = at_home(iris.load, 1)
