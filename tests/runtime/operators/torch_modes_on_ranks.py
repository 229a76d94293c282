"""Functions that the tests of torch's modes run on every rank."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from calls import HEAP, call, configs, drawn, error, problems, said
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import autotune
from autotune.task import Task


def some(task: Task[Any]) -> list[autotune.Config]:
    """Interpreted two modes: what is tried here comes before a mode's own code."""
    every = configs(task)
    return random.Random(str(task.problem)).sample(every, 2) if task.machine.is_interpreter else every


def everything(url: str) -> dict[str, Any]:
    functions = (inference_mode, default_device, current_device, tangents, dispatched, negated, negated_parts)
    return {function.__name__: function(url) for function in functions}


def inference_mode(url: str) -> dict[str, float]:
    """The worst errors of calls in inference mode, then outside of it, on the same tensors and on others."""
    worst: dict[str, float] = {}
    for within in (True, False):
        with torch.inference_mode(within):
            context = autotune.Context(HEAP, url=url)
        with context:
            for problem in problems(context.heap.device)[: 1 if within else 4]:
                operands, reference = drawn(problem, 1, context.heap.device)
                others, of_others = drawn(problem, 2, context.heap.device)
                for config in some(Task(problem, context.machine)):
                    with torch.inference_mode():
                        first = call(context, problem, operands, config=config)
                    again = call(context, problem, operands, config=config)
                    elsewhere = call(context, problem, others, config=config)
                    name = f"{problem.workload} {config['mode']}"
                    errors = error(first, reference), error(again, reference), error(elsewhere, of_others)
                    worst[name] = max(worst.get(name, 0.0), *errors)
            context.check()
    return worst


def default_device(url: str) -> dict[str, float]:
    """The errors of calls where tensors have no memory unless a device is named."""
    errors: dict[str, float] = {}
    with torch.device("meta"), autotune.Context(HEAP, url=url) as context:
        for problem in problems(context.heap.device)[2:4]:
            with torch.device("cpu"):  # where the generator draws
                operands, reference = drawn(problem, 1, context.heap.device)
            for config in some(Task(problem, context.machine)):
                out = call(context, problem, operands, config=config)
                errors[f"{problem.workload} {config['mode']}"] = error(out, reference)
        context.release()
    return errors


def current_device(url: str) -> dict[str, float]:
    """The errors of a thread's calls, first ones and later ones, while its current GPU is another one."""
    errors: dict[str, float] = {}

    def calls() -> None:
        if context.heap.device.type == "cuda":
            torch.cuda.set_device((context.heap.device.index + 1) % torch.cuda.device_count())
        for problem in problems(context.heap.device)[: 4 if context.heap.device.type == "cuda" else 1]:
            operands, reference = drawn(problem, 1, context.heap.device)
            for config in configs(Task(problem, context.machine)):
                for turn in range(4 if context.heap.device.type == "cuda" else 1):  # direct, captured, replayed
                    out = call(context, problem, operands, config=config)
                    errors[f"{problem.workload} {config['mode']} {turn}"] = error(out, reference)
        context.check()

    with autotune.Context(HEAP, url=url) as context, ThreadPoolExecutor(1) as pool:
        pool.submit(calls).result()
    return errors


def tangents(url: str) -> dict[str, bool]:
    """True for calls through which forward-mode AD would have to go, if refused; and for those without, if not."""
    found = {}
    with autotune.Context(HEAP, url=url) as context:
        a, b = torch.ones(8, 32, device=context.heap.device), torch.ones(32, 32, device=context.heap.device)
        calls = {
            "GEMM": lambda x: autotune.gemm_all_reduce(context, x, b),
            "norm": lambda x: autotune.all_reduce_norm(context, x, x, b[0])[0],
        }
        for name, each in calls.items():
            each(a)
            found[f"{name} jvp"] = refused(lambda each=each: torch.func.jvp(each, (a,), (a,)))
            with forward_ad.dual_level():
                found[f"{name} dual"] = refused(lambda each=each: each(forward_ad.make_dual(a, a)))
                found[f"{name} without"] = not refused(lambda each=each: each(a))
    return found


def refused(call: Any) -> bool:
    told = said(call)
    assert told == "no error" or told.startswith("InvalidProblem"), told
    return told != "no error"


def dispatched(url: str) -> dict[str, bool]:
    """True for calls in ``torch.func``'s transforms, in a traced graph and without memory, if right."""
    with autotune.Context(HEAP, url=url) as context:
        device, ranks = context.heap.device, context.heap.world_size
        a = torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(0)).to(device)
        b = torch.eye(32, device=device)

        def sums(a: torch.Tensor) -> torch.Tensor:
            return autotune.gemm_all_reduce(context, a, b)

        def norms(a: torch.Tensor) -> torch.Tensor:
            return autotune.all_reduce_norm(context, a, a, b[0])[1]

        found: dict[str, bool] = {}
        for name, call, factor in (("sums", sums, ranks), ("norms", norms, ranks + 1)):
            traced = make_fx(call)(a[0])
            made = {"vmap": torch.func.vmap(call)(a), "functionalize": torch.func.functionalize(call)(a[0])[None],
                "traced": traced(a[1])[None], "plain": call(a[1])[None]}  # fmt: skip
            wanted = {"vmap": a, "functionalize": a[:1]}
            for way, result in made.items():
                found[f"{name} {way}"] = error(result, factor * wanted.get(way, a[1:])) < 1e-5
        layer = autotune.nn.RowParallelLinear.from_shard(torch.nn.Linear(32, 8).to(device), context)
        with torch.no_grad():
            found["layer"] = error(torch.func.vmap(layer)(a), layer(a)) < 1e-5
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(a), mode.from_tensor(b)
            found["fake"] = autotune.gemm_all_reduce(context, *fake).shape == a.shape
        return found


def negated(url: str) -> dict[str, float]:
    """The worst errors where operands lie in memory with the other sign, in turns with that memory as it is."""
    worst: dict[str, float] = {}
    with autotune.Context(HEAP, url=url) as context:
        for problem in problems(context.heap.device)[:4]:
            operands, reference = drawn(problem, 1, context.heap.device)
            numbers = [x for x in operands if x is not None and x.is_floating_point()]
            views = tuple(torch._neg_view(x) if any(x is number for number in numbers) else x for x in operands)
            for config in some(Task(problem, context.machine)):
                name = f"{problem.workload} {config['mode']}"
                for given in (views, operands, views):
                    for x in numbers if given is views else ():
                        x.neg_()
                    worst[name] = max(
                        worst.get(name, 0.0), error(call(context, problem, given, config=config), reference)
                    )
                    for x in numbers if given is views else ():
                        x.neg_()
    return worst


def negated_parts(url: str) -> dict[str, Any]:
    """The errors of calls with such operands that are parts of larger tensors; True if such an ``out`` is refused."""
    with autotune.Context(HEAP, url=url) as context:
        alike = torch.Generator().manual_seed(0)  # a GPU's own generator begins anywhere, on each rank elsewhere
        whole = torch.rand(40, 72, generator=alike).to(context.heap.device)
        a, b = torch._neg_view(whole)[:8, :32], torch._neg_view(whole)[:32, 8:48]
        called = {"both": (a, b), "columns": (a, torch._neg_view(whole).t()[:32]), "one": (whole[:8, :32], b)}
        found: dict[str, Any] = {
            name: error(autotune.gemm_all_reduce(context, *each), each[0] @ each[1] * context.heap.world_size)
            for name, each in called.items()
        }
        weights = whole[:32, :16], torch._neg_view(whole)[:32, 16:32]
        found["no matrix of two"] = refused(lambda: autotune.all_gather_gemm_several(context, a, weights))
        found["out"] = refused(lambda: autotune.gemm_all_reduce(context, a, b, out=torch._neg_view(a @ b)))
    return found
