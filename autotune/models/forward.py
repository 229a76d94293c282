"""A model's forward on the ranks of a tensor-parallel group: its problems, how often each is called, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.dtypes import FP8
from autotune.errors import InputError
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.flash_decode.problem import HEAD_DIMS, FlashDecode
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.moe.problem import MOST_CHOICES
from autotune.models.architecture import Architecture
from autotune.problem import Problem
from autotune.text import counted


@dataclass(frozen=True)
class Call:
    layer: str
    problem: Problem
    count: int
    """Calls of it in one forward."""
    place: str = ""
    """Calls of one place and size are alternatives, of which a forward makes those of one way."""
    way: int = 0
    """Calls of a place that are made together have a way's number; 0: this one alone."""


Way = tuple[Call, ...]
"""Calls that a forward makes together."""

Place = tuple[Way, ...]
"""The ways to do one thing in a forward, of which it takes one."""


def places(calls: Iterable[Call]) -> list[Place]:
    """The places of a forward in the order of its calls; a call that names none is one of its own."""
    found: dict[object, dict[object, list[Call]]] = {}
    for number, call in enumerate(calls):
        sizes = [getattr(call.problem, name) for name in call.problem.free]
        ways = found.setdefault((call.place, *sizes) if call.place else number, {})
        ways.setdefault(call.way or call.problem, []).append(call)
    return [tuple(map(tuple, ways.values())) for ways in found.values()]


def repeated(way: Way, place: Place) -> int:
    """Calls of a way beyond one each time that a forward comes to the place: of GEMMs behind one gather."""
    return sum(call.count for call in way) - min(call.count for each in place for call in each)


@dataclass(frozen=True)
class Work:
    """The work of a rank in a forward that needs no communication, for a roofline."""

    flops: float
    bytes_read: float
    dtype: str


@dataclass(frozen=True)
class Forward:
    title: str
    calls: tuple[Call, ...]
    rest: tuple[Work, ...] = ()
    """GEMMs without a collective, attention in a prefill, and the head; norms and what is fused into others not."""


@dataclass(frozen=True)
class Plan:
    """The ranks, token counts and types of a run."""

    ranks: int
    dtype: str
    scales: str = "none"
    sequence_parallel_from: int | None = 128
    """Tokens from which on activations are sharded by tokens; None: never."""
    separate: bool = False
    """True: q, k, v, gate and up are linear layers of their own."""
    contexts: Sequence[int] = ()
    """Tokens in a KV cache that is sharded by sequence; none: each rank has all tokens of its heads."""
    zipf: float = 0.0
    """Exponent of the popularity of experts; 0: all are equally popular."""
    experts_by_width: bool = False
    """True: the ranks share the width of every expert; False: whole experts."""

    def sequence_parallel(self, tokens: int) -> bool:
        """True if the ranks share the tokens out between the layers."""
        least = self.sequence_parallel_from
        return least is not None and tokens >= least and tokens % self.ranks == 0


def forwards(model: Architecture, plan: Plan, tokens: Sequence[int]) -> list[Forward]:
    """One for each number of tokens. Raises InputError where the ranks cannot share the model out."""
    if plan.ranks < 2:
        raise InputError(f"--tp {plan.ranks}: one rank communicates with nobody; allowed: 2 and more")
    if (model.attention and model.heads % plan.ranks) or any(width % plan.ranks for _, width, _ in model.mlps):
        widths = [f"an intermediate size of {width}" for _, width, _ in model.mlps]
        heads = [f"{model.heads} heads"] if model.attention else []
        raise InputError(f"--tp {plan.ranks} must divide {' and '.join(heads + widths)}")
    if model.attention and model.kv_heads % plan.ranks and plan.ranks % model.kv_heads:
        raise InputError(f"--tp {plan.ranks} must divide {model.kv_heads} KV heads, or be a multiple of them")
    if model.mixture is not None:
        shared = model.mixture.width if plan.experts_by_width else model.mixture.experts
        if shared % plan.ranks:
            what = f"an expert's width of {shared}" if plan.experts_by_width else f"{shared} experts"
            raise InputError(f"--tp {plan.ranks} must divide {what}")
        if plan.experts_by_width and model.mixture.top_k * plan.ranks > MOST_CHOICES:
            raise InputError(
                f"--experts-by-width: {model.mixture.top_k} experts per token on {plan.ranks} ranks; experts per token "
                f"times ranks may be {MOST_CHOICES} at most"
            )
    if plan.contexts and model.attention and model.head_dim not in HEAD_DIMS:
        raise InputError(
            f"--context: flash decode takes heads of {', '.join(map(str, HEAD_DIMS))} elements, not {model.head_dim}"
        )
    return [_forward(model, plan, each) for each in tokens]


def _forward(model: Architecture, plan: Plan, tokens: int) -> Forward:
    calls = tuple(_calls(model, plan, tokens))
    return Forward(counted(tokens, "token"), calls, tuple(_rest(model, plan, tokens)))


def qkv_width(model: Architecture, ranks: int) -> int:
    """Columns of the fused projection; each rank has one KV head at least."""
    return (model.heads + 2 * max(model.kv_heads, ranks)) * model.head_dim


def _inputs(model: Architecture, plan: Plan) -> Iterator[tuple[str, int, bool, int]]:
    """The linear layers behind a gather: name, columns, whether they have a bias, how many of them the model has."""
    layers, biases, whole = model.layers, model.biases, not plan.separate
    if model.attention and whole:
        yield "q, k, v", qkv_width(model, plan.ranks), biases.qkv, layers
    elif model.attention:
        yield "q", model.heads * model.head_dim, biases.qkv, layers
        yield "k, v", max(model.kv_heads, plan.ranks) * model.head_dim, biases.qkv, 2 * layers
    for name, width, count in model.mlps:
        yield f"gate, up{name}", (2 if whole else 1) * width, biases.mlp, (1 if whole else 2) * count


def _outputs(model: Architecture) -> Iterator[tuple[str, int, bool, int]]:
    """The linear layers before a sum over ranks: name, depth, whether they have a bias, how many the model has."""
    if model.attention:
        yield "attention out", model.heads * model.head_dim, model.biases.out, model.layers
    for name, width, count in model.mlps:
        yield f"down{name}", width, model.biases.mlp, count


def _calls(model: Architecture, plan: Plan, tokens: int) -> Iterator[Call]:
    common: dict[str, Any] = {
        "m": tokens, "world_size": plan.ranks, "dtype": plan.dtype, "scales": plan.scales, "b_order": "nk",
    }  # fmt: skip
    gathered = plan.sequence_parallel(tokens)
    if gathered:
        for layer, width, bias, count in _inputs(model, plan):
            yield Call(layer, AllGatherGemm(**common, n=width, k=model.hidden, bias=bias), count)
    for layer, depth, bias, count in _outputs(model):
        kind = GemmReduceScatter if gathered else GemmAllReduce
        yield Call(layer, kind(**common, n=model.hidden, k=depth, bias=bias), count)
    if model.attention and not gathered:
        for context in plan.contexts:
            if count := model.layers_over(context):
                yield Call(f"attention, {context} tokens", _flash_decode(model, plan, tokens, context), count)
    if model.mixture is not None:
        named = model.mixture.problems(
            model.hidden, tokens, plan.ranks, plan.dtype, plan.scales, plan.zipf, plan.experts_by_width
        )  # fmt: skip
        yield from (Call(layer, problem, model.mixture.layers) for layer, problem in named)


def _flash_decode(model: Architecture, plan: Plan, tokens: int, context: int) -> FlashDecode:
    if context % plan.ranks:
        raise InputError(f"--context {context}: {plan.ranks} ranks must divide it")
    return FlashDecode(
        batch=tokens, q_heads=model.heads, kv_heads=model.kv_heads, head_dim=model.head_dim,
        kv_len=context // plan.ranks, page_size=16, soft_cap=model.soft_cap, world_size=plan.ranks,
        dtype="fp16" if plan.dtype == "fp16" else "bf16",
    )  # fmt: skip


def _rest(model: Architecture, plan: Plan, tokens: int) -> Iterator[Work]:
    size = 1 if plan.dtype in FP8 else 4 if plan.dtype == "fp32" else 2

    def gemm(columns: float, depth: float, times: int, rows: int = tokens) -> Work:
        return Work(2.0 * rows * columns * depth * times, (rows + columns) * depth * size * times, plan.dtype)

    if plan.sequence_parallel(tokens):
        width = model.heads * model.head_dim / plan.ranks if model.attention else 0
        # Causal: half of tokens squared, for the logits and again for the values.
        flops, read = 2.0 * tokens**2 * width * model.layers, 4.0 * tokens * width * size * model.layers
        yield Work(flops, read, "bf16" if plan.dtype in FP8 else plan.dtype)
        yield gemm(model.vocabulary / plan.ranks, model.hidden, 1, rows=1)
    else:
        if model.attention:
            yield gemm(qkv_width(model, plan.ranks) / plan.ranks, model.hidden, model.layers)
        for _, intermediate, count in model.mlps:
            yield gemm(2 * intermediate / plan.ranks, model.hidden, count)
        yield gemm(model.vocabulary / plan.ranks, model.hidden, 1)
