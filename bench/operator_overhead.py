"""What a warm call of each operator costs the host, on top of its kernels' launches.

    python bench/operator_overhead.py [--launches stand-in]

One rank. With a GPU the launches are real ones of small problems, by the default configs. Without one, or with
``--launches stand-in``, they do nothing, so that what is left is the operators' own layer; under the interpreter that
includes a look at the status word, which calls on a GPU do not take. The best of many rounds counts, each way in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import platform
import time
import unittest.mock
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import autotune
from autotune.kernels.flash_decode.tensors import Tensors
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Launch

ROUNDS, CALLS = 30, 500
M, N, K = 64, 256, 256
DECODE = autotune.FlashDecode(batch=2, q_heads=4, kv_heads=2, head_dim=64, kv_len=256, page_size=16, world_size=1)


@dataclass(frozen=True)
class Case:
    """An operator, its problem, and the names of its operands as its launcher's tensors have them."""

    problem: Any
    operands: dict[str, torch.Tensor]

    @property
    def name(self) -> str:
        return str(self.problem.workload)

    def by_hand(self, context: autotune.Context, out: torch.Tensor) -> Callable[[], object]:
        """The launches of one call, bound to the operands once."""
        launch = importlib.import_module(f"autotune.kernels.{self.name}.launch")
        config, heap = context.choose(self.problem).config, context.heap
        scratch = launch.share_scratch(self.problem, config, context.machine, heap)
        decodes = self.name == "flash_decode"
        bound = Tensors(**self.operands, out=out) if decodes else GemmTensors(**self.operands, c=out)
        run: Callable[[], object] = launch.bind(
            self.problem, config, context.machine, bound, scratch, heap, context.spin_limit
        )
        return run


def cases(device: torch.device) -> Iterator[Case]:
    """Every operator on a small problem."""
    a, b = torch.zeros(M, K, device=device).bfloat16(), torch.zeros(K, N, device=device).bfloat16()
    for kind in (autotune.AllGatherGemm, autotune.GemmReduceScatter, autotune.GemmAllReduce):
        yield Case(kind(m=M, n=N, k=K, world_size=1), {"a": a, "b": b})
    cache = torch.zeros(DECODE.cache_shape, device=device).bfloat16()
    operands = {
        "q": torch.zeros(DECODE.batch, DECODE.q_heads, DECODE.head_dim, device=device).bfloat16(),
        "keys": cache, "values": cache,
        "table": torch.arange(cache.shape[0], dtype=torch.int32, device=device).view(DECODE.batch, -1),
        "lengths": torch.full((DECODE.batch,), DECODE.kv_len, dtype=torch.int32, device=device),
    }  # fmt: skip
    yield Case(DECODE, operands)


def best(ways: dict[str, Callable[[], object]], settle: Callable[[], object]) -> dict[str, float]:
    """Microseconds of a call, by name."""
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, call in ways.items():
            settle()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            seconds[name] = min(seconds[name], (time.perf_counter() - begin) / CALLS)
    return {name: value * 1e6 for name, value in seconds.items()}


def compare(case: Case, context: autotune.Context) -> dict[str, float]:
    """Microseconds of the launches alone, and of the operator: with an output given, and without."""
    operator, operands = getattr(autotune, case.name), tuple(case.operands.values())
    out = operator(context, *operands)
    ways = {
        "launches": case.by_hand(context, out),
        "out given": lambda: operator(context, *operands, out=out),
        "out made": lambda: operator(context, *operands),
    }
    for call in ways.values():
        call()
    on_gpu = out.device.type == "cuda"
    return best(ways, torch.cuda.synchronize if on_gpu else lambda: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", choices=("real", "stand-in"), help="default: real where there is a GPU")
    gpu = torch.cuda.is_available()
    real = (parser.parse_args().launches or ("real" if gpu else "stand-in")) == "real"
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    nothing = contextlib.nullcontext() if real else unittest.mock.patch.object(Launch, "run", lambda launch: None)
    with autotune.Context(64 << 20, url="sqlite:///no-such-file.db") as context, nothing:
        print(f"{context.machine.device if real else 'launches that do nothing'}, {platform.machine()}, Python "
              f"{platform.python_version()}, torch {torch.__version__}\n")  # fmt: skip
        print("| operator | its launches, µs | out given, µs | over its launches | out made, µs | over its launches |")
        print("|---|---:|---:|---:|---:|---:|")
        for case in cases(context.heap.device):
            took = compare(case, context)
            bare, given, made = took["launches"], took["out given"], took["out made"]
            print(f"| {case.name} | {bare:.2f} | {given:.2f} | {given - bare:.2f} | {made:.2f} | {made - bare:.2f} |")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
