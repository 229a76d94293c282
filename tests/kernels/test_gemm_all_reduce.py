"""GEMM + all-reduce is right in every mode, see ``every_mode``, with the same bits on all ranks, call after call."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_mode import EveryModeTests, check_all, few, on_cpu, variants, whole
from ranks_of_functions import run_ranks

from autotune.config import Config
from autotune.heap import open_heap
from autotune.kernels.gemm_all_reduce.launch import KERNELS
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.contract import Setup
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.primitives.counters import EPOCH_SHIFT
from autotune.machine import Machine, machine
from autotune.task import Task
from autotune.workloads import workload

WORKLOAD = workload("gemm_all_reduce")

ODD = {"m": 11, "n": 40, "k": 144, "bias": True, "b_order": "nk", "residual": True}

SUM = {"sum_block": 512, "sum_warps": 4}
TILES = {"group_m": 2, "num_warps": 4, "num_stages": 2, "programs_per_unit": 1, **SUM}
INTERPRETED_TILES = [
    {**TILES, "block_m": 16, "block_n": 32, "block_k": 32, "split_k": 2},
    {**TILES, "block_m": 16, "block_n": 32, "block_k": 64, "split_k": 1},
    {**TILES, "block_m": 32, "block_n": 64, "block_k": 32, "split_k": 1},
]

ON_GPU = {"group_m": 1, "num_warps": 4, "split_k": 1, "programs_per_unit": 1, "sum_block": 1024, "sum_warps": 4}
GPU_TILES = [
    {**ON_GPU, "block_m": 16, "block_n": 64, "block_k": 128, "num_stages": 4},
    {**ON_GPU, "block_m": 16, "block_n": 32, "block_k": 128, "num_stages": 3, "split_k": 4},
    {**ON_GPU, "block_m": 64, "block_n": 64, "block_k": 64, "num_stages": 4, "split_k": 2, "group_m": 4},
    {**ON_GPU, "block_m": 128, "block_n": 128, "block_k": 64, "num_stages": 3, "group_m": 8, "num_warps": 8},
    {**ON_GPU, "block_m": 16, "block_n": 32, "block_k": 32, "num_stages": 2},
]


class TestGemmAllReduce(EveryModeTests):
    name = "gemm_all_reduce"
    modes = {"bsp", "custom_collective", "one_shot", "two_shot"}
    exchanging = {"custom_collective"}
    gpu_count = 24
    steps = INTERPRETED_TILES
    gpu_steps = GPU_TILES
    small = [
        (1, {**ODD, "k": 72, "dtype": "fp16"}, 2),
        (2, ODD, 4),
        (3, {"m": 1, "n": 24, "k": 120, "dtype": "fp32"}, 2),
        (4, {**ODD, "m": 5, "n": 24, "k": 160}, 2),
        whole(2, {"m": 20, "n": 64, "k": 128}, 3),  # tiles divide the matrix
        whole(2, ODD, 8),
    ]
    large = [
        {"m": 1, "n": 8192, "k": 28672},
        {"m": 16, "n": 8192, "k": 28672},
        {"m": 64, "n": 8192, "k": 8192},
        {"m": 3, "n": 8192, "k": 8192, "dtype": "fp16", "bias": True, "b_order": "nk"},
        {"m": 17, "n": 2880, "k": 2880, "bias": True, "residual": True},
        {"m": 64, "n": 2880, "k": 4096, "deterministic": True},
        {"m": 33, "n": 72, "k": 520, "b_order": "nk"},
        {"m": 100, "n": 37, "k": 104, "bias": True},
        {"m": 1000, "n": 360, "k": 2880, "bias": True},
        {"m": 512, "n": 512, "k": 512, "dtype": "fp32", "bias": True},
        {"m": 5, "n": 136, "k": 264, "dtype": "fp32"},
        {"m": 4096, "n": 8192, "k": 28672},
    ]

    def steps_of(self, problem: Any, steps: list[dict[str, int]]) -> list[dict[str, int]]:
        """With the fewest rows that ``custom_collective`` may take at once: eight chunks at most."""
        most = max(16, 1 << (problem.m - 1).bit_length())
        parts = [rows for rows in (most >> shift for shift in (3, 2, 1)) if rows >= 16 and problem.m % rows == 0]
        chunk = {"transfer_rows": next(iter(parts), most)}
        return [{**step, **chunk} for step in super().steps_of(problem, steps)]

    def modes_of(self, problem: Any, here: Machine) -> set[str]:
        """On GPUs not every size has every mode."""
        return super().modes_of(problem, here) if here.is_interpreter else {"bsp", "two_shot"}


def test_chunks_of_rows_are_right_under_the_interpreter() -> None:
    here = on_cpu()
    problem = WORKLOAD.problem_type(
        **{**ODD, "m": 48, "n": 48, "k": 160, "dtype": "fp8", "scales": "row"}, world_size=2
    )
    chunks = {"mode": "custom_collective", **SUM, "transfer_rows": 16, "exchange": "two_shot"}
    configs = [Config({**chunks, "protocol": protocol}) for protocol in ("signal", "sentinel")]
    assert all(WORKLOAD.space.violation(config, Task(problem, here)) is None for config in configs)
    check_all(WORKLOAD, problem, configs, {"custom_collective"})


def test_persistent_programs_are_right_under_the_interpreter() -> None:
    here = on_cpu()
    problem = WORKLOAD.problem_type(m=145, n=32, k=64, world_size=2)  # more tiles than the interpreter has programs
    tiles = [{**INTERPRETED_TILES[0], "split_k": 1}]
    configs = [c for c in variants(WORKLOAD, problem, here, tiles) if c.get("schedule") == "persistent"]
    configs = [c for c in configs if (c["mode"], c["combine"]) in {("one_shot", "separate"), ("two_shot", "sender")}]
    check_all(WORKLOAD, problem, few(problem, iter(configs), 2), {"one_shot", "two_shot"})


OLD = {
    "signal": 2 * 715827882 - 2,
    **dict.fromkeys(("ll", "two_shot", "two_ll", "two_sentinel", "collective"), (1 << 32) - 2),
    "sentinel": 0,
}
"""Launches after which, with three ranks, the next calls make counters and flags wrap around: 3 * 715827882 + 2 is
2**31, at which an int32 becomes negative; flags, and counters of results in either slot, come there after 2**32."""


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.gpu(2, each=True))])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The answers of all GPUs, or of three interpreted ranks."""
    count = machine().gpus if request.param else 3
    if not request.param:
        on_cpu()
    return run_ranks(__file__, "everything", count, tmp_path_factory.mktemp("ranks"), gpu=request.param, argument=OLD)


def test_all_ranks_get_the_same_bits_in_every_call(ranks: list[Any]) -> None:
    for config, bits in ranks[0]["bits"].items():
        assert all(rank["bits"][config] == bits for rank in ranks), config
        assert len(set(bits)) == 1, config


def test_calls_follow_each_other_without_a_barrier_and_counters_wrap_around(ranks: list[Any]) -> None:
    for errors in (rank["errors"] for rank in ranks):
        assert errors.keys() == OLD.keys()
        assert all(len(each) == 5 and max(each) < 1e-5 for each in errors.values()), errors  # fp32


def test_zeros_arrive_like_any_other_numbers(ranks: list[Any]) -> None:
    """Words without a signal tell by their own bits that they have arrived; zeros must do so, too."""
    for rank in ranks:
        for config, largest in rank["zeros"].items():
            assert [value == 0.0 for value in largest] == [True, False, True, True], (config, largest)


@pytest.mark.gpu(2, each=True)
def test_a_captured_call_can_be_replayed(tmp_path: Path) -> None:
    for rank in run_ranks(__file__, "replayed", machine().gpus, tmp_path, gpu=True):
        for config, errors in rank.items():
            assert max(errors) < 1e-5, f"{config}: {errors}"


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


class Calls:
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
        setup = Setup(KERNELS, Task(self.problem, machine()), config, self.heap, SPINS[self.gpu])
        return setup.bind(GemmTensors(self.a, self.b, out)), setup.scratch

    def out(self) -> torch.Tensor:
        return torch.full((self.problem.m, self.problem.n), float("nan"), dtype=self.dtype, device=self.device)

    def expected(self, step: int) -> torch.Tensor:
        whole = torch.zeros((self.problem.m, self.problem.n), dtype=torch.float64)
        for rank in range(self.heap.world_size):
            a = self.drawn((self.problem.m, self.problem.k_local), rank).cpu().double()
            b = self.drawn((self.problem.k_local, self.problem.n), 100 + rank).cpu().double()
            whole += a @ b
        return whole * (step + 1)

    def errors(self, outs: list[torch.Tensor]) -> list[float]:
        differences = [(out.cpu().double() - self.expected(i)).norm() for i, out in enumerate(outs)]
        return [float(d / self.expected(i).norm()) for i, d in enumerate(differences)]


def everything(epochs: dict[str, int]) -> dict[str, Any]:
    gpu = torch.cuda.is_available()
    of_words = list(epochs) if gpu else ["ll", "sentinel", "two_sentinel", "collective"]
    return {"bits": bits_of_calls(3 if gpu else 2), "errors": back_to_back(epochs), "zeros": of_zeros(of_words)}


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
    """By config the errors of five calls in a row, inputs changing, ranks out of step, after so many launches."""
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
