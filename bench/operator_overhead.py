"""The host cost of a warm call of each operator, mode by mode, and the share of its launches.

    torchrun --nproc-per-node 2 bench/operator_overhead.py                           # on two GPUs
    CUDA_VISIBLE_DEVICES=0 torchrun --nproc-per-node 2 bench/operator_overhead.py    # taking turns on one, without bsp
    python bench/operator_overhead.py [--launches stand-in]                          # one rank

With a GPU the launches are real ones of small problems, by the first config of each mode that a search would try.
Without one, or with ``--launches stand-in``, they do nothing: what is left is the operators' own layer.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import unittest.mock
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from arguments import need_gpu, new_parser
from in_turns import best
from outside import start_ranks
from tables import head, row

import autotune
from autotune.config import Config
from autotune.kernels.all_gather_gemm.launch import KERNELS as GATHERING
from autotune.kernels.launching.contract import Setup
from autotune.kernels.launching.plan import Launch
from autotune.kernels.moe.problem import ExpertsProblem
from autotune.problem import Problem
from autotune.runtime.host_overhead import arguments_of
from autotune.task import Task
from autotune.workloads import workload
from autotune.workloads.launched import LaunchedWorkload

ROUNDS, CALLS = 30, 20
"""The best round counts; each has so few calls that the host never waits for the device."""

SETTLING = 5

WAYS = {"launches": "its launches, µs", "out given": "out given, µs", "out made": "out made, µs"}


def problems(ranks: int, on_gpu: bool) -> Iterator[tuple[Problem, str]]:
    """Every operator on a small problem, and a note."""
    gemm = {"m": 64 * ranks, "n": 256, "k": 256 * ranks}
    gather = {**gemm, "n": 256 * ranks, "k": 256}
    experts = {"tokens": 8, "hidden": 256, "experts": 2 * ranks, "top_k": 2}
    decode = {"batch": 2, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "kv_len": 256, "page_size": 16}
    fp8 = {"dtype": "fp8", "scales": "row", "b_order": "nk"}
    small = [
        ("all_gather_gemm", gather, ""), ("all_gather_gemm", {**gather, "in_place": True}, ", A in place"),
        *[("all_gather_gemm", {**gather, **fp8}, ", fp8")] * on_gpu,
        ("gemm_reduce_scatter", gemm, ""), ("gemm_all_reduce", gemm, ""),
        ("all_reduce_norm", {"m": 64 * ranks, "n": 256}, ""), ("gemm_all_reduce_norm", gemm, ""),
        ("flash_decode", decode, ""), ("moe_dispatch", experts, ""), ("moe_combine", experts, ""),
        ("moe_dispatch_gemm", {**experts, "width": 128}, ""), ("moe_gemm_combine", {**experts, "width": 128}, ""),
    ]  # fmt: skip
    for name, sizes, note in small:
        yield workload(name).problem_type(**sizes, world_size=ranks), note


def reads_shard(problem: Problem, config: Config) -> bool:
    """True where peers read A."""
    gathers = problem.workload == "all_gather_gemm"
    return gathers and GATHERING.read_by_peers(problem, GATHERING.modes.of(config)) is not None


def configs(found: LaunchedWorkload, task: Task[Problem], context: autotune.Context) -> Iterator[Config]:
    """One config of each mode. Ranks that share a GPU have no ``bsp``; nor do mixtures without a GPU, or other modes
    with the library's GEMM: kernels that are not stand-ins stand beside it.
    """
    on_gpu = context.heap.device.type == "cuda"
    left_out = {"bsp"} if on_gpu and context.heap.world_size > torch.cuda.device_count() else set()
    if isinstance(task.problem, ExpertsProblem) and not on_gpu:
        left_out = {"bsp", "custom_collective"}
    every = [*found.first_configs(task), *found.baselines(task).values()]
    every.sort(key=lambda config: config.get("launch", "eager") != "eager")
    in_place = getattr(task.problem, "in_place", False)
    for mode in found.space.modes:
        config = next((config for config in every if config["mode"] == mode), None)
        if config and mode not in left_out and (reads_shard(task.problem, config) or not in_place):
            yield config


def drawn(found: LaunchedWorkload, task: Task[Problem], context: autotune.Context) -> dict[str, torch.Tensor | None]:
    """The operands as the tuner draws them, off the heap."""
    mark = context.heap.mark()
    operation = found.operation(task, context.heap, context.spin_limit)
    operation.refresh(0)
    operands = {name: None if each is None else each.clone() for name, each in operation.operands.items()}
    context.heap.release(mark)
    return operands


def compare(
    found: LaunchedWorkload, task: Task[Problem], config: Config, context: autotune.Context,
    operands: dict[str, torch.Tensor | None],
) -> dict[str, float]:  # fmt: skip
    """Microseconds of the operator, with an output given and without, and of its launches alone. Collective."""
    if in_place := getattr(task.problem, "in_place", False):
        operands = {**operands, "a": autotune.all_gather_shard(context, task.problem, config=config)}
    arguments = arguments_of(found, task.problem, operands)
    operator = functools.partial(getattr(autotune, found.name), context, **arguments, config=config)
    out = operator()
    ways: dict[str, Callable[[], object]] = {"out given": lambda: operator(out=out), "out made": operator}
    if in_place or not reads_shard(task.problem, config):  # a copy of A beside the launches is the operator's
        setup = Setup(found.kernels, task, config, context.heap, context.spin_limit)
        results = list(out) if isinstance(out, tuple) else [out]
        ways["launches"] = setup.bind(found.kernels.bound([*operands.values()], results))
    for call in ways.values():
        for _ in range(SETTLING):
            call()
    return best(ways, context.heap.barrier, ROUNDS, CALLS)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--launches", choices=("real", "stand-in"), help="default: real where there is a GPU")
    gpu = torch.cuda.is_available()
    real = (parser.parse_args().launches or ("real" if gpu else "stand-in")) == "real"
    if real:
        need_gpu(parser, "--launches real", "; --launches stand-in does without")
    start_ranks()
    if not gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # which a heap on CPUs asks for; no kernel runs
    nothing = contextlib.nullcontext() if real else unittest.mock.patch.object(Launch, "run", lambda launch: None)
    with torch.no_grad(), autotune.Context(256 << 20, url="sqlite:///no-such-file.db") as context, nothing:
        say = functools.partial(print, flush=True) if context.heap.rank == 0 else lambda *_: None
        say(f"{context.machine.device if real else 'launches that do nothing'}, {context.heap.world_size} ranks, "
            f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}\n")  # fmt: skip
        say(head(["operator", "mode", *WAYS.values()], "ll"))
        for problem, note in problems(context.heap.world_size, gpu):
            found, task = workload(problem.workload), Task(problem, context.machine)
            operands = drawn(found, task, context)
            for config in configs(found, task, context):
                took = compare(found, task, config, context, operands)
                times = [f"{took[way]:.2f}" if way in took else "" for way in WAYS]
                say(row([found.name, f"{config['mode']}{note}", *times]))
            context.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
