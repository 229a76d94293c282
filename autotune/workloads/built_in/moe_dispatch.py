"""Dispatch of tokens to the ranks of their experts, laid out by expert, as a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.tensors import TORCH_DTYPES, element_type
from autotune.kernels.moe.routing import planned
from autotune.kernels.moe_dispatch.launch import KERNELS, Scratch, Tensors
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.machine import Machine
from autotune.search_spaces.moe_dispatch import SPACE, default_config, first_configs
from autotune.workloads.experts import DrawnTokens, check_routing
from autotune.workloads.input_sets import InputSets, poison
from autotune.workloads.interface import Run
from autotune.workloads.launched import LaunchedOperation, LaunchedWorkload, Operands, eager_and_graph
from autotune.workloads.tolerance import Error, Tolerance

EXACT = Tolerance(0.0, 0.0)
"""A dispatch moves and does not compute."""

WRONG = Error(float("inf"), float("inf"))


class MoeDispatchOperation(LaunchedOperation[MoeDispatch, Tensors, Scratch]):
    """The tensors of one rank, and the config prepared last."""

    def __init__(self, problem: MoeDispatch, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """Inputs are undefined until ``refresh``."""
        super().__init__(KERNELS, problem, heap, machine, spin_limit)

    def refresh(self, seed: int) -> None:
        """Every rank draws every rank's tokens and routing, so that the reference needs no communication."""
        self._drawn = DrawnTokens(self._problem, self._heap, seed)
        self.put(DrawnTokens.PLAIN)
        for output in self.outputs():
            poison(output)
        self.poison()

    def put(self, number: int) -> None:
        """Enqueue what makes one of the drawn sets the inputs."""
        tensors = self._tensors
        self._drawn.put(number, tensors.x, tensors.ids, tensors.gates)
        self._number = number

    def inputs(self) -> Sequence[torch.Tensor]:
        return [self._tensors.x, self._tensors.ids, self._tensors.gates]

    def outputs(self) -> Sequence[torch.Tensor]:
        return [getattr(self._tensors, name) for name in KERNELS.results]

    def input_sets(self, seed: int) -> InputSets:
        """The same tokens times a factor, under another routing each."""
        self.refresh(seed)
        return _Sets(self)

    def error(self) -> Error:
        return self.error_of(self.outputs(), self._number)

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """Nothing, or infinite: the rows that exist, and their plan, are right to the bit or wrong."""
        rows, offsets, pairs, gates = outputs
        plan = planned(self._problem, self._drawn.routings[number], self._heap.rank)
        if not torch.equal(offsets, plan.offsets):
            return WRONG
        end = int(offsets[-1])
        expected = self._drawn.tokens(number, plan.pairs[:end] // self._problem.top_k)
        listed = torch.equal(pairs[:end], plan.pairs[:end]) and torch.equal(gates[:end], plan.gates[:end])
        return Error(0.0, 0.0) if listed and torch.equal(rows[:end], expected) else WRONG

    def parts(self) -> dict[str, Run]:
        """An even all-to-all of as many tokens as go to a rank on average, and a copy of as many rows."""
        problem, tensors = self._problem, self._tensors
        rows = max(1, round(problem.tokens * problem.reached))
        sent = torch.zeros(problem.world_size * rows, problem.hidden, dtype=tensors.x.dtype, device=tensors.x.device)
        arrived, taken = torch.zeros_like(sent), torch.zeros_like(tensors.rows[: problem.tokens * problem.top_k])
        place = torch.arange(taken.shape[0], device=sent.device) % sent.shape[0]

        def exchange() -> None:
            torch.distributed.all_to_all_single(arrived.view(torch.uint8), sent.view(torch.uint8))

        def lay_out() -> None:
            torch.index_select(arrived, 0, place, out=taken)

        return {"all_to_all": exchange, "layout": lay_out}


class _Sets(InputSets):
    """What ``DrawnTokens`` has drawn."""

    count = DrawnTokens.COUNT

    def __init__(self, operation: MoeDispatchOperation) -> None:
        self._operation = operation

    def put(self, number: int) -> None:
        self._operation.put(number)

    def error(self, number: int, outputs: Sequence[torch.Tensor]) -> Error:
        return self._operation.error_of(outputs, number)


class MoeDispatchWorkload(LaunchedWorkload):
    """Joins problem, kernels and space."""

    problem_type = MoeDispatch
    space = SPACE
    kernels = KERNELS
    options = ("experts", "routing", "exponent")

    def default_problem(self, machine: Machine, world_size: int) -> MoeDispatch:
        """DeepSeek-V3's hidden size with 32 experts per rank; a toy of the same form under the interpreter."""
        if machine.is_interpreter:
            return MoeDispatch(tokens=6, hidden=64, experts=3 * world_size, top_k=2, world_size=world_size)
        return MoeDispatch(tokens=128, hidden=7168, experts=32 * world_size, top_k=8, world_size=world_size)

    def default_config(self, problem: MoeDispatch, machine: Machine) -> Config:
        return default_config(problem, machine)

    def first_configs(self, problem: MoeDispatch, machine: Machine) -> list[Config]:
        return first_configs(problem, machine)

    def baselines(self, problem: MoeDispatch, machine: Machine) -> dict[str, Config]:
        """All-gather, whose shapes are fixed, and the all-to-all for which the host reads counts."""
        ways = {
            "bsp": Config({"mode": "bsp", "exchange": "all_gather"}),
            "bsp counted": Config({"mode": "bsp", "exchange": "all_to_all"}),
        }
        return eager_and_graph(SPACE, ways, problem, machine)

    def tolerance(self, problem: MoeDispatch) -> Tolerance:
        return EXACT

    def heap_bytes(self, problem: MoeDispatch) -> int:
        """The largest scratch, and the copy of x that peers read."""
        return super().heap_bytes(problem) + problem.tokens * problem.hidden * problem.element_size

    def operation(
        self, problem: MoeDispatch, heap: SymmetricHeap, machine: Machine, spin_limit: int
    ) -> MoeDispatchOperation:
        return MoeDispatchOperation(problem, heap, machine, spin_limit)

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> MoeDispatch:
        """X is a contiguous matrix, and ids and gates have a row for each of its rows."""
        x, ids, gates = (tensor for tensor in operands if tensor is not None)
        dtype = element_type({"x": x}, TORCH_DTYPES)
        check_routing(x, ids, gates)
        if x.dim() != 2 or not x.is_contiguous():
            raise InvalidProblem(f"x is {list(x.shape)}, strides {x.stride()}: needed is [tokens, hidden], contiguous")
        given = dict(zip(self.options, options, strict=True))
        tokens, hidden = x.shape
        return MoeDispatch(
            tokens=tokens, hidden=hidden, top_k=ids.shape[1], **given, dtype=dtype, world_size=world_size
        )  # fmt: skip

    def out_shapes(self, world_size: int, operands: Operands, options: Sequence[Any]) -> list[tuple[int, ...]]:
        problem = self.problem_of(world_size, operands, options)
        capacity = problem.capacity
        return [(capacity, problem.hidden), (problem.local_experts + 1,), (capacity,), (capacity,)]

    def out_dtypes(self, operands: Operands, options: Sequence[Any]) -> list[torch.dtype]:
        x = operands[0]
        assert x is not None
        return [x.dtype, torch.int32, torch.int32, torch.float32]


WORKLOAD = MoeDispatchWorkload()
