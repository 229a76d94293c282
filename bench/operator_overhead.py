"""The host cost of a warm call of each operator, mode by mode, and the share of its launches.

    torchrun --nproc-per-node 2 bench/operator_overhead.py                           # on two GPUs
    CUDA_VISIBLE_DEVICES=0 torchrun --nproc-per-node 2 bench/operator_overhead.py    # taking turns on one, without bsp
    python bench/operator_overhead.py [--launches stand-in]                          # one rank

With a GPU the launches are real ones of small problems, by the first config of each mode that a search would try.
Without one, or with ``--launches stand-in``, they do nothing, so that what is left is the operators' own layer. Of many
rounds the best counts, each way in turn; a round has few calls, so that the host never waits for the device.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import unittest.mock
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from arguments import need_gpu, new_parser
from in_turns import best
from tables import head, row

import autotune
from autotune.config import Config
from autotune.kernels.all_gather_gemm.launch import KERNELS as GATHERING
from autotune.kernels.launching.collectives import all_gather_single
from autotune.kernels.launching.contract import Setup
from autotune.kernels.launching.plan import Launch
from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import drawn_routing, planned
from autotune.task import Task
from autotune.workloads.built_in import (
    all_gather_gemm,
    all_reduce_norm,
    flash_decode,
    gemm_all_reduce,
    gemm_all_reduce_norm,
    gemm_reduce_scatter,
    moe_combine,
    moe_dispatch,
    moe_dispatch_gemm,
    moe_gemm_combine,
)
from autotune.workloads.launched import LaunchedWorkload

ROUNDS, CALLS = 30, 20
SETTLING = 5
"""Calls before: those that are captured are replayed by then."""


@dataclass(frozen=True)
class Case:
    """An operator, its problem, its operands by their names, and what else a call says."""

    workload: LaunchedWorkload
    problem: Any
    operands: dict[str, torch.Tensor]
    note: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.workload.name

    def by_hand(self, context: autotune.Context, config: Config, out: Any) -> Callable[[], object]:
        """The launches of one call, bound to the operands once. Collective."""
        kernels = self.workload.kernels
        setup = Setup(kernels, Task(self.problem, context.machine), config, context.heap, context.spin_limit)
        operands = [self.operands.get(name) for name in kernels.operands]
        return setup.bind(kernels.bound(operands, list(out) if isinstance(out, tuple) else [out]))


def cases(device: torch.device, ranks: int) -> Iterator[Case]:
    """Every operator on a small problem."""
    rows, columns, depth = 64 * ranks, 256, 256
    zeros = functools.partial(torch.zeros, device=device, dtype=torch.bfloat16)
    sizes = {"m": rows, "k": depth * ranks, "world_size": ranks}
    gathering = autotune.AllGatherGemm(**sizes, n=columns * ranks)
    yield Case(all_gather_gemm.WORKLOAD, gathering, {"a": zeros(gathering.shard), "b": zeros(gathering.k, columns)})
    if device.type == "cuda":
        scaled = replace(gathering, dtype="fp8", scales="row", b_order="nk")
        a, b = (
            torch.zeros(shape, device=device).to(torch.float8_e4m3fn) for shape in (scaled.shard, (columns, scaled.k))
        )
        ones = functools.partial(torch.ones, device=device)
        yield Case(
            all_gather_gemm.WORKLOAD, scaled,
            {"a": a, "b": b.t(), "scale_a": ones(len(a), 1), "scale_b": ones(1, columns)}, ", fp8",
        )  # fmt: skip
    for found in (gemm_reduce_scatter.WORKLOAD, gemm_all_reduce.WORKLOAD):
        yield Case(found, found.problem_type(**sizes, n=columns), {"a": zeros(rows, depth), "b": zeros(depth, columns)})
    following = {"residual": zeros(rows, columns), "weight": zeros(columns)}
    normed = autotune.AllReduceNorm(m=rows, n=columns, world_size=ranks)
    yield Case(all_reduce_norm.WORKLOAD, normed, {"x": zeros(rows, columns), **following})
    product = {"a": zeros(rows, depth), "b": zeros(depth, columns)}
    yield Case(gemm_all_reduce_norm.WORKLOAD, autotune.GemmAllReduceNorm(**sizes, n=columns), {**product, **following})
    decode = autotune.FlashDecode(
        batch=2, q_heads=4, kv_heads=2, head_dim=64, kv_len=256, page_size=16, world_size=ranks
    )
    cache = zeros(decode.cache_shape)
    operands = {
        "q": zeros(decode.batch, decode.q_heads, decode.head_dim), "k_cache": cache, "v_cache": cache,
        "block_table": torch.arange(cache.shape[0], dtype=torch.int32, device=device).view(decode.batch, -1),
        "lengths": torch.full((decode.batch,), decode.kv_len, dtype=torch.int32, device=device),
    }  # fmt: skip
    yield Case(flash_decode.WORKLOAD, decode, operands)
    yield from mixtures(device, ranks)


def mixtures(device: torch.device, ranks: int) -> Iterator[Case]:
    """Operators of a mixture with two experts on each rank."""
    zeros = functools.partial(torch.zeros, device=device, dtype=torch.bfloat16)
    sizes = {"tokens": 8, "hidden": 256, "experts": 2 * ranks, "top_k": 2, "world_size": ranks}
    multiplying = moe_gemm_combine.WORKLOAD.problem_type(**sizes, width=128)
    routing = drawn_routing(multiplying, device, 1)
    rank = dist.get_rank()
    found = planned(multiplying, routing, rank)
    plan = {"offsets": found.offsets, "pairs": found.pairs, "row_gates": found.gates}
    ids, gates = routing.ids[rank].contiguous(), routing.gates[rank].contiguous()
    tokens = {"x": zeros(8, 256), "ids": ids, "gates": gates}
    options = {"experts": 2 * ranks}
    up, down = zeros(2, 2 * 128, 256).transpose(1, 2), zeros(2, 256, 128).transpose(1, 2)
    for workload, given, named in (
        (moe_dispatch.WORKLOAD, tokens, options),
        (moe_dispatch_gemm.WORKLOAD, {**tokens, "b": up}, options),
        (moe_combine.WORKLOAD, {"rows": zeros(multiplying.capacity, 256), **plan, "ids": ids}, {}),
        (moe_gemm_combine.WORKLOAD, {"a": zeros(multiplying.capacity, 128), "b": down, **plan, "ids": ids}, {}),
    ):
        width = {"width": 128} if "b" in given else {}
        yield Case(workload, workload.problem_type(**sizes, **width), given, options=named)


def plain(case: Case) -> Callable[[], object]:
    """What all-gather + GEMM is in plain torch, into a buffer that is kept."""
    a, b, scale_a, scale_b = (case.operands.get(name) for name in ("a", "b", "scale_a", "scale_b"))
    assert a is not None and b is not None
    gathered = a.new_empty((case.problem.m, case.problem.k))
    if scale_a is None:

        def call() -> torch.Tensor:
            all_gather_single(gathered, a)
            return gathered @ b

        return call
    scales = scale_a.new_empty((case.problem.m, 1))

    def scaled() -> torch.Tensor:
        with dist._coalescing_manager(device=a.device):
            all_gather_single(gathered.view(torch.uint8), a.view(torch.uint8))
            all_gather_single(scales, scale_a)
        return torch._scaled_mm(gathered, b, scale_a=scales, scale_b=scale_b, out_dtype=torch.bfloat16)

    return scaled


def reads_shard(case: Case, config: Config) -> bool:
    """True where peers read A."""
    gathers = case.name == "all_gather_gemm"
    return gathers and GATHERING.read_by_peers(case.problem, GATHERING.modes.of(config)) is not None


def rows_of(case: Case, context: autotune.Context) -> Iterator[tuple[Case, Config]]:
    """One config of each mode; where peers read A, also with A in place. Ranks that share a GPU have no ``bsp``; nor do
    mixtures without a GPU, or other modes with the library's GEMM: kernels that are not stand-ins stand beside it.
    """
    plugin, on_gpu = case.workload, context.heap.device.type == "cuda"
    left_out = {"bsp"} if on_gpu and context.heap.world_size > torch.cuda.device_count() else set()
    if isinstance(case.problem, ExpertsProblem) and not on_gpu:
        left_out = {"bsp", "custom_collective"}
    tried = plugin.first_configs(Task(case.problem, context.machine))
    baselines = plugin.baselines(Task(case.problem, context.machine))
    eager = [config for config in (*tried, *baselines.values()) if config.get("launch", "eager") == "eager"]
    for mode in plugin.space.modes:
        config = next((config for config in (*eager, *tried) if config["mode"] == mode), None)
        if config is None or mode in left_out:
            continue
        yield case, config
        if reads_shard(case, config):
            problem = replace(case.problem, in_place=True)
            shard = autotune.all_gather_shard(context, problem, config=config)
            yield replace(case, problem=problem, operands={**case.operands, "a": shard}, note=", A in place"), config


def compare(case: Case, config: Config, context: autotune.Context) -> dict[str, float]:
    """Microseconds of the launches alone, and of the operator: with an output given, and without. Collective."""
    operator = functools.partial(getattr(autotune, case.name), **case.options)
    operands = tuple(case.operands.values())
    if getattr(case.problem, "in_place", False):
        operator = functools.partial(operator, in_place=True)
    if case.name == "all_gather_gemm":
        operands, scales = operands[:2], {name: case.operands.get(name) for name in ("scale_a", "scale_b")}
        operator = functools.partial(operator, **scales)
    out = operator(context, *operands, config=config)
    ways: dict[str, Callable[[], object]] = {
        "out given": lambda: operator(context, *operands, out=out, config=config),
        "out made": lambda: operator(context, *operands, config=config),
    }
    if case.name == "all_gather_gemm" and config["mode"] == "bsp":
        ways["plain"] = plain(case)
    # Where peers read A, the launches alone are those on A in place.
    if "place" in case.note or not reads_shard(case, config):
        ways["launches"] = case.by_hand(context, config, out)
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
    start(gpu)
    if not gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # which a heap on CPUs asks for; no kernel runs
    nothing = contextlib.nullcontext() if real else unittest.mock.patch.object(Launch, "run", lambda launch: None)
    with torch.no_grad(), autotune.Context(256 << 20, url="sqlite:///no-such-file.db") as context, nothing:
        say = functools.partial(print, flush=True) if context.heap.rank == 0 else lambda *_: None
        say(f"{context.machine.device if real else 'launches that do nothing'}, {context.heap.world_size} ranks, "
            f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}\n")  # fmt: skip
        say(head(["operator", "mode", "its launches, µs", "out given, µs", "out made, µs", "plain torch, µs"], "ll"))
        for case in cases(context.heap.device, context.heap.world_size):
            for each, config in rows_of(case, context):
                took = compare(each, config, context)
                ways = ("launches", "out given", "out made", "plain")
                times = [f"{took[way]:.2f}" if way in took else "" for way in ways]
                say(row([each.name, f"{config['mode']}{each.note}", *times]))
            context.release()
    dist.destroy_process_group()


def start(gpu: bool) -> None:
    """One rank, or those of torchrun; more of them than GPUs take turns, and do without NCCL."""
    if "RANK" not in os.environ:
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
        return
    rank, ranks, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), torch.cuda.device_count()
    if gpu:
        torch.cuda.set_device(rank % gpus)
    dist.init_process_group("gloo" if not gpu else "cpu:gloo,cuda:nccl" if ranks <= gpus else "cpu:gloo,cuda:gloo")


if __name__ == "__main__":
    main()
