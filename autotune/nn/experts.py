"""Experts of a mixture that are shared out over ranks, by our operators: tokens travel to them and back; inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, cast, get_args

import torch
from torch import nn

from autotune.errors import InvalidProblem
from autotune.kernels.moe.problem import MOST_CHOICES
from autotune.nn.functional import readable
from autotune.runtime.context import Context, check_context
from autotune.runtime.gradients import autocast
from autotune.runtime.operators import moe_dispatch_gemm, moe_gemm_combine
from autotune.runtime.tokens import expert_ids, lacking, longer
from autotune.workloads.dispatched import check_routing

Tensor = torch.Tensor
collectives = torch.ops._c10d_functional

Share = Literal["experts", "width"]
"""A rank's part: whole experts, or a part of the width of every expert."""


@dataclass(frozen=True)
class ExpertForm:
    """An expert's activation, its biases, and the order of its weights; by default Mixtral's."""

    epilogue: str = "swiglu"
    """Of gate and up, as ``moe_dispatch_gemm`` has them."""
    gate_up: str = "halves"
    """Columns of the first matrix: ``halves``, or ``interleaved``."""
    bias: bool = False
    transposed: bool = False
    """True: weights are [experts, hidden, 2 * width] and [experts, width, hidden]."""

    @property
    def parameters(self) -> tuple[str, ...]:
        weights = ("gate_up_proj", "down_proj")
        return (*weights, *(f"{name}_bias" for name in weights)) if self.bias else weights


MIXTRAL = ExpertForm()
GPT_OSS = ExpertForm("swiglu_oai", "interleaved", bias=True, transposed=True)


class Experts(Protocol):
    """Stacked experts, as mixtures of Hugging Face transformers hold them; with biases also ``gate_up_proj_bias``
    [experts, 2 * width] and ``down_proj_bias`` [experts, hidden].
    """

    gate_up_proj: Tensor
    """[experts, 2 * width, hidden]: gate, then up; or see ``ExpertForm``."""
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
    biases: Sequence[Tensor] = (), form: ExpertForm = MIXTRAL, share: Share = "experts", tokens: int | None = None,
    replicated: bool = False, routing: str = "uniform", exponent: float = 0.0, histogram: str = "",
) -> Tensor:  # fmt: skip
    """Each token's sum of gate * expert over its experts, by ``moe_dispatch_gemm`` and ``moe_gemm_combine``.

    Collective. ``x`` [..., hidden] are this rank's tokens, bf16, fp16 or fp32; ``ids`` and ``gates`` [..., top_k]
    their experts, as ``moe_dispatch`` takes them. Rank r holds the experts r * L to (r + 1) * L - 1:
    ``gate_up`` [L, 2 * width, hidden] and ``down`` [L, hidden, width]; an expert is down(SiLU(gate) * up), or as
    ``form`` says, ``GPT_OSS`` for that model's; ``biases`` are none, or [L, 2 * width] and [L, hidden]. The result
    has the shape of ``x``; the host reads nothing. ``share="width"``: rank r holds a part of every expert, ``gate_up``
    [experts, 2 * width / ranks, hidden], its part of gate, then of up, and ``down`` [experts, hidden, width / ranks],
    whose bias is zero but on one rank; tokens are gathered, and sums scattered. ``torch.autocast`` casts tokens and
    weights, in every call.

    Every rank brings as many tokens, 0 too. Where their numbers differ, ``tokens``, the same on every rank, is the most
    that any of them has: fewer are filled up with tokens without experts. No token is left out, whatever the routing
    is. ``replicated``: the tokens are the same on every rank; each sends its part of them, and the results are
    gathered. ``routing``, ``exponent`` and ``histogram`` are those of ``moe_dispatch``, the histogram with a count for
    each whole expert.

    Raises InvalidProblem for more tokens than ``tokens``, where shapes or types do not fit, and where a gradient is
    needed: there is no backward.
    """
    _check_share(share)
    rows, ids, gates = (each.reshape(-1, each.shape[-1]) for each in (x, ids, gates))
    ids, gates = expert_ids(ids).contiguous(), gates.float().contiguous()
    check_routing(rows, ids, gates)  # before rows are filled up or shared out, which makes any number fit
    if len(biases) not in (0, 2):
        raise InvalidProblem(f"{len(biases)} biases: none, or those of gate_up and of down, expected")
    if form.transposed:
        gate_up, down = gate_up.mT, down.mT
    if down.shape[1:2] != gate_up.shape[2:]:
        raise InvalidProblem(
            f"gate_up is {list(gate_up.shape)}, down {list(down.shape)}: expected [local experts, 2 * width, hidden] "
            "and [local experts, hidden, width]"
        )
    count, ranks = len(rows), context.heap.world_size
    least = count + lacking(rows, tokens)
    if replicated:
        least = -(-least // ranks)
        own = slice(context.heap.rank * least, (context.heap.rank + 1) * least)  # the last ranks' are shorter, or empty
        rows, ids, gates = rows[own], ids[own], gates[own]
    missing = least - len(rows)
    rows, ids, gates = longer(rows, missing), longer(ids, missing, -1), longer(gates, missing)
    if share == "width":
        ids, gates = _to_every_rank(ids, gates, gate_up.shape[0], ranks)
    rows, gate_up, down, *more = cast(list[Tensor], autocast((rows, gate_up, down, *biases), x.device.type))
    rows, gates, gate_up, down, *more = readable(rows, gates, gate_up, down, *more)
    gate_up_bias, down_bias = more or (None, None)
    popularity: dict[str, Any] = {"routing": routing, "exponent": exponent}
    popularity["histogram"] = histogram * ranks if share == "width" else histogram
    experts = ranks * gate_up.shape[0]
    found = moe_dispatch_gemm(
        context, rows, ids, gates, gate_up.mT, experts=experts, epilogue=form.epilogue, gate_up=form.gate_up,
        bias=gate_up_bias, **popularity,
    )  # fmt: skip
    plan = found.offsets, found.pairs, found.gates
    out = moe_gemm_combine(context, found.rows, down.mT, *plan, ids, bias=down_bias, **popularity)
    if replicated and least:
        out = collectives.wait_tensor(collectives.all_gather_into_tensor(out, ranks, context.group_name))
    return out[:count].view(x.shape).to(x.dtype)


def _check_share(share: str) -> None:
    if share not in get_args(Share):
        raise InvalidProblem(f"share={share!r}: allowed: {', '.join(get_args(Share))}")


def _to_every_rank(ids: Tensor, gates: Tensor, experts: int, ranks: int) -> tuple[Tensor, Tensor]:
    """Ids and gates [tokens, top_k * ranks] of ranks * experts, each a rank's part of an expert.

    A token goes to a rank once, and its rows are summed there before they travel back: so this is an all-gather, and a
    reduce-scatter.
    """
    if ids.shape[1] * ranks > MOST_CHOICES:
        raise InvalidProblem(
            f"top_k={ids.shape[1]} on {ranks} ranks: experts that share the width take top_k * ranks of at most "
            f"{MOST_CHOICES}; use share='experts'"
        )
    exist = ((ids >= 0) & (ids < experts))[..., None]
    first = torch.arange(0, ranks * experts, experts, dtype=torch.int32, device=ids.device)
    return torch.where(exist, ids[..., None] + first, -1).flatten(1), gates.repeat_interleave(ranks, 1)


def _of_width(name: str, whole: Tensor, form: ExpertForm, ranks: int, rank: int) -> Tensor:
    """A rank's part of the width of all experts: columns of gate and of up, and rows of down."""
    if name == "down_proj":
        return whole.chunk(ranks, 1 if form.transposed else 2)[rank]
    dim = 2 if form.transposed and name == "gate_up_proj" else 1
    parts = whole.chunk(2, dim) if form.gate_up == "halves" else [whole]
    return torch.cat([part.chunk(ranks, dim)[rank] for part in parts], dim)


class ExpertParallel(nn.Module):
    """A rank's experts of a mixture; parameters are named, and lie, as in mixtures of Hugging Face transformers.

    For inference: its operators have no backward, and raise InvalidProblem where autograd needs one.
    """

    def __init__(
        self, context: Context, experts: int, hidden: int, width: int, *, form: ExpertForm = MIXTRAL,
        share: Share = "experts", tokens: int | None = None, replicated: bool = False, routing: str = "uniform",
        exponent: float = 0.0, histogram: str = "", device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """``experts`` and ``width`` are those of all ranks together; the options are those of ``expert_parallel``.

        ``device`` is the context's by default. Parameters are drawn from this rank's own generator. Raises
        InvalidProblem where the ranks do not divide what they share.
        """
        check_context(context)
        super().__init__()
        ranks, shared = context.heap.world_size, {"experts": experts, "width": width}
        _check_share(share)
        if shared[share] % ranks:
            raise InvalidProblem(f"{share}={shared[share]}: {ranks} ranks do not divide it")
        self.context, self.experts, self.hidden, self.width, self.share = context, experts, hidden, width, share
        self.form = form
        self.tokens, self.replicated = tokens, replicated
        self.routing, self.exponent, self.histogram = routing, exponent, histogram
        kind: dict[str, Any] = {"device": context.heap.device if device is None else device, "dtype": dtype}
        shared[share] //= ranks
        count, columns, depth = shared["experts"], 2 * shared["width"], shared["width"]
        first, second = (columns, hidden), (hidden, depth)
        if form.transposed:
            first, second = first[::-1], second[::-1]
        sizes = ((count, *first), (count, *second), (count, columns), (count, hidden))
        for name, shape in zip(form.parameters, sizes, strict=False):
            setattr(self, name, nn.Parameter(torch.empty(shape, **kind)))
        self.reset_parameters()

    @classmethod
    def from_experts(cls, experts: Experts, context: Context, **options: Any) -> Self:
        """This rank's share of all experts, which every rank has; ``options`` are those of the constructor."""
        made = cls._like(experts, context, (1, 1), options)
        ranks, rank = context.heap.world_size, context.heap.rank
        with torch.no_grad():
            for name in made.form.parameters:
                mine, whole = getattr(made, name), getattr(experts, name)
                if made.share == "experts":
                    mine.copy_(whole.chunk(ranks)[rank])
                elif name == "down_proj_bias":  # the ranks' parts are summed: one adds it
                    mine.copy_(whole if rank == 0 else torch.zeros_like(whole))
                else:
                    mine.copy_(_of_width(name, whole, made.form, ranks, rank))
        return made

    @classmethod
    def from_shard(cls, shard: Experts, context: Context, **options: Any) -> Self:
        """The layer of which ``shard`` is this rank's part; it takes the parameters over, without a copy."""
        ranks = context.heap.world_size
        times = (1, ranks) if options.get("share") == "width" else (ranks, 1)
        made = cls._like(shard, context, times, options, "meta")
        for name in made.form.parameters:
            given = getattr(shard, name)
            setattr(made, name, nn.Parameter(given, given.requires_grad))
        return made

    @classmethod
    def _like(
        cls, experts: Experts, context: Context, times: tuple[int, int], options: dict[str, Any], device: Any = None
    ) -> Self:  # fmt: skip
        """A layer with ``times`` as many experts and as much width."""
        like, (count, hidden, width) = experts.gate_up_proj, experts.down_proj.shape
        if options.get("form", MIXTRAL).transposed:
            hidden, width = width, hidden
        kind: dict[str, Any] = {"device": device or like.device, "dtype": like.dtype}
        made = cls(context, count * times[0], hidden, width * times[1], **kind, **options)
        for name in made.form.parameters:
            getattr(made, name).requires_grad_(getattr(experts, name).requires_grad)
        return made

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as ``nn.Linear`` does."""
        for name in self.form.parameters:
            bound = 1 / math.sqrt(self.hidden if name.startswith("gate_up") else self.width)
            nn.init.uniform_(getattr(self, name), -bound, bound)

    def forward(self, x: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
        gate_up, down, *biases = (getattr(self, name) for name in self.form.parameters)
        return expert_parallel(
            self.context, x, ids, gates, gate_up, down, biases=biases, form=self.form, share=self.share,
            tokens=self.tokens, replicated=self.replicated, routing=self.routing, exponent=self.exponent,
            histogram=self.histogram,
        )  # fmt: skip

    def extra_repr(self) -> str:
        said = f"experts={self.experts}, hidden={self.hidden}, width={self.width}, ranks={self.context.heap.world_size}"
        return f"{said}, share={self.share}, tokens={self.tokens}, replicated={self.replicated}"
