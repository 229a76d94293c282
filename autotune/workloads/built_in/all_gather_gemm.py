"""All-gather + GEMM as a workload: C = all_gather(A) @ B (+ bias)."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.config import Config
from autotune.cost_models import gemm_latency
from autotune.environment import Machine
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.all_gather_gemm import launch
from autotune.kernels.all_gather_gemm.library import multiply
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Compiled, compile_all
from autotune.kernels.launching.tensors import TORCH_DTYPES, meta
from autotune.search_spaces.all_gather_gemm import SPACE, default_config
from autotune.workloads.built_in.gemm import GemmOperation
from autotune.workloads.scratch import SPINS_OFFLINE
from autotune.workloads.workload import Run, Workload


class AllGatherGemmOperation(GemmOperation):
    """A's shard lies on the heap, the rest in ordinary memory."""

    launcher: ClassVar = launch

    def __init__(self, problem: AllGatherGemm, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Inputs are undefined until ``refresh``."""
        dtype, device = TORCH_DTYPES[problem.dtype], heap.device
        b_shape = (problem.n_local, problem.k) if problem.b_order == "nk" else (problem.k, problem.n_local)
        b = torch.empty(b_shape, dtype=dtype, device=device)
        tensors = GemmTensors(
            a=heap.allocate(problem.shard, dtype),
            b=b.t() if problem.b_order == "nk" else b,
            c=torch.empty((problem.m, problem.n_local), dtype=dtype, device=device),
            bias=torch.empty(problem.n_local, dtype=dtype, device=device) if problem.bias else None,
        )
        super().__init__(problem, tensors, heap, machine, spin_limit)

    def refresh(self, seed: int) -> None:
        """Every rank draws every rank's shard from the seed, so that the reference needs no communication at all."""
        tensors, rank = self._tensors, self._heap.rank
        shards = [self.draw(tensors.a, seed * 1000 + other) for other in range(self._heap.world_size)]
        tensors.a.copy_(shards[rank])
        tensors.b.copy_(self.draw(tensors.b, seed * 1000 + 500 + rank))
        wide = self.wide
        whole = torch.cat(shards, dim=0 if self._problem.rows_layout else 1)
        self._reference = whole.to(wide) @ tensors.b.to(wide)
        if tensors.bias is not None:
            tensors.bias.copy_(self.draw(tensors.bias, seed * 1000 + 750 + rank))
            self._reference += tensors.bias.to(wide)
        tensors.c.fill_(float("nan"))
        if self.scratch is not None:
            self.scratch.inbox.fill_(float("nan"))

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
        unit = max((v for v in SPACE.dimensions["unit_rows"].values if int(v) <= rows), default=16)
        found = [
            default,
            *self._streaming(default, machine),
            *(default.replace(k_chunks=chunks) for chunks in (4, 8)),
            default.replace(**persistent),
            default.replace(schedule="persistent", push_site="side_stream"),
            default.replace(loads="pointer"),
            Config({"mode": "own_collective", "comm_programs": min(32, machine.compute_units // 4), **gathering}),
            Config({"mode": "copy_engine", "unit_rows": unit, "gemm_streams": 1}),
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
