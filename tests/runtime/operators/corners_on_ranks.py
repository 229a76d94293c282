"""Functions that the tests of the operators' corners run on every rank."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import subprocess
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from calls import HEAP, call, configs, drawn, error, problems, said, store_winner
from ranks_of_functions import held, warnings_told
from triton.runtime.errors import OutOfResources

import autotune
from autotune.errors import AutotuneError, GangError
from autotune.heap import open_heap
from autotune.heap.patience import polls
from autotune.kernels.launching import scratch
from autotune.machine import machine as this_machine
from autotune.runtime.lookup import forget_lookups
from autotune.task import Task
from autotune.workloads import workload

STALE = 0x0000_0001_0000_0001
"""As int32 a counter that has been signalled once, as int64 a word for the first launch."""


def used_memory(url: str) -> dict[str, float]:
    """Errors of first calls on memory that holds what such kernels wait for; the last rank comes late."""
    errors = {}
    with autotune.Context(HEAP, url=url) as context:
        for problem in problems(context.heap.device)[:4]:
            plugin = workload(problem.workload)
            ways = {
                (c["mode"], c.get("protocol")): c
                for c in reversed(plugin.first_configs(Task(problem, context.machine)))
            }
            for number, config in enumerate(ways.values()):
                if config["mode"] == "bsp":
                    continue
                context.heap.arena[context.heap.mark() :].view(torch.int64).fill_(STALE)
                dist.barrier()
                operands, reference = drawn(problem, number, context.heap.device)
                here, operands = in_place(context, problem, config, operands)
                if dist.get_rank() == dist.get_world_size() - 1:
                    time.sleep(0.05)
                words = config.get("protocol", "")
                with contextlib.suppress(OutOfResources):  # a search would drop such a config unrun
                    out = call(context, here, operands, config=config)
                    errors[f"{problem.workload} {config['mode']} {words} {number}"] = error(out, reference)
                    context.check()
                context.release()
    assert any("ll" in name for name in errors)
    return errors


def in_place(context: autotune.Context, problem: Any, config: Any, operands: Any) -> tuple[Any, Any]:
    """A call with A in place: the workspace is there before a late rank is late."""
    if problem.workload != "all_gather_gemm":
        return problem, operands
    problem = dataclasses.replace(problem, in_place=True)
    a = autotune.all_gather_shard(context, problem, config=config).copy_(operands[0])
    return problem, (a, *operands[1:])


def words_after_release(url: str) -> dict[str, float]:
    """Errors of flash decode by protocol, each call the first after a release, with other inputs; also by heads."""
    errors = {}
    with autotune.Context(HEAP, url=url) as context:
        problem = problems(context.heap.device)[2]
        for protocol in ("signal", "ll", "sentinel"):
            for seed in range(2):
                here = dataclasses.replace(problem, batch=2 - seed, result=("replicated", "heads")[seed])
                default = workload("flash_decode").default_config(Task(here, context.machine))
                operands, reference = drawn(here, seed, context.heap.device)
                if dist.get_rank() == 1:
                    time.sleep(0.03)
                out = call(context, here, operands, config=default.replace(protocol=protocol))
                errors[f"{protocol} {seed}"] = error(out, reference)
                context.release()
    return errors


def one_ranks_errors(url: str) -> dict[str, str]:
    """By mode: every rank's error where the last one has no memory for a first call; then the call is right."""
    bf16, last = torch.bfloat16, dist.get_rank() == dist.get_world_size() - 1
    found = {}
    with autotune.Context(HEAP, url=url) as context:
        device = context.heap.device
        a, b = torch.ones(8, 32, dtype=bf16, device=device), torch.ones(32, 16, dtype=bf16, device=device)
        for problem in problems(device)[:4]:
            operands, reference = drawn(problem, 1, device)
            for config in configs(Task(problem, context.machine)):
                name = f"{problem.workload} {config['mode']}"
                if config["mode"] == "bsp":
                    continue
                context.release()  # another config's memory would do
                mark = context.heap.left
                with out_of_memory(last):
                    try:
                        call(context, problem, operands, config=config)
                    except torch.OutOfMemoryError as told:
                        found[name] = str(told)
                assert context.heap.left == mark, name
                assert error(call(context, problem, operands, config=config), reference) < 1.2e-2, name
        context.check()
        right = autotune.gemm_all_reduce(context, a, b)
        found["right"] = str(bool((right == 32 * dist.get_world_size()).all()))
    return found


def interrupted_alone(url: str) -> list[str]:
    """Every rank's errors where Ctrl-C interrupts the last one's first call; at the next call; in another context."""
    last, found = dist.get_rank() == dist.get_world_size() - 1, []

    def calls(context: autotune.Context, here: bool) -> str:
        a, b = torch.ones(8, 32, device=context.heap.device), torch.ones(32, 16, device=context.heap.device)
        problem = autotune.GemmAllReduce(m=8, n=16, k=32, dtype="fp32", world_size=dist.get_world_size())
        config = next(c for c in configs(Task(problem, context.machine)) if c["mode"] == "two_shot")
        with out_of_memory(here, KeyboardInterrupt):
            return str(float(autotune.gemm_all_reduce(context, a, b, config=config).mean()))

    for here in (last, False):
        with contextlib.suppress(GangError), autotune.Context(HEAP, url=url) as context:
            for _ in range(2):
                try:
                    found.append(calls(context, here))
                except (KeyboardInterrupt, GangError) as error:
                    found.append(f"{type(error).__name__}: {error}")
                here = False
            dist.barrier()  # the others do not wait for the end of the context
    return found


def out_of_memory(here: bool, kind: type[BaseException] = torch.OutOfMemoryError) -> Any:
    """Within it this rank gets no ordinary memory for a scratch, but an error of that kind."""
    planted = mock.Mock(side_effect=kind("out of memory: planted"))
    return mock.patch.object(scratch, "zeros", planted) if here else contextlib.nullcontext()


def written(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with autotune.Context(HEAP, url=url) as context:
        device = context.heap.device
        a, b = torch.ones(8, 32, device=device), torch.ones(32, 16, device=device)
        factor = torch.ones(a.shape[0], b.shape[1], dtype=a.dtype, device=device)
        x = torch.ones_like(factor, requires_grad=True)
        product = x * factor  # whose backward needs the factor as it is now
        before = factor._version
        autotune.gemm_all_reduce(context, a, b, out=factor)
        found["version"] = factor._version - before
        try:
            product.sum().backward()
            found["backward"] = "no error"
        except RuntimeError as told:
            found["backward"] = str(told)
    return found


def overlaps(url: str) -> dict[str, str]:
    """The errors of an ``out`` that shares memory with another tensor, wholly or in part, first and later."""
    found = {}
    with autotune.Context(HEAP, url=url) as context:
        device, ranks = context.heap.device, dist.get_world_size()
        memory = torch.ones(3 * 64 * 64, device=device)
        a, b = memory[: 64 * 64].view(64, 64), torch.ones(64, 64, device=device)
        partly, beside = memory[16 : 16 + 64 * 64].view(64, 64), memory[64 * 64 : 2 * 64 * 64].view(64, 64)
        for turn in ("first", "later"):
            found[f"{turn} same"] = said(lambda: autotune.gemm_all_reduce(context, a, b, out=a))
            found[f"{turn} part"] = said(lambda: autotune.gemm_all_reduce(context, a, b, out=partly))
            found[f"{turn} b"] = said(lambda: autotune.gemm_all_reduce(context, a, b, out=b))
            found[f"{turn} beside"] = said(lambda: autotune.gemm_all_reduce(context, a, b, out=beside))
            assert (beside == 64 * ranks).all()
        problem = autotune.AllGatherGemm(m=64 * ranks, n=64 * ranks, k=64, dtype="fp32", world_size=ranks)
        big = torch.ones(problem.m, 64, device=device)
        for config in configs(Task(problem, context.machine)):
            shard = big[:64]
            found[f"gather {config['mode']}"] = said(
                lambda shard=shard, config=config: call(context, problem, (shard, b, None), config=config, out=big)
            )
            call(context, problem, (a, b, None), config=config, out=big)
            found[f"gather later {config['mode']}"] = said(
                lambda shard=shard, config=config: call(context, problem, (shard, b, None), config=config, out=big)
            )
    return found


def empty_caches(url: str) -> dict[str, float]:
    """Differences of flash decode where the last rank has no page at all from where it has no token in its pages."""
    errors = {}
    with autotune.Context(HEAP, url=url) as context:
        problem, last = problems(context.heap.device)[2], dist.get_rank() == dist.get_world_size() - 1
        (q, keys, values, table, lengths), _ = drawn(problem, 1, context.heap.device)
        pages = slice(0 if last else None)
        lengths = lengths * (not last)
        for config in configs(Task(problem, context.machine)):
            wanted, out = (
                call(context, problem, (q, keys[some], values[some], table, lengths), config=config)
                for some in (slice(None), pages)
            )
            errors[str(config["mode"])] = error(out, wanted.float())
        context.check()
    return errors


def different_databases(url: str) -> list[list[Any]]:
    """Source of a config that one rank's database has (the first's, the last's); whether it is that one; the log."""
    found, last = [], dist.get_world_size() - 1
    for owner in (0, last):
        mine = url.replace("none.db", f"{owner}_of_{dist.get_rank()}.db")
        with warnings_told() as told, autotune.Context(16 << 20, url=mine) as context:
            plain = problems(context.heap.device)[3]
            plugin = workload(plain.workload)
            default = plugin.default_config(Task(plain, context.machine))
            other = next(each for each in plugin.first_configs(Task(plain, context.machine)) if each != default)
            if dist.get_rank() == owner:
                store_winner(mine, Task(plain, context.machine), other)
            forget_lookups()
            chosen = context.choose(plain)
            context.release()
            assert context.choose(plain) == chosen
            found.append([chosen.source, chosen.config == other, list(told)])
    return found


def closed_again_and_again(url: str) -> list[dict[str, int]]:
    """Descriptors and threads after 7, 10 and 12 contexts, without the garbage collector."""
    gc.disable()  # the interpreter's own launches leave cycles, which hold a mapping of the heaps that had calls
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    problem = problems(device)[3]
    operands, _ = drawn(problem, 1, device)
    seen = []
    for number in range(12):
        with autotune.Context(16 << 20, url=url) as context:
            if number in (0, 6):
                call(context, problem, operands)
        if number in (6, 9, 11):
            seen.append(held())
    gc.enable()
    return seen


def left_by_an_error(url: str) -> dict[str, Any]:
    """One rank leaves its context by an error, another one waits for it: what it is told, how soon, what is held."""
    before, begin = held(), time.monotonic()
    told = "no error"
    try:
        with autotune.Context(1 << 20, url=url) as context:
            if dist.get_rank() == 0:
                raise ZeroDivisionError("planted")
            context.release()  # waits for rank 0, which is gone
    except (ZeroDivisionError, AutotuneError) as caught:
        told = f"{type(caught).__name__}: {caught}"
    seconds = time.monotonic() - begin
    del context
    gc.collect()
    return {"told": told, "seconds": seconds, "before": before, "after": held()}


def scratch_is_clear(url: str) -> dict[str, bool]:
    """True if each kernel's scratch is zero, whatever was in that memory."""
    group = dist.new_group(backend="gloo")
    heap = open_heap(HEAP, group)
    machine = this_machine()
    found = {}
    for problem in problems(heap.device):
        plugin = workload(problem.workload)
        empty = heap.mark()
        operation = plugin.operation(Task(problem, machine), heap, 1 << 18)
        operands = heap.mark()
        for config in plugin.first_configs(Task(problem, machine)):
            if config["mode"] == "bsp":
                continue
            heap.arena[operands:].fill_(1)
            heap.barrier()
            operation.prepare(config)
            for name, part in vars(operation.scratch or SimpleNamespace()).items():
                tensors = [part] if isinstance(part, torch.Tensor) else [getattr(part, "buffer", torch.zeros(1))]
                clear = all(not tensor.view(torch.uint8).any() for tensor in tensors if tensor.numel())
                found[f"{problem.workload} {config['mode']} {name}"] = clear
        heap.barrier()
        heap.release(empty)
    heap.close()
    dist.destroy_process_group(group)
    return found


def checked_from_elsewhere(url: str) -> dict[str, str]:
    """A call on a side stream that the last rank never makes: whether ``check``, called on another one, sees it."""
    found = {}
    with autotune.Context(HEAP, url=url) as context:
        context.spin_limit = polls(1, interpreted=False)
        device = context.heap.device
        problem = problems(device)[3]
        operands, _ = drawn(problem, 1, device)
        config = workload(problem.workload).default_config(Task(problem, context.machine))
        call(context, problem, operands, config=config)
        context.check()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found["captured"] = said(context.check)
            out = call(context, problem, operands, config=config)
        graph.replay()
        context.check()
        assert torch.equal(out, call(context, problem, operands, config=config))
        context.check()
        operands, _ = drawn(problem, 2, device)  # at other addresses, so bound anew
        torch.cuda.synchronize()
        dist.barrier()
        if dist.get_rank() < dist.get_world_size() - 1:
            with torch.cuda.stream(torch.cuda.Stream()):
                call(context, problem, operands, config=config)
        found["check"] = said(context.check)
        context.release()
    return found


def gpu_memory_of_this_process() -> int:
    """Bytes, by the driver's list of processes: what neighbours take does not count. Of all where nvidia-smi lacks."""
    free, total = torch.cuda.mem_get_info()
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return total - free
    rows = (line.split(", ") for line in listed.splitlines())
    mine = [int(mebibytes) << 20 for pid, mebibytes in rows if pid == str(os.getpid()) and mebibytes.isdigit()]
    return sum(mine) or total - free


def gpu_memory_given_back(url: str) -> dict[str, Any]:
    """Bytes of the GPU that are gone after ten more contexts, the collector being away; descriptors and threads."""
    gc.disable()
    problem = problems(torch.device("cuda"))[3]
    operands, _ = drawn(problem, 1, torch.device("cuda", torch.cuda.current_device()))
    taken, seen = [], []
    for number in range(11):
        with autotune.Context(HEAP, url=url) as context:
            call(context, problem, operands)
        dist.barrier()
        if number in (0, 10):
            taken.append(gpu_memory_of_this_process())
            seen.append(held())
        dist.barrier()
    gc.enable()
    return {"taken": taken[1] - taken[0], "held": seen}
