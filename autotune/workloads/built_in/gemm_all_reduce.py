"""GEMM + all-reduce as a workload: C = all_reduce(A @ B) (+ bias)."""

from __future__ import annotations

from typing import ClassVar

import torch

from autotune.config import Config
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.gemm_all_reduce import launch
from autotune.kernels.gemm_all_reduce.library import multiply
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import Compiled, compile_all
from autotune.kernels.launching.tensors import TORCH_DTYPES, meta
from autotune.machine import Machine
from autotune.search_spaces.gemm_all_reduce import KERNELS, SPACE, default_config, untuned
from autotune.workloads.built_in.gemm import GemmOperation, ring
from autotune.workloads.comparison import rounded
from autotune.workloads.roofline import gemm_latency
from autotune.workloads.scratch import SPINS_OFFLINE
from autotune.workloads.workload import Run, Tolerance, Workload


class GemmAllReduceOperation(GemmOperation):
    """Operands in ordinary memory."""

    launcher: ClassVar = launch

    def __init__(self, problem: GemmAllReduce, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Inputs are undefined until ``refresh``."""
        super().__init__(problem, _tensors(problem, heap.device), heap, machine, spin_limit)

    def draw_operands(self, seed: int) -> torch.Tensor:
        """Every rank draws every rank's operands, one rank's at a time: a large B is there only once more."""
        tensors, rank, wide = self._tensors, self._heap.rank, self.wide
        product = torch.zeros(tensors.c.shape, dtype=wide, device=self._heap.device)
        for other in range(self._heap.world_size):
            a, b = self.draw_a(seed * 1000 + other), self.draw_b(seed * 1000 + 500 + other)
            product += a.to(wide) @ b.to(wide)
            if other == rank:
                tensors.a.copy_(a)
                tensors.b.copy_(b)
        self.draw_bias(seed * 1000 + 999)
        return product

    def poison_scratch(self) -> None:
        """Inboxes and results."""
        self.scratch.poison()

    def parts(self) -> dict[str, Run]:
        """The library's GEMM alone, and its all-reduce of C alone."""
        tensors = self._tensors
        parts = torch.zeros_like(tensors.c)  # adding up again and again must not overflow
        return {
            "gemm": lambda: multiply(tensors, None, tensors.c),
            "all_reduce": lambda: torch.distributed.all_reduce(parts) and None,
        }


class GemmAllReduceWorkload(Workload):
    """The plug-in."""

    name = "gemm_all_reduce"
    problem_type = GemmAllReduce
    space = SPACE
    sources: ClassVar = ("autotune.kernels.gemm_all_reduce", "autotune.workloads.built_in.gemm")

    def default_problem(self, machine: Machine, world_size: int) -> GemmAllReduce:
        """Llama-70B's MLP down-projection at 16 tokens; a toy of the same form under the interpreter."""
        if machine.is_interpreter:
            return GemmAllReduce(m=16, n=128, k=64 * world_size, world_size=world_size)
        return GemmAllReduce(m=16, n=8192, k=28672 // world_size * world_size, world_size=world_size)

    def default_config(self, problem: GemmAllReduce, machine: Machine) -> Config:
        """See the search space."""
        return default_config(problem, machine)

    def first_configs(self, problem: GemmAllReduce, machine: Machine) -> list[Config]:
        """The default, then each mode as one would write it down, as it is and with its words and splits changed."""
        found = [default_config(problem, machine)]
        for base in filter(None, (untuned(mode, problem, machine) for mode in KERNELS)):
            found += [base, base.replace(combine="separate"), base.replace(split_k=2), base.replace(split_k=4)]
            if "protocol" in base:
                found += [base.replace(protocol="ll"), base.replace(protocol="ll", split_k=2)]
        return [config for config in dict.fromkeys(found) if SPACE.violation(config, problem, machine) is None]

    def baselines(self, problem: GemmAllReduce, machine: Machine) -> dict[str, Config]:
        """The library's GEMM, then its all-reduce: eager, and as a CUDA graph where there are graphs."""
        both = {
            "bsp eager": Config({"mode": "bsp", "launch": "eager"}),
            "bsp graph": Config({"mode": "bsp", "launch": "graph"}),
        }
        return {name: c for name, c in both.items() if SPACE.violation(c, problem, machine) is None}

    def predict(self, problem: GemmAllReduce, config: Config, machine: Machine) -> float | None:
        """By rooflines."""
        return gemm_latency(problem, config, machine)

    def tolerance_of(self, problem: GemmAllReduce, config: Config, machine: Machine) -> Tolerance:
        """Each part is rounded, and the sum; see ``ring`` for the library's."""
        roundings = ring(problem.world_size) if config["mode"] == "bsp" else 2.0
        return rounded(problem.dtype, roundings, problem.k, problem.m * problem.n, machine)

    def heap_bytes(self, problem: GemmAllReduce) -> int:
        """The largest scratch; operands lie elsewhere."""
        return launch.scratch_bytes(problem) + (1 << 20)

    def operation(
        self, problem: GemmAllReduce, heap: SymmetricHeap, machine: Machine, spin_limit: int
    ) -> GemmAllReduceOperation:
        """Set up on this rank."""
        return GemmAllReduceOperation(problem, heap, machine, spin_limit)

    def compile(self, problem: GemmAllReduce, config: Config, machine: Machine) -> list[Compiled]:
        """From meta tensors: no memory, no device."""
        if config["mode"] == "bsp":
            return []
        tensors = _tensors(problem, torch.device("meta"))
        scratch = launch.allocate_scratch(problem, config, machine, meta, meta)
        bases = meta((problem.world_size,), torch.int64)
        return compile_all(launch.plan(problem, config, machine, tensors, scratch, bases, 0, SPINS_OFFLINE))


def _tensors(problem: GemmAllReduce, device: torch.device) -> GemmTensors:
    dtype, transposed = TORCH_DTYPES[problem.dtype], problem.b_order == "nk"
    b_shape = (problem.n, problem.k_local) if transposed else (problem.k_local, problem.n)
    b = torch.empty(b_shape, dtype=dtype, device=device)
    return GemmTensors(
        a=torch.empty((problem.m, problem.k_local), dtype=dtype, device=device),
        b=b.t() if transposed else b,
        c=torch.empty((problem.m, problem.n), dtype=dtype, device=device),
        bias=torch.empty(problem.n, dtype=dtype, device=device) if problem.bias else None,
    )


WORKLOAD = GemmAllReduceWorkload()
