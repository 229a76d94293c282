"""Experts of a mixture that are shared out over ranks, by our operators: tokens travel to them and back; inference."""

from __future__ import annotations

import math
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import nn

from autotune.errors import InvalidProblem
from autotune.nn.functional import readable
from autotune.runtime.context import Context
from autotune.runtime.experts import moe_dispatch_gemm, moe_gemm_combine

Tensor = torch.Tensor
collectives = torch.ops._c10d_functional


class Experts(Protocol):
    """Stacked experts, as mixtures of Hugging Face transformers hold them."""

    gate_up_proj: Tensor
    """[experts, 2 * width, hidden]: gate, then up."""
    down_proj: Tensor
    """[experts, hidden, width]."""


def routed(logits: Tensor, top_k: int, *, normalised: bool = True) -> tuple[Tensor, Tensor]:
    """The experts of each token by a router's ``logits`` [..., experts]: ids int32 and gates fp32, [..., top_k].

    Gates are the softmax over all experts; ``normalised``: divided by their sum over the token's own.
    """
    gates, ids = torch.topk(torch.softmax(logits.float(), -1), top_k, -1)
    return ids.to(torch.int32), gates / gates.sum(-1, keepdim=True) if normalised else gates


def expert_parallel(
    context: Context, x: Tensor, ids: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor, *,
    tokens: int | None = None, replicated: bool = False, routing: str = "uniform", exponent: float = 0.0,
) -> Tensor:  # fmt: skip
    """Each token's sum of gate * expert over its experts, by ``moe_dispatch_gemm`` and ``moe_gemm_combine``.

    Collective. ``x`` [..., hidden] are this rank's tokens, bf16, fp16 or fp32; ``ids`` (whole numbers) and ``gates``
    [..., top_k] their experts, as ``moe_dispatch`` takes them. Rank r holds the experts r * L to (r + 1) * L - 1:
    ``gate_up`` [L, 2 * width, hidden] and ``down`` [L, hidden, width]; an expert is down(SiLU(gate) * up). The result
    has the form of ``x``; the host reads nothing.

    Every rank brings as many tokens. Where their numbers differ, ``tokens`` is the most that any rank has: fewer are
    filled up with tokens without experts. No token is left out, whatever the routing is. ``replicated``: the tokens are
    the same on every rank; each sends its part of them, and the results are gathered. ``routing`` and ``exponent`` are
    those of ``moe_dispatch``.

    Raises InvalidProblem for more tokens than ``tokens``, where shapes or types do not fit, and where a gradient is
    needed: there is no backward.
    """
    rows, ids = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1]).to(torch.int32)
    gates, count, ranks = gates.reshape(ids.shape).float(), len(rows), context.heap.world_size
    if tokens is not None and count > tokens:
        raise InvalidProblem(f"x has {count} tokens, more than tokens={tokens}, the most that a call may bring")
    least = tokens if tokens is not None else count
    if replicated:
        least = -(-least // ranks)
        rows, ids, gates = (_part(each, least, context.heap.rank) for each in (rows, ids, gates))
    rows, ids, gates = (_filled(rows, least, 0), _filled(ids, least, -1), _filled(gates, least, 0))
    rows, gates, gate_up, down = readable(rows, gates, gate_up, down)
    popularity: dict[str, Any] = {"routing": routing, "exponent": exponent}
    experts = ranks * gate_up.shape[0]
    found = moe_dispatch_gemm(context, rows, ids, gates, gate_up.mT, experts=experts, **popularity)
    plan = found.offsets, found.pairs, found.gates
    out = moe_gemm_combine(context, found.rows, down.mT, *plan, ids, **popularity)
    if replicated:
        out = collectives.wait_tensor(collectives.all_gather_into_tensor(out, ranks, context.group_name))
    return out[:count].view(x.shape)


def _part(tensor: Tensor, rows: int, rank: int) -> Tensor:
    """A rank's rows: the last ranks may have fewer, or none."""
    return tensor[rank * rows : (rank + 1) * rows]


def _filled(tensor: Tensor, rows: int, value: int) -> Tensor:
    """The tensor with so many rows, contiguous; those that it lacks have this value."""
    missing = rows - len(tensor)
    return F.pad(tensor, (0, 0, 0, missing), value=value) if missing else tensor.contiguous()


class ExpertParallel(nn.Module):
    """A rank's experts of a mixture; parameters are named, and lie, as in mixtures of Hugging Face transformers.

    For inference: its operators have no backward, and raise InvalidProblem where autograd needs one.
    """

    def __init__(
        self, context: Context, experts: int, hidden: int, width: int, *, tokens: int | None = None,
        replicated: bool = False, routing: str = "uniform", exponent: float = 0.0,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """``experts`` are those of all ranks together; the other options are those of ``expert_parallel``.

        ``device`` is the context's by default. Parameters are drawn from this rank's own generator. Raises
        InvalidProblem where the ranks do not divide the experts.
        """
        super().__init__()
        ranks = context.heap.world_size
        if experts % ranks:
            raise InvalidProblem(f"experts={experts}: {ranks} ranks do not divide it")
        self.context, self.experts, self.hidden, self.width = context, experts, hidden, width
        self.tokens, self.replicated, self.routing, self.exponent = tokens, replicated, routing, exponent
        form: dict[str, Any] = {"device": context.heap.device if device is None else device, "dtype": dtype}
        self.gate_up_proj = nn.Parameter(torch.empty(experts // ranks, 2 * width, hidden, **form))
        self.down_proj = nn.Parameter(torch.empty(experts // ranks, hidden, width, **form))
        self.reset_parameters()

    @classmethod
    def from_experts(cls, experts: Experts, context: Context, **options: Any) -> Self:
        """This rank's share of all experts, which every rank has; ``options`` are those of the constructor."""
        count = experts.gate_up_proj.shape[0]
        made = cls._like(experts, context, count, options)
        with torch.no_grad():
            for name, mine in made.named_parameters(recurse=False):
                mine.copy_(getattr(experts, name).chunk(context.heap.world_size)[context.heap.rank])
        return made

    @classmethod
    def from_shard(cls, shard: Experts, context: Context, **options: Any) -> Self:
        """The layer of which ``shard`` is this rank's part; it takes the parameters over, without a copy."""
        made = cls._like(shard, context, shard.gate_up_proj.shape[0] * context.heap.world_size, options, "meta")
        made.gate_up_proj, made.down_proj = nn.Parameter(shard.gate_up_proj), nn.Parameter(shard.down_proj)
        return made

    @classmethod
    def _like(
        cls, experts: Experts, context: Context, count: int, options: dict[str, Any], device: Any = None
    ) -> Self:  # fmt: skip
        like = experts.gate_up_proj
        _, hidden, width = experts.down_proj.shape
        return cls(context, count, hidden, width, device=device or like.device, dtype=like.dtype, **options)

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as ``nn.Linear`` does."""
        for parameter, depth in ((self.gate_up_proj, self.hidden), (self.down_proj, self.width)):
            bound = 1 / math.sqrt(depth)
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        return expert_parallel(
            self.context, x, ids, gates, self.gate_up_proj, self.down_proj, tokens=self.tokens,
            replicated=self.replicated, routing=self.routing, exponent=self.exponent,
        )  # fmt: skip

    def extra_repr(self) -> str:
        said = f"experts={self.experts}, hidden={self.hidden}, width={self.width}, ranks={self.context.heap.world_size}"
        return f"{said}, tokens={self.tokens}, replicated={self.replicated}"
