"""Functions that the operators' tests run on every rank."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from calls import HEAP, call, configs, drawn, error, problems, said
from torch.utils.flop_counter import FlopCounterMode

import autotune
from autotune.heap.patience import polls
from autotune.task import Task


def every_mode(url: str) -> dict[str, float]:
    """The worst error of each operator and mode, called in turns, three times each, ranks out of step."""
    worst: dict[str, float] = {}
    with warnings.catch_warnings(), autotune.Context(HEAP, url=url) as context:
        warnings.simplefilter("error", FutureWarning)
        device = context.heap.device
        rounds = itertools.zip_longest(*(
            [(problem, config) for config in [None, *configs(Task(problem, context.machine))]]
            for problem in problems(device)
        ))  # fmt: skip
        for number, calls in enumerate(rounds):
            calls = [pair for pair in calls if pair is not None]
            results, left = [], 0
            for step in range(3):
                if step % dist.get_world_size() == dist.get_rank():
                    time.sleep(0.02)
                for problem, config in calls:
                    operands, reference = drawn(problem, 10 * number + step, device)
                    out = torch.full_like(reference, float("nan"), dtype=operands[0].dtype) if step % 2 else None
                    result = call(context, problem, operands, out=out, config=config)
                    assert out is None or result is out
                    mode = "looked up" if config is None else config["mode"]
                    results.append((f"{problem.workload} {mode}", result, reference))
                left = context.heap.left if step == 0 else left
            assert context.heap.left == left, "a later call took more of the heap"
            for name, result, reference in results:
                worst[name] = max(worst.get(name, 0.0), error(result, reference))
        context.check()
    return worst


def shards_anywhere(url: str) -> dict[str, float]:
    """The errors of modes in which peers read A, which lies on one rank here, on another there."""
    errors = {}
    with autotune.Context(HEAP, url=url) as context:
        device, rank = context.heap.device, dist.get_rank()
        problem = problems(device)[0]
        for config in configs(Task(problem, context.machine)):
            operands, reference = drawn(problem, 5, device)
            a = operands[0]
            elsewhere = context.heap.allocate((2, *a.shape), a.dtype)[rank % 2].copy_(a)
            for name, shard in {"elsewhere": elsewhere, "one of each": (elsewhere, a)[rank % 2]}.items():
                out = call(context, problem, (shard, *operands[1:]), config=config)
                errors[f"{config['mode']} {name}"] = error(out, reference)
            in_place = dataclasses.replace(problem, in_place=True)
            ours = autotune.all_gather_shard(context, in_place, config=config).copy_(a)
            out = call(context, in_place, (ours, *operands[1:]), config=config)
            errors[f"{config['mode']} in place"] = error(out, reference)
    return errors


def whole_caps(url: str) -> list[bool]:
    """True if a soft cap gives the same written with a point, as models' configs have it, and so in a graph."""
    with autotune.Context(HEAP, url=url) as context:
        operands, _ = drawn(problems(context.heap.device)[2], 5, context.heap.device)
        expected, *others = (autotune.flash_decode(context, *operands, soft_cap=cap) for cap in (3, 3.0, np.int64(3)))
        with FlopCounterMode(display=False):
            others.append(autotune.flash_decode(context, *operands, soft_cap=3.0))
        return [torch.equal(expected, other) for other in others]


def grown(url: str) -> list[float]:
    """Errors of a compiled function whose sizes and context change; then a closed context's graph is refused."""
    function = torch.compile(
        lambda context, a, b: autotune.gemm_reduce_scatter(context, a + 0, b), backend="aot_eager", fullgraph=True
    )
    errors, ranks = [], dist.get_world_size()
    for _ in range(2):
        with autotune.Context(HEAP, url=url) as context:
            for factor in (1, 2, 4):
                problem = autotune.GemmReduceScatter(m=8 * factor * ranks, n=32, k=32 * ranks, world_size=ranks)
                (a, b, _), reference = drawn(problem, factor, context.heap.device)
                errors.append(error(function(context, a, b), reference))
    operator = torch.ops.iris_autotune.gemm_all_reduce.default
    closed = said(lambda: operator(context.handle, a, b, None, None, None, None, False, "auto", False, "auto", ""))
    assert closed.startswith("InputError"), closed
    return errors


def disagreements(url: str) -> dict[str, str]:
    """Every rank's errors if the ranks do different things, or all do something impossible; nobody hangs."""
    bf16, rank = torch.bfloat16, dist.get_rank()
    opening = said(lambda: autotune.Context(1 << 20, url=url, regime="eager" if rank else "graph"))
    sizes = said(lambda: autotune.Context((1 + rank) << 20, url=url))
    with autotune.Context(1 << 20, url=url) as context:
        a, b = torch.ones(16, 32, dtype=bf16), torch.ones(64, 32, dtype=bf16).t()
        reduce = autotune.gemm_all_reduce
        attempts = {
            "config": lambda: reduce(context, a, b, config=autotune.Config({"mode": "teleport"})),
            "problem": lambda: reduce(context, a, b[:, : 8 * (1 + rank)].contiguous()),
            "no rows on one": lambda: reduce(context, a[:rank], b[:, :8].contiguous()),
            "operator": lambda: (reduce if rank else autotune.gemm_reduce_scatter)(context, a, b[:, :8].contiguous()),
            "heap": lambda: reduce(context, torch.zeros(1024, 32, dtype=bf16), torch.zeros(32, 2048, dtype=bf16)),
        }
        left = context.heap.left
        found = {name: said(attempt) for name, attempt in attempts.items()}
        found |= {"left": str(context.heap.left == left), "opening": opening, "sizes": sizes}
    found["closed"] = said(lambda: reduce(context, a, b))
    context.close()  # once more does nothing
    return found


def missed(url: str) -> dict[str, str]:
    """A call that the last rank never makes: how the others learn of it, and how all go on."""
    found = {}
    with autotune.Context(HEAP, url=url) as context:
        problem = problems(context.heap.device)[3]
        operands, reference = drawn(problem, 1, context.heap.device)
        config = next(c for c in configs(Task(problem, context.machine)) if c["mode"] == "one_shot")
        last = dist.get_rank() == dist.get_world_size() - 1
        patience = context.spin_limit
        # A workspace's is that of its making.
        context.spin_limit = polls(1, interpreted=context.machine.is_interpreter)
        for _ in range(2):
            call(context, problem, operands, config=config)
        context.check()
        operands, reference = drawn(problem, 2, context.heap.device)  # at other addresses, so bound anew
        found["call"] = "none" if last else said(lambda: call(context, problem, operands, config=config))
        if not last:
            found["check"] = said(context.check)
        dist.barrier()
        if last:
            found["check"] = said(context.check)
        found["next call"] = said(lambda: call(context, problem, operands, config=config))
        first = problems(context.heap.device)[0]
        found["first call of another operator"] = said(
            lambda: call(context, first, drawn(first, 1, context.heap.device)[0])
        )
        context.spin_limit = patience
        context.release()
        found["later check"] = said(context.check)
        results = [call(context, problem, operands, config=config) for _ in range(3)]
        found["right"] = str(all(error(out, reference) < 1.2e-2 for out in results))
    return found


def missed_by_a_host(url: str) -> dict[str, str]:
    """``missed``, where each rank counts as on a host of its own."""
    os.environ["GROUP_RANK"] = str(dist.get_rank())
    return missed(url)


def missed_in(how: str, url: str) -> dict[str, Any]:
    """A backward or a captured graph that the last rank comes to too late: what the ranks get, then and afterwards."""
    with autotune.Context(HEAP, url=url) as context:
        device, ranks = context.heap.device, dist.get_world_size()
        context.spin_limit = polls(1, interpreted=context.machine.is_interpreter)
        a = torch.ones(16, 32 * ranks, device=device, requires_grad=how == "backward")
        b = torch.ones(32 * ranks, 16, device=device)

        def forward() -> torch.Tensor:
            return autotune.all_gather_gemm(context, a, b)

        for _ in range(2):
            (forward().sum().backward if how == "backward" else forward)()
        a.grad = None
        if how == "captured":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = forward()
            rest: Callable[[], Any] = graph.replay
        else:
            result, rest = a, forward().sum().backward
        context.check()
        if dist.get_rank() == ranks - 1:
            time.sleep(4)
        found = {"rest": said(rest)}
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        left = result.grad if how == "backward" else result
        found["numbers"] = str(left is not None and bool((~left.isnan()).any()))
        dist.barrier()
        found["next call"] = said(lambda: autotune.gemm_all_reduce(context, b, b.t()))
        found["check"] = said(context.check)
        dist.barrier()
        context.release()
        with torch.no_grad():
            found["right"] = str(bool((forward() == 32 * ranks).all()))
    return found


def missed_backward(url: str) -> dict[str, Any]:
    return missed_in("backward", url)


def missed_graph(url: str) -> dict[str, Any]:
    return missed_in("captured", url)


def threads_in_turns(url: str) -> dict[str, Any]:
    """Errors of calls that three threads of each rank make in a fixed order, while three more look up."""
    with autotune.Context(HEAP, url=url) as context:
        here = problems(context.heap.device)[:4]
        turn = threading.Condition()
        errors: list[float] = []

        def worker(own: int) -> None:
            for number in range(own, 8, 3):
                problem = here[number % len(here)]
                operands, reference = drawn(problem, number, context.heap.device)
                with turn:
                    turn.wait_for(lambda mine=number: len(errors) == mine)
                    errors.append(error(call(context, problem, operands), reference))
                    turn.notify_all()

        def looker() -> set[Any]:
            found = set()
            for _ in range(100):
                found |= {autotune.lookup(problem.workload, problem, url=url).config for problem in here}
            return found

        with ThreadPoolExecutor(6) as pool:
            lookers = [pool.submit(looker) for _ in range(3)]
            for future in [pool.submit(worker, own) for own in range(3)]:
                future.result()
            found = [future.result() for future in lookers]
        chosen = {context.choose(problem).config for problem in here}
    return {"errors": errors, "same configs": all(configs == chosen for configs in found)}


def threads_at_once(url: str) -> list[float]:
    """The worst errors of a single rank's calls by threads in no order at all: each is made as a whole."""
    with autotune.Context(HEAP, url=url) as context:
        here = [problem for problem in problems(context.heap.device) if problem.workload != "flash_decode"]

        def worker(own: int) -> float:
            pairs = [(problem, *drawn(problem, own, context.heap.device)) for problem in here]
            return max(error(call(context, problem, operands), reference) for problem, operands, reference in pairs)

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(worker, range(4)))


def memory_is_free(url: str) -> list[bool]:
    """True if a call's tensors are freed once their caller has dropped them."""
    with autotune.Context(HEAP, url=url) as context:
        array = np.ones((8, 32), dtype=np.float32)
        alive = weakref.ref(array)
        autotune.gemm_all_reduce(context, torch.from_numpy(array), torch.ones(32, 16))
        before = alive() is not None
        del array
        gc.collect()
        return [before and alive() is None]


def rows_of_a_matrix(url: str) -> list[float]:
    """Errors where A is one row of a matrix, with a stride that no descriptor takes, loaded by descriptors."""
    with autotune.Context(HEAP, url=url) as context:
        problem = autotune.GemmAllReduce(m=1, n=32, k=32, world_size=1)
        errors = []
        for config in (c.replace(loads="tma") for c in configs(Task(problem, context.machine)) if "loads" in c):
            (a, b, _), reference = drawn(problem, 3, context.heap.device)
            row = torch.zeros(2, 33, dtype=a.dtype)[:1, :32].copy_(a)
            assert row.stride() == (33, 1)
            errors.append(error(call(context, problem, (row, b, None), config=config), reference))
    return errors


def replayed(arguments: tuple[str, str]) -> dict[str, float]:
    """The worst error of each mode of an operator over a thousand replays of a captured call with changing inputs."""
    url, name = arguments
    worst: dict[str, float] = {}
    with autotune.Context(HEAP, url=url) as context:
        device = context.heap.device
        for problem in (problem for problem in problems(device) if problem.workload == name):
            inputs = [drawn(problem, seed, device) for seed in range(8)]
            for config in [None, *configs(Task(problem, context.machine))]:
                operands = tuple(None if tensor is None else tensor.clone() for tensor in inputs[0][0])
                if config is None:
                    with torch.cuda.graph(torch.cuda.CUDAGraph()):
                        refused = said(lambda problem=problem, operands=operands: call(context, problem, operands))
                    assert refused.startswith("InputError: first call of"), refused
                call(context, problem, operands, config=config)  # makes the workspace, compiles
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = call(context, problem, operands, config=config)
                errors = torch.zeros(1000, device=device)
                for turn in range(1000):
                    fresh, reference = inputs[turn % len(inputs)]
                    for tensor, source in zip(operands, fresh, strict=True):
                        if tensor is not None:
                            tensor.copy_(source)
                    out.fill_(float("nan"))
                    graph.replay()
                    errors[turn] = (out.float() - reference).norm() / reference.norm()
                context.check()
                mode = f"{name} {'looked up' if config is None else config['mode']}"
                worst[mode] = max(worst.get(mode, 0.0), float(errors.nan_to_num(nan=float("inf")).max()))
    return worst


def on_streams(url: str) -> dict[str, float]:
    """The worst errors where each call is on another stream, in the other of two contexts; streams are late in turn."""
    worst: dict[str, float] = {}
    with autotune.Context(HEAP, url=url) as one, autotune.Context(HEAP, url=url) as other:
        device = one.heap.device
        streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()]
        inputs = [(problem, *drawn(problem, seed, device)) for seed in range(4) for problem in problems(device)]
        torch.cuda.synchronize()
        results = []
        for number, (problem, operands, reference) in enumerate(inputs * 3):
            with torch.cuda.stream(streams[number % len(streams)]):
                if number % one.heap.world_size == one.heap.rank:
                    torch.cuda._sleep(2_000_000)  # a millisecond
                results.append((problem.workload, call((one, other)[number % 2], problem, operands), reference))
        torch.cuda.synchronize()
        for name, result, reference in results:
            worst[name] = max(worst.get(name, 0.0), error(result, reference))
        one.check()
        other.check()
    return worst
