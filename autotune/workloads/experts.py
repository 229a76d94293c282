"""What the workloads of mixtures of experts share: drawn tokens with their routings, and the check of a caller's."""

from __future__ import annotations

import torch

from autotune.errors import InvalidProblem
from autotune.heap.arena import SymmetricHeap
from autotune.kernels.launching.tensors import OPERAND_DTYPES
from autotune.kernels.moe.problem import ExpertsProblem
from autotune.kernels.moe.routing import Kind, drawn_routing
from autotune.workloads.comparison import drawn

KINDS: tuple[Kind, ...] = ("one expert", "holes", "plain")
FACTORS = (2.0, -1.0, 1.0)
"""Of the tokens in each set: exact in every element type."""


class DrawnTokens:
    """All ranks' tokens, times a factor in each of COUNT sets, and each set's own routing.

    A config is timed on the inputs that were put last: after calls back to back these are the last set, the plain one.
    """

    COUNT = len(KINDS)
    PLAIN = KINDS.index("plain")

    def __init__(self, problem: ExpertsProblem, heap: SymmetricHeap, seed: int) -> None:
        shape = (problem.tokens, problem.hidden)
        dtype = OPERAND_DTYPES[problem.dtype]
        self._every = torch.cat(
            [drawn(shape, dtype, heap.device, seed * 1000 + rank) for rank in range(heap.world_size)]
        )
        self._own = self._every[heap.rank * problem.tokens :][: problem.tokens]
        self.routings = [
            drawn_routing(problem, heap.device, seed * 1000 + 500 + number, kind) for number, kind in enumerate(KINDS)
        ]
        self._rank = heap.rank

    def put(self, number: int, x: torch.Tensor, ids: torch.Tensor, gates: torch.Tensor) -> None:
        """Enqueue what makes a set this rank's operands."""
        torch.mul(self._own, FACTORS[number], out=x)
        ids.copy_(self.routings[number].ids[self._rank])
        gates.copy_(self.routings[number].gates[self._rank])

    def tokens(self, number: int, places: torch.Tensor) -> torch.Tensor:
        """Tokens of a set by their numbers, source rank * tokens + token."""
        return self._every[places] * FACTORS[number]


def check_routing(x: torch.Tensor, ids: torch.Tensor, gates: torch.Tensor) -> None:
    """Raise InvalidProblem unless ids and gates fit the tokens x [tokens, …]."""
    fits = ids.dim() == 2 and ids.shape[0] == x.shape[0] and gates.shape == ids.shape
    types = ids.dtype is torch.int32 and gates.dtype is torch.float32
    if not (fits and types and ids.is_contiguous() and gates.is_contiguous()):
        raise InvalidProblem(
            f"x is {list(x.shape)}, ids {list(ids.shape)} {ids.dtype}, gates {list(gates.shape)} {gates.dtype}: needed "
            "are ids and gates [tokens, top_k], int32 and float32, contiguous"
        )
