"""Every public function on problems of every kind: right in every mode, and its warm call costs the host little."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from calls import HEAP, Calls, configs, listed, url
from python_calls import python_calls
from ranks_of_functions import run_ranks
from torch._subclasses import FakeTensorMode
from two_ranks import EVERYWHERE, sampled

import autotune
from autotune.heap import open_heap
from autotune.kernels.launching.plan import Launch
from autotune.machine import INTERPRETED, machine
from autotune.problem import Problem
from autotune.runtime.call import OPERATORS
from autotune.runtime.host_overhead import PUBLIC, warm_call
from autotune.task import Task
from autotune.workloads import workload
from autotune.workloads.user_files import BUILT_IN

ELSEWHERE = {"bsp", "warp_specialized"}
"""Modes that not every problem here has: one is the library's, one is for sm_90 and large tiles."""

MOST_CALLS = 17
"""Python functions that a warm call enters, one more than today: each costs the host, before every launch."""


@pytest.mark.parametrize("ranks", sampled(EVERYWHERE))
def test_every_problem_is_right_in_every_mode(ranks: tuple[str, bool], tmp_path: Path) -> None:
    gpu, sample = ranks
    for found in run_ranks(__file__, "every_mode", 2, tmp_path, gpu=gpu, argument=(url(tmp_path), sample)):
        assert all(" " not in mode for modes in found.values() for mode in modes), found
        for name in BUILT_IN:
            seen = {mode for problem, modes in found.items() if problem.split()[0] == name for mode in modes}
            assert seen | ELSEWHERE == ELSEWHERE.union(workload(name).space.modes), name


@pytest.mark.parametrize("ranks", sampled(EVERYWHERE))
def test_every_problem_is_right_in_a_compiled_graph(ranks: tuple[str, bool], tmp_path: Path) -> None:
    gpu, sample = ranks
    for found in run_ranks(__file__, "in_graphs", 2, tmp_path, gpu=gpu, argument=(url(tmp_path), sample)):
        assert not any(found.values()), found


def test_the_host_overhead_is_the_operator_s_call_without_its_launches(tmp_path: Path) -> None:
    (found,) = run_ranks(__file__, "host_overheads", 1, tmp_path, seconds=270)
    assert {each.split()[0] for each in found} == set(BUILT_IN)
    for problem, of in found.items():
        assert of["made"] == of["wanted"], problem
        assert of["called"] == of["problem"], problem
        assert of["taken"] == 0 and of["calls"] <= MOST_CALLS, (problem, of)


def test_what_no_operator_takes_is_refused_by_its_name(tmp_path: Path) -> None:
    file = str(Path(__file__).with_name("refused_on_ranks.py"))
    assert run_ranks(file, "refused", 2, tmp_path, argument=url(tmp_path)) == [[], []]


FP8 = {"dtype": "fp8", "b_order": "nk"}
KINDS: dict[str, list[dict[str, Any]]] = {
    "all_gather_gemm": [
        {"in_place": True}, {"gathered": True}, {"gathered": True, "layout": "k", "b_order": "nk"},
        {"layout": "k", "bias": True}, {"epilogue": "swiglu", "b_order": "nk", "bias": True},
        {"epilogue": "geglu", "gate_up": "interleaved"}, {"n": 512, "epilogue": "swiglu", "quantised": True},
        {**FP8, "scales": "row", "out_dtype": "fp16", "bias": True}, {**FP8, "scales": "row", "in_place": True},
        {**FP8, "k": 256, "scales": "block", "epilogue": "swiglu"}, {**FP8, "k": 256, "scales": "block", "layout": "k"},
        {"out_dtype": "fp32", "bias": True},
    ],
    "gemm_reduce_scatter": [
        {"wire": "fp8"}, {"bias": True, "residual": True}, {**FP8, "k": 256, "scales": "block", "out_dtype": "fp32"},
        {"dtype": "fp16", "out_dtype": "fp32", "bias": True},
    ],
    "gemm_all_reduce": [
        {"deterministic": True, "bias": True, "residual": True}, {"wire": "fp8"},
        {**FP8, "scales": "tensor", "out_dtype": "fp16"}, {**FP8, "dtype": "fp8_e5m2", "scales": "row"},
    ],
    "all_reduce_norm": [{"in_place": True}, {"quantised": "block"}],
    "gemm_all_reduce_norm": [{"eps": 1e-5, "bias": True}, {"quantised": "row"}],
    "flash_decode": [
        {"result": "heads", "soft_cap": 30}, {"kv_dtype": "fp8", "kv_scales": "head"},
        {"kv_heads": 1, "rope": 32, "scale": 0.125, "kv_dtype": "fp8", "kv_scales": "tensor"},
    ],
    "moe_dispatch": [{"routing": "zipf", "exponent": 1.0}, {"dtype": "fp8", "scales": "row"}],
    "moe_dispatch_gemm": [
        {"epilogue": "swiglu_oai", "bias": True}, {"gate_up": "interleaved", "dtype": "fp8", "scales": "row"},
    ],
    "moe_combine": [{"deterministic": True}],
    "moe_gemm_combine": [{"bias": True}, {"dtype": "fp8", "scales": "row", "deterministic": True}],
}  # fmt: skip


def problems() -> Iterator[tuple[Problem, str]]:
    for name in sorted(PUBLIC):
        first = workload(name).default_problem(INTERPRETED, dist.get_world_size())
        for fields in ({}, *KINDS.get(name, [])):
            yield replace(first, **fields), f"{name} {fields}"


def every_mode(arguments: tuple[str, bool]) -> dict[str, list[str]]:
    """By problem the modes, with what is wrong. A sample has one mode of each problem, all of the default one."""
    url, sample = arguments
    found: dict[str, list[str]] = {}
    called_again: set[tuple[str, Any]] = set()
    with torch.no_grad(), autotune.Context(HEAP, url=url) as context:
        for seed, (problem, name) in enumerate(problems()):
            found[name] = []
            modes = configs(Task(problem, context.machine), but="")
            if sample and not name.endswith("{}"):
                modes = random.Random(name).sample(modes, 1)
            for config in modes:
                # Again with other operands, into given tensors: once of every operator, once in every mode.
                again = {(problem.workload, config["mode"]), (operator_of(problem), None)} - called_again
                wrong = wrong_with(context, problem, config, seed, bool(again))
                called_again |= again
                found[name].append(" ".join([str(config["mode"]), *wrong]))
                context.release()
        context.check()
    return found


def wrong_with(context: autotune.Context, problem: Any, config: Any, seed: int, again: bool) -> list[str]:
    calls = Calls(context, problem, config)
    operands = calls.copies(seed)
    given, function = calls.given(operands), calls.function
    results = listed(function(context, **given))
    wrong = ["wrong"] * (not calls.right(results))
    overwritten = {"x"} & operands.keys() if getattr(problem, "in_place", False) else set()
    kept = [same(x, operands[name]) for name, x in calls.operation.operands.items() if name not in overwritten]
    wrong += ["changes an operand"] * (not all(kept))
    if again and "out" in inspect.signature(function).parameters and not overwritten:
        calls.refresh(seed + 1)
        dist.barrier()
        for (name, x), argument in zip(calls.operation.operands.items(), operands.values(), strict=True):
            if x is not None and argument is not None:
                given.get(name, argument).copy_(x)  # other inputs at the same addresses
        outs = [torch.full_like(x.float(), -1).to(x.dtype) for x in results]
        second = listed(function(context, **given, out=outs[0] if len(outs) == 1 else tuple(outs)))
        wrong += ["other tensors"] * (not all(x is y for x, y in zip(second, outs, strict=True)))
        wrong += ["wrong in given ones"] * (not calls.right(outs))
    return wrong


def in_graphs(arguments: tuple[str, bool]) -> dict[str, str]:
    """By problem what is wrong with a compiled call, whose graph is whole. A sample has one of each operator."""
    url, sample = arguments
    found: dict[str, str] = {}
    checked: set[Any] = set()
    with torch.no_grad(), autotune.Context(HEAP, url=url) as context:
        for seed, (problem, name) in enumerate(problems()):
            first = operator_of(problem) not in checked
            checked.add(operator_of(problem))
            if sample and not first:
                continue
            torch._dynamo.reset()  # the calls share a code object
            calls = Calls(context, problem)
            operands = calls.copies(seed)
            given, function = calls.given(operands), functools.partial(calls.function, context)
            backend = "inductor" if context.heap.device.type == "cuda" else "aot_eager"
            outs: list[torch.Tensor] = []
            if first and "out" in inspect.signature(function).parameters:
                outs = [torch.zeros_like(x) for x in calls.operation.outputs()]

            def made(function: Any, given: dict[str, Any], outs: list[torch.Tensor]) -> Any:
                results = function(**given)
                if outs:
                    function(**given, out=outs[0] if len(outs) == 1 else tuple(outs))
                return results

            results = listed(torch.compile(made, backend=backend, fullgraph=True)(function, given, outs))
            wrong = ["wrong"] * (not calls.right(results))
            wrong += ["wrong in given ones"] * (bool(outs) and not calls.right(outs))
            options = [getattr(problem, option) for option in operator_of(problem).workload.options]
            arguments = (context.handle, *operands.values(), *options, "")
            wrong += ["traced as another"] * (forms(results) != forms(traced(operator_of(problem), arguments)))
            if first and not getattr(problem, "in_place", False):
                # The first check computes with what it gets, as nothing does with fp8.
                checks = ("test_schema", "test_faketensor", "test_autograd_registration")
                checks = checks[any(map(is_fp8, operands.values())) :]
                verdicts = torch.library.opcheck(
                    operator_of(problem).in_graphs, arguments, test_utils=checks, raise_exception=False
                )
                wrong += [f"{check}: {verdict}" for check, verdict in verdicts.items() if verdict != "SUCCESS"]
            found[name] = "; ".join(wrong)
            context.release()
    return found


def traced(operator: Any, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """What the compiler takes the results of a call for."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each for each in arguments]
        return listed(operator.in_graphs(*fakes))


def forms(tensors: list[torch.Tensor]) -> list[Any]:
    return [(each.shape, each.stride(), each.dtype, each.device) for each in tensors]


def is_fp8(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.is_floating_point() and tensor.element_size() == 1


def operator_of(problem: Any) -> Any:
    """The operator of torch that the problem's calls end in."""
    scaled = problem.workload == "moe_dispatch" and problem.scales != "none"
    further = {"_gathered": "gathered", "_quantised": "quantised"}
    endings = [ending for ending, field in further.items() if getattr(problem, field, "none") not in (False, "none")]
    return OPERATORS[problem.workload + "".join(endings) + "_scaled" * scaled]


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is None or other is None or torch.equal(one.float().nan_to_num(), other.float().nan_to_num())


def host_overheads(_: None) -> dict[str, Any]:
    """By problem: shapes of what its warm call returns, Python functions that it enters, bytes taken of the heap."""
    here, found = machine(), {}

    def launched(launch: Launch) -> None:
        raise AssertionError(f"{launch.kernel} was launched")

    Launch.run = launched  # type: ignore[method-assign]
    heap = open_heap(HEAP, dist.new_group(backend="gloo"))
    for problem, name in problems():
        mark, plugin = heap.mark(), workload(problem.workload)
        operation = plugin.operation(Task(problem, here), heap, 1 << 10)
        left = heap.left
        call: Any = warm_call(plugin, Task(problem, here), operation, heap)
        made = listed(call())
        # A result at an address that none had before is bound, which is one function more.
        calls = min(python_calls(call) for _ in range(30))
        found[name] = {
            "made": [[*each.shape, str(each.dtype)] for each in made], "calls": calls, "taken": left - heap.left,
            "called": str(next(iter(call.args[0].calls.values())).workspace.problem), "problem": str(problem),
            "wanted": [[*each.shape, str(each.dtype)] for each in operation.outputs()],
        }  # fmt: skip
        heap.release(mark)
    return found
