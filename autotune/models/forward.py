"""A model's forward on the ranks of a tensor-parallel group: its problems, how often each is called, and the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.dtypes import FP8
from autotune.errors import InputError
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.flash_decode.problem import HEAD_DIMS, FlashDecode
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.models.architecture import Architecture
from autotune.problem import Problem

GATE_UP = "gate, up"


@dataclass(frozen=True)
class Call:
    """One operator of a layer."""

    layer: str
    problem: Problem
    count: int
    """Calls of it in one forward."""


@dataclass(frozen=True)
class Work:
    """The work of a rank in a forward that needs no communication, for a roofline."""

    flops: float
    bytes_read: float


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

    def sequence_parallel(self, tokens: int) -> bool:
        """True if the ranks share the tokens out between the layers."""
        least = self.sequence_parallel_from
        return least is not None and tokens >= least and tokens % self.ranks == 0


def forwards(model: Architecture, plan: Plan, tokens: Sequence[int]) -> list[Forward]:
    """One for each number of tokens. Raises InputError where the ranks cannot share the model out."""
    if plan.ranks < 2:
        raise InputError(f"--tp {plan.ranks}: one rank communicates with nobody; allowed: 2 and more")
    if model.heads % plan.ranks or model.intermediate % plan.ranks:
        raise InputError(
            f"--tp {plan.ranks} must divide {model.heads} heads and an intermediate size of {model.intermediate}"
        )
    if plan.contexts and model.head_dim not in HEAD_DIMS:
        raise InputError(
            f"--context: flash decode takes heads of {', '.join(map(str, HEAD_DIMS))} elements, not {model.head_dim}"
        )
    return [_forward(model, plan, each) for each in tokens]


def _forward(model: Architecture, plan: Plan, tokens: int) -> Forward:
    calls = tuple(_calls(model, plan, tokens))
    return Forward(f"{tokens} token{'s' * (tokens > 1)}", calls, tuple(_rest(model, plan, tokens)))


def qkv_width(model: Architecture, ranks: int) -> int:
    """Columns of the fused projection; each rank has one KV head at least."""
    return (model.heads + 2 * max(model.kv_heads, ranks)) * model.head_dim


def _inputs(model: Architecture, plan: Plan) -> list[tuple[str, int, int]]:
    """The linear layers behind a gather: name, columns, how many of them a layer of the model has."""
    if not plan.separate:
        return [("q, k, v", qkv_width(model, plan.ranks), 1), (GATE_UP, 2 * model.intermediate, 1)]
    narrow = max(model.kv_heads, plan.ranks) * model.head_dim
    return [("q", model.heads * model.head_dim, 1), ("k, v", narrow, 2), (GATE_UP, model.intermediate, 2)]


def _calls(model: Architecture, plan: Plan, tokens: int) -> Iterator[Call]:
    common: dict[str, Any] = {
        "m": tokens, "world_size": plan.ranks, "dtype": plan.dtype, "scales": plan.scales, "b_order": "nk",
    }  # fmt: skip
    layers, biases = model.layers, model.biases
    out: dict[str, Any] = {"n": model.hidden, "k": model.heads * model.head_dim, "bias": biases.out}
    down: dict[str, Any] = {"n": model.hidden, "k": model.intermediate, "bias": biases.mlp}
    if plan.sequence_parallel(tokens):
        for layer, width, times in _inputs(model, plan):
            bias = biases.mlp if layer == GATE_UP else biases.qkv
            problem = AllGatherGemm(**common, n=width, k=model.hidden, bias=bias)
            yield Call(layer, problem, times * layers)
        yield Call("attention out", GemmReduceScatter(**common, **out), layers)
        yield Call("down", GemmReduceScatter(**common, **down), layers)
    else:
        yield Call("attention out", GemmAllReduce(**common, **out), layers)
        yield Call("down", GemmAllReduce(**common, **down), layers)
        for context in plan.contexts:
            yield Call(f"attention, {context} tokens", _flash_decode(model, plan, tokens, context), layers)


def _flash_decode(model: Architecture, plan: Plan, tokens: int, context: int) -> FlashDecode:
    if context % plan.ranks:
        raise InputError(f"--context {context}: {plan.ranks} ranks must divide it")
    return FlashDecode(
        batch=tokens, q_heads=model.heads, kv_heads=model.kv_heads, head_dim=model.head_dim,
        kv_len=context // plan.ranks, page_size=16, world_size=plan.ranks,
        dtype="fp16" if plan.dtype == "fp16" else "bf16",
    )  # fmt: skip


def _rest(model: Architecture, plan: Plan, tokens: int) -> Iterator[Work]:
    size = 1 if plan.dtype in FP8 else 4 if plan.dtype == "fp32" else 2

    def gemm(columns: float, depth: float, times: int, rows: int = tokens) -> Work:
        return Work(2.0 * rows * columns * depth * times, (rows + columns) * depth * size * times)

    if plan.sequence_parallel(tokens):
        width = model.heads * model.head_dim / plan.ranks
        # Causal: half of tokens squared, for the logits and again for the values.
        yield Work(2.0 * tokens**2 * width * model.layers, 4.0 * tokens * width * size * model.layers)
        yield gemm(model.vocabulary / plan.ranks, model.hidden, 1, rows=1)
    else:
        yield gemm(qkv_width(model, plan.ranks) / plan.ranks, model.hidden, model.layers)
        yield gemm(2 * model.intermediate / plan.ranks, model.hidden, model.layers)
        yield gemm(model.vocabulary / plan.ranks, model.hidden, 1)
