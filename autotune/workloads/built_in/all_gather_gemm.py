"""All-gather + GEMM as a workload: C = all_gather(A) @ B (+ bias)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm import launch
from autotune.kernels.all_gather_gemm.library import multiply
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Compiled, compile_all
from autotune.kernels.launching.tensors import TORCH_DTYPES, meta
from autotune.machine import Machine
from autotune.search_spaces.all_gather_gemm import SPACE, default_config
from autotune.workloads.built_in.gemm import OF_A_LIBRARY, GemmOperation
from autotune.workloads.comparison import rounded
from autotune.workloads.input_sets import poison
from autotune.workloads.roofline import gemm_latency
from autotune.workloads.scratch import SPINS_OFFLINE
from autotune.workloads.workload import Run, Tolerance, Workload


class AllGatherGemmOperation(GemmOperation):
    """Operands lie in ordinary memory, A's shard on the heap where the problem says so.

    Where peers read the shard, a call copies A to the heap first, as the operator does, unless it lies there already.
    """

    launcher: ClassVar = launch

    def __init__(self, problem: AllGatherGemm, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Inputs are undefined until ``refresh``."""
        dtype = TORCH_DTYPES[problem.dtype]
        ordinary = partial(torch.empty, dtype=dtype, device=heap.device)
        transposed = problem.b_order == "nk"
        b = ordinary((problem.n_local, problem.k) if transposed else (problem.k, problem.n_local))
        tensors = GemmTensors(
            a=heap.allocate(problem.shard, dtype) if problem.in_place else ordinary(problem.shard),
            b=b.t() if transposed else b,
            c=ordinary((problem.m, problem.n_local)),
            bias=ordinary(problem.n_local) if problem.bias else None,
        )
        self._shard: torch.Tensor | None = None
        """What peers read A from, where that is not A itself."""
        super().__init__(problem, tensors, heap, machine, spin_limit)

    def share(self, config: Config) -> Any:
        """Counters and inboxes; and a place for A that peers can read, where they do."""
        scratch, self._shard = super().share(config), None
        if config["mode"] in launch.READ_BY_PEERS and not self._problem.in_place:
            self._shard = self._heap.allocate(self._problem.shard, self._tensors.a.dtype)
        return scratch

    def bind(self, config: Config) -> Run:
        """On this rank's tensors, or on A's copy."""
        a, shard = self._tensors.a, self._shard
        if shard is None:
            return super().bind(config)
        tensors = replace(self._tensors, a=shard)
        run = launch.bind(self._problem, config, self._machine, tensors, self.scratch, self._heap, self._spin_limit)

        def copy_and_run() -> None:
            shard.copy_(a)  # safe to overwrite: these modes end only when every peer has read
            run()

        return copy_and_run

    def draw_operands(self, seed: int) -> torch.Tensor:
        """Every rank draws every rank's shard, and multiplies the whole A by its own B."""
        tensors, rank, wide = self._tensors, self._heap.rank, self.wide
        shards = [self.draw_a(seed * 1000 + other) for other in range(self._heap.world_size)]
        tensors.a.copy_(shards[rank])
        tensors.b.copy_(self.draw_b(seed * 1000 + 500 + rank))
        self.draw_bias(seed * 1000 + 750 + rank)
        whole = torch.cat(shards, dim=0 if self._problem.rows_layout else 1)
        product: torch.Tensor = whole.to(wide) @ tensors.b.to(wide)
        return product

    def poison_scratch(self) -> None:
        """The inbox, and what peers read A from."""
        poison(self.scratch.inbox)
        if self._shard is not None:
            poison(self._shard)

    def parts(self) -> dict[str, Run]:
        """The library's all-gather of A alone, and its GEMM alone."""
        tensors, problem = self._tensors, self._problem
        whole = torch.randn((problem.m, problem.k), device=self._heap.device).to(tensors.a.dtype)
        gathered = torch.empty((problem.m * problem.k,), dtype=tensors.a.dtype, device=self._heap.device)
        return {
            "all_gather": lambda: torch.distributed.all_gather_into_tensor(gathered, tensors.a.view(-1)) and None,
            "gemm": lambda: multiply(whole, tensors, tensors.c),
        }


class AllGatherGemmWorkload(Workload):
    """The plug-in."""

    name = "all_gather_gemm"
    problem_type = AllGatherGemm
    space = SPACE
    sources: ClassVar = ("autotune.kernels.all_gather_gemm", "autotune.workloads.built_in.gemm")

    def default_problem(self, machine: Machine, world_size: int) -> AllGatherGemm:
        """Llama-70B's MLP up-projection at 4096 tokens; a toy of the same form under the interpreter."""
        if machine.is_interpreter:
            return AllGatherGemm(m=32 * world_size, n=64 * world_size, k=128, world_size=world_size)
        return AllGatherGemm(m=4096, n=28672, k=8192, world_size=world_size)

    def default_config(self, problem: AllGatherGemm, machine: Machine) -> Config:
        """See the search space."""
        return default_config(problem, machine)

    def first_configs(self, problem: AllGatherGemm, machine: Machine) -> list[Config]:
        """The default's tile in every mode, and with the transfer beside or around it."""
        default = default_config(problem, machine)
        tile = {d.name: default[d.name] for d in SPACE.dimensions_of("pull") if d.name != "mode"}
        staged = {d.name: default[d.name] for d in SPACE.dimensions_of("pull_staged") if d.name != "mode"}
        persistent = {"schedule": "persistent", "comm_programs": 1 if machine.is_interpreter else 12, "head_start": 2}
        gathering = {name: default[name] for name in ("copy_kib", "peer_order")}
        rows = problem.shard[0]
        unit = max((v for v in SPACE.dimensions["transfer_rows"].values if int(v) <= rows), default=16)
        found = [
            default,
            *self._streaming(default, machine),
            *(default.replace(k_chunks=chunks) for chunks in (4, 8)),
            default.replace(**persistent),
            default.replace(schedule="persistent", push_site="side_stream"),
            default.replace(loads="pointer"),
            Config({"mode": "own_collective", "comm_programs": min(32, machine.compute_units // 4), **gathering}),
            Config({"mode": "copy_engine", "transfer_rows": unit, "gemm_streams": 1}),
            Config({"mode": "pull_staged", **staged}),
            Config({"mode": "pull", **tile}),
            Config({"mode": "pull", **tile, "loads": "pointer"}),
        ]
        return [config for config in found if SPACE.violation(config, problem, machine) is None]

    @staticmethod
    def _streaming(default: Config, machine: Machine) -> list[Config]:
        """For few rows: deep steps of B, many splits, all of them loading before A is there."""
        deep = default.replace(
            block_n=64, block_k=512, split_k=16, preload_b=True, num_stages=1, num_warps=8, loads="pointer",
            comm_programs=min(8, machine.compute_units // 4), copy_kib=2,
        )  # fmt: skip
        return [
            deep,
            deep.replace(block_k=256, comm_programs=4),
            deep.replace(block_k=128, split_k=8, num_stages=4, num_warps=4),
            deep.replace(block_n=32, num_warps=4),
            deep.replace(block_n=128, block_k=128, split_k=4, num_stages=4),
        ]

    def baselines(self, problem: AllGatherGemm, machine: Machine) -> dict[str, Config]:
        """The library's all-gather, then its GEMM: eager, and as a CUDA graph where there are graphs."""
        both = {
            "bsp eager": Config({"mode": "bsp", "launch": "eager"}),
            "bsp graph": Config({"mode": "bsp", "launch": "graph"}),
        }
        return {name: c for name, c in both.items() if SPACE.violation(c, problem, machine) is None}

    def predict(self, problem: AllGatherGemm, config: Config, machine: Machine) -> float | None:
        """By rooflines."""
        return gemm_latency(problem, config, machine)

    def tolerance_of(self, problem: AllGatherGemm, config: Config, machine: Machine) -> Tolerance:
        """The result alone is rounded, or what the library's GEMM rounds on its way there."""
        ours = config["mode"] in ("push", "pull", "pull_staged")
        roundings = 1.0 if ours else 1.0 + OF_A_LIBRARY
        return rounded(problem.dtype, roundings, problem.k, problem.m * problem.n_local, machine)

    def heap_bytes(self, problem: AllGatherGemm) -> int:
        """A's shard and the largest scratch."""
        rows, width = problem.shard
        return rows * width * problem.element_size + launch.scratch_bytes(problem) + (1 << 20)

    def operation(
        self, problem: AllGatherGemm, heap: SymmetricHeap, machine: Machine, spin_limit: int
    ) -> AllGatherGemmOperation:
        """Set up on this rank."""
        return AllGatherGemmOperation(problem, heap, machine, spin_limit)

    def compile(self, problem: AllGatherGemm, config: Config, machine: Machine) -> list[Compiled]:
        """From meta tensors: no memory, no device."""
        dtype = TORCH_DTYPES[problem.dtype]
        transposed = problem.b_order == "nk"
        b = meta((problem.n_local, problem.k) if transposed else (problem.k, problem.n_local), dtype)
        tensors = GemmTensors(
            a=meta(problem.shard, dtype),
            b=b.t() if transposed else b,
            c=meta((problem.m, problem.n_local), dtype),
            bias=meta((problem.n_local,), dtype) if problem.bias else None,
        )
        scratch = launch.allocate_scratch(problem, config, machine, meta, meta)
        bases = meta((problem.world_size,), torch.int64)
        return compile_all(launch.plan(problem, config, machine, tensors, scratch, bases, 0, SPINS_OFFLINE))


WORKLOAD = AllGatherGemmWorkload()
