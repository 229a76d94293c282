"""A wait may give up, a result may not lie: every mode of every workload where a rank comes too late."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from every_mode import LIBRARY
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS, sampled

from autotune.agreement import Agreement
from autotune.config import Config
from autotune.heap import open_heap
from autotune.heap.alarm import RAISED, Alarm
from autotune.heap.patience import polls
from autotune.heap.status import tell_peers
from autotune.machine import machine
from autotune.task import Task
from autotune.workloads import Workload, names, workload


@pytest.fixture(scope="module", params=sampled(TWO_GPUS))
def missed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    gpu, sample = request.param
    folder = tmp_path_factory.mktemp("missed")
    return run_ranks(__file__, "found_after", 2, folder, gpu=gpu, argument=(names(), sample))


@pytest.mark.parametrize("name", names())
def test_results_of_calls_that_a_rank_misses_are_nan_on_all_ranks(name: str, missed: list[Any]) -> None:
    for rank, wrong in enumerate(each[name] for each in missed):
        assert wrong and not any(wrong.values()), (rank, {config: each for config, each in wrong.items() if each})


@pytest.mark.gpu(2)
@pytest.mark.parametrize("name", names())
def test_a_late_rank_waits_for_no_kernel_that_another_loads(name: str, tmp_path: Path) -> None:
    """To load one the driver may wait for all that runs on the GPU, and ours run until their peers come."""
    for rank, wrong in enumerate(run_ranks(__file__, "first_calls", 2, tmp_path, gpu=True, argument=name, seconds=300)):
        assert wrong == {}, rank


CALLS = 3
"""The third is the first to write where the first one's late peer may still read."""


def found_after(arguments: tuple[list[str], bool]) -> dict[str, dict[str, list[str]]]:
    """By workload, of all or of a sample of its configs, what ``of_missed`` finds."""
    names, sample = arguments
    agreement = Agreement.among()
    return {name: of_missed(agreement, name, sample) for name in names}


def of_missed(agreement: Agreement, name: str, sample: bool) -> dict[str, list[str]]:
    """By config what is wrong with the results of calls that rank 0 makes while the others wait, and then they."""
    heap = open_heap(32 << 20, agreement.group)
    alarm = Alarm(agreement, heap)
    found, here = workload(name), machine()
    problem: Any = found.default_problem(here, heap.world_size)
    if here.is_interpreter:
        sizes = {each: value // 2 for each, value in problem.as_dict().items() if each in ("m", "n", "k", "kv_len")}
        problem = dataclasses.replace(problem, **sizes)
    operation: Any = found.operation(
        Task(problem, here), heap, polls(0.003 if here.is_interpreter else 0.05, interpreted=here.is_interpreter)
    )
    wrong: dict[str, list[str]] = {}
    configs = one_of_each_protocol(found, problem)
    for config in each_word(configs) if sample else configs:
        run = operation.prepare(config)
        status = operation._setup._status
        tell_peers(status, heap, alarm.address)
        operation.refresh(0)
        outputs = [each for each in operation.outputs() if each.dtype.is_floating_point]
        heap.barrier()
        faults = wrong.setdefault(config.to_json(), [])
        for turn in range(heap.world_size):
            if turn == heap.rank:
                for call in range(CALLS):
                    outputs[0].zero_()
                    run()
                    finite = int((~outputs[0].float().isnan()).sum())
                    if finite:
                        faults.append(f"call {call} of rank {turn}: {finite} of {outputs[0].numel()} are no NaN")
            heap.barrier()
        if not status[0] or not alarm.words[RAISED]:
            faults.append("the rank or its host was not told")
        heap.barrier()
        alarm.reset()
    heap.close()
    return wrong


COLD = (
    "log_normal_", "cauchy_", "exponential_", "bernoulli_", "erfinv", "lgamma", "digamma", "i0", "sinc", "logit",
    "asinh", "acosh", "atanh", "expm1", "log1p", "erfc", "trunc", "frac", "rsqrt", "tan", "cosh", "angle", "sgn",
)  # fmt: skip
"""Operations of torch, each a kernel of its own, the random ones first; nothing else here launches them."""


def first_calls(name: str) -> dict[str, str]:
    """By config what is wrong with its first call, for which a rank comes late while the other loads a kernel."""
    agreement, found, here = Agreement.among(), workload(name), machine()
    problem: Any = found.default_problem(here, 2)
    heap = open_heap(max(64 << 20, found.heap_bytes(problem)), agreement.group)
    task, cold = Task(problem, here), iter(COLD)
    operation: Any = found.operation(task, heap, polls(20.0, interpreted=here.is_interpreter))
    numbers, wrong = torch.rand(1000, device=heap.device), {}
    for number, config in enumerate(each_word(one_of_each_protocol(found, problem))):
        if not here.is_interpreter:
            found.compile(task, config)  # which loads nothing
        run = operation.prepare(config)
        operation.refresh(number)
        kernel = getattr(numbers, next(cold, "neg"))
        heap.barrier()
        if heap.rank == number % 2:
            time.sleep(0.3)
        run()
        if heap.rank != number % 2:
            kernel()
        heap.barrier()
        error, allowed = operation.error(), found.tolerance_of(task, config)
        if operation.timed_out() or not (error.overall <= allowed.overall and error.element <= allowed.element):
            wrong[config.to_json()] = f"{error}, timed out: {operation.timed_out()}"
    heap.close()
    return wrong


WORDS = ("protocol", "exchange", "delivery", "copies", "reducer", "push_site", "combine")


def one_of_each_protocol(found: Workload, problem: Any) -> Iterator[Config]:
    """First configs with each of their modes' WORDS, one for each combination of them."""
    seen, here = set(), machine()
    for config in found.first_configs(Task(problem, here)):
        if config["mode"] in LIBRARY:
            continue
        words = [d for d in found.space.dimensions_of(config["mode"]) if d.name in WORDS]
        for word, value in [("mode", config["mode"]), *((d.name, value) for d in words for value in d.values)]:
            other = config.replace(**{word: value})
            key = tuple(other.get(name) for name in ("mode", *WORDS))
            if key not in seen and found.space.violation(other, Task(problem, here)) is None:
                seen.add(key)
                yield other


def each_word(configs: Iterable[Config]) -> Iterator[Config]:
    """As few of them as have each mode with each of its WORDS."""
    words = {config: {(config["mode"], name, config.get(name)) for name in ("mode", *WORDS)} for config in configs}
    while any(words.values()):
        most = max(words, key=lambda config: len(words[config]))
        yield most
        had = words[most]
        words = {config: left - had for config, left in words.items()}
