"""Functions for ranks in the tests of GEMM + all-reduce without a gang: they call configs directly."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch
import torch.distributed as dist

from autotune.config import Config
from autotune.heap import open_heap
from autotune.kernels.gemm_all_reduce.launch import KERNELS
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.contract import Setup
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.primitives.counters import EPOCH_SHIFT
from autotune.machine import machine
from autotune.task import Task

TILE = {
    "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2, "loads": "pointer",
    "split_k": 2, "schedule": "tile", "programs_per_unit": 1,
}  # fmt: skip
SIGNAL = Config({**TILE, "mode": "one_shot", "combine": "sender", "protocol": "signal"})
LL = Config({**TILE, "mode": "one_shot", "combine": "separate", "protocol": "ll"})
TWO_SHOT = Config({**TILE, "mode": "two_shot", "combine": "sender", "protocol": "signal"})
TWO_LL = TWO_SHOT.replace(protocol="ll")
SENTINEL = LL.replace(protocol="sentinel")
TWO_SENTINEL = TWO_SHOT.replace(protocol="sentinel")
COLLECTIVE = Config({
    "mode": "custom_collective", "exchange": "two_shot", "protocol": "sentinel", "transfer_rows": 16,
    "sum_block": 512, "sum_warps": 4,
})  # fmt: skip
BSP = Config({"mode": "bsp", "launch": "eager"})
CONFIGS = {
    "signal": SIGNAL, "ll": LL, "two_shot": TWO_SHOT, "two_ll": TWO_LL, "sentinel": SENTINEL,
    "two_sentinel": TWO_SENTINEL, "collective": COLLECTIVE,
}  # fmt: skip

SPINS = {True: 1 << 30, False: 1 << 22}
"""By whether there is a GPU, whose polls are far faster."""


class Calls:
    """A heap, and one problem's operands on this rank; every call may have a new A."""

    def __init__(self, **fields: Any) -> None:
        dist.barrier()
        self.heap = open_heap(16 << 20, dist.new_group(backend="gloo"))
        self.device = self.heap.device
        self.gpu = self.device.type == "cuda"
        self.problem = GemmAllReduce(m=5, n=40, k=40 * self.heap.world_size, world_size=self.heap.world_size, **fields)
        self.dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[self.problem.dtype]
        self.a = self.drawn((self.problem.m, self.problem.k_local), self.heap.rank)
        self.b = self.drawn((self.problem.k_local, self.problem.n), 100 + self.heap.rank)

    def drawn(self, shape: tuple[int, ...], seed: int) -> torch.Tensor:
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return values.to(self.dtype).to(self.device)

    def bind(self, config: Config, out: torch.Tensor) -> tuple[Any, Any]:
        """The call that writes to ``out``, and its scratch."""
        setup = Setup(KERNELS, Task(self.problem, machine()), config, self.heap, SPINS[self.gpu])
        return setup.bind(GemmTensors(self.a, self.b, out)), setup.scratch

    def out(self) -> torch.Tensor:
        return torch.full((self.problem.m, self.problem.n), float("nan"), dtype=self.dtype, device=self.device)

    def expected(self, step: int) -> torch.Tensor:
        """The result with every rank's A times (step + 1)."""
        whole = torch.zeros((self.problem.m, self.problem.n), dtype=torch.float64)
        for rank in range(self.heap.world_size):
            a = self.drawn((self.problem.m, self.problem.k_local), rank).cpu().double()
            b = self.drawn((self.problem.k_local, self.problem.n), 100 + rank).cpu().double()
            whole += a @ b
        return whole * (step + 1)

    def errors(self, outs: list[torch.Tensor]) -> list[float]:
        differences = [(out.cpu().double() - self.expected(i)).norm() for i, out in enumerate(outs)]
        return [float(d / self.expected(i).norm()) for i, d in enumerate(differences)]


def bits_of_calls(turns: int) -> dict[str, list[str]]:
    """By config the digests of so many calls' results on the same inputs; bf16, in which rounding shows the order."""
    calls = Calls(deterministic=True)
    found = {}
    for config in (*CONFIGS.values(), BSP):
        out = calls.out()
        run, _ = calls.bind(config, out)
        digests = []
        for turn in range(turns):
            time.sleep(0.05 * ((calls.heap.rank + turn) % calls.heap.world_size))  # ranks come in another order
            run()
            digests.append(hashlib.sha256(out.cpu().view(torch.int16).numpy().tobytes()).hexdigest())
        found[config.to_json()] = digests
        calls.heap.barrier()
    return found


def grow_old(scratch: Any, epoch: int, world_size: int) -> None:
    """Leave the counters as ``epoch`` launches, an even number, would have left them."""

    def wrapped(value: int) -> int:
        return (value + (1 << 31)) % (1 << 32) - (1 << 31)

    scratch.epoch_counter.fill_(epoch << EPOCH_SHIFT.value)
    scratch.arrivals.fill_(wrapped(epoch // 2 * world_size))
    scratch.returns.fill_(wrapped(epoch // 2))


def back_to_back(epochs: dict[str, int]) -> dict[str, list[float]]:
    """By config the errors of five calls in a row with changing inputs, ranks out of step, no barrier in between.

    ``epochs`` has the names of configs and the number of launches that each is said to have behind it.
    """
    calls = Calls(dtype="fp32")
    found = {}
    for name, epoch in epochs.items():
        out = calls.out()
        run, scratch = calls.bind(CONFIGS[name], out)
        grow_old(scratch, epoch, calls.heap.world_size)
        calls.heap.barrier()
        original, outs = calls.a.clone(), []
        for step in range(5):
            if not calls.gpu and step % calls.heap.world_size == calls.heap.rank:
                time.sleep(0.1)
            calls.a.copy_(original * (step + 1))
            run()
            outs.append(out.clone())
            out.fill_(float("nan"))
        calls.a.copy_(original)
        found[name] = calls.errors(outs)
        calls.heap.barrier()
    return found


def of_zeros(names: list[str]) -> dict[str, list[float]]:
    """By config the largest results of calls with an A of zeros, as a batch is padded with: before and after others."""
    calls = Calls(dtype="bf16")
    found = {}
    for name in names:
        out = calls.out()
        run, _ = calls.bind(CONFIGS[name], out)
        original, outs = calls.a.clone(), []
        for factor in (0, 1, 0, 0):
            calls.a.copy_(original * factor)
            run()
            outs.append(float(out.abs().max()))
        calls.a.copy_(original)
        found[name] = outs
        calls.heap.barrier()
    return found


def replayed(_: None) -> dict[str, list[float]]:
    """By config the errors of a call and of five replays of the same call, captured."""
    calls = Calls(dtype="fp32")
    found = {}
    for config in CONFIGS.values():
        out = calls.out()
        run, _ = calls.bind(config, out)
        run()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        original, outs = calls.a.clone(), [out.clone()]
        for step in range(1, 6):
            calls.a.copy_(original * (step + 1))
            graph.replay()
            outs.append(out.clone())
        calls.a.copy_(original)
        found[config.to_json()] = calls.errors(outs)
        calls.heap.barrier()
    return found
