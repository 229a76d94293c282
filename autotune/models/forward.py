"""A model's forward on the ranks of a tensor-parallel group: its problems, how often each is called, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from autotune.dtypes import FP8
from autotune.errors import InputError
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.flash_decode.problem import HEAD_DIMS, LATENT_DIMS, ROPES, FlashDecode
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.moe.problem import MOST_CHOICES
from autotune.models.architecture import Architecture
from autotune.models.quantization import Quantization
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
    spared: int = 0
    """Collectives of the library's way that the forward saves, since it sends their bytes in others."""
    gathers: int = 0
    """All-gathers of the result that the forward makes behind ours."""


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


ROUTING = 5
"""Kernels of a router beside its GEMM: that one's sum of splits, softmax, top k and its sort, the sum of the gates. All
of them take 20 µs with 8 tokens and 128 experts (Qwen3-235B-A22B, 2 H200, 2026-11-29).
"""


ATTENTION = 0.45
"""Share of a GEMM's rate that attention reaches in a causal prefill: of 2048 tokens 0.47 with 32 heads on a rank, 0.36
with 16 (cuDNN, H200, 2026-11-30).
"""


@dataclass(frozen=True)
class Work:
    """The work of a rank in a forward that needs no communication, for a roofline."""

    flops: float
    bytes_read: float
    dtype: str
    launches: int = 0
    """Small kernels, which take as long as a launch."""


@dataclass(frozen=True)
class Forward:
    title: str
    calls: tuple[Call, ...]
    rest: tuple[Work, ...] = ()
    """GEMMs without a collective, routers, attention in a prefill, and the head; norms and what is fused into others
    not.
    """


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
    quantization: Quantization | None = None
    """Form of the stored weights; None: all are of ``dtype``."""

    def types(self, part: str) -> dict[str, Any] | None:
        """Element type and scales of a part's GEMMs; None where no operator multiplies such weights."""
        stored = self.quantization
        if stored is None or part in stored.kept:
            return {"dtype": self.dtype, "scales": self.scales}
        by_tensor = stored.scales == "tensor" and part == "experts"
        return {"dtype": stored.dtype, "scales": stored.scales} if stored.dtype and not by_tensor else None

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
    if model.linear is not None and (model.linear.inputs % plan.ranks or model.linear.output % plan.ranks):
        raise InputError(f"--tp {plan.ranks} must divide the linear attention's width of {model.linear.output}")
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
    if plan.contexts and model.latent and (model.latent.rank not in LATENT_DIMS or model.latent.rope not in ROPES):
        raise InputError(
            f"--context: flash decode takes latents of {', '.join(map(str, LATENT_DIMS))} elements with "
            f"{' or '.join(map(str, ROPES))} rotary ones, not {model.latent.rank} with {model.latent.rope}"
        )
    found = [
        Forward(counted(each, "token"), tuple(_calls(model, plan, each)), tuple(_rest(model, plan, each)))
        for each in tokens
    ]
    if not any(each.calls for each in found):
        raise InputError(
            f"nothing is left to tune: no operator multiplies the weights of {', '.join(left_out(model, plan))} "
            f"as they are stored; --dtype {plan.dtype} takes them for {plan.dtype}"
        )
    return found


def qkv_width(model: Architecture, ranks: int) -> int:
    """Columns of the fused projection; each rank has one KV head at least."""
    return ((2 if model.gated else 1) * model.heads + 2 * max(model.kv_heads, ranks)) * model.head_dim


class Linear(NamedTuple):
    """Linear layers whose weight the ranks share out."""

    name: str
    size: int
    """Columns of one behind a gather, depth of one before a sum over ranks."""
    bias: bool
    layers: int
    """Number of the model's layers that have one."""
    part: str
    """Its part of a layer: a name in ``quantization.PARTS``."""


def _mlps(model: Architecture) -> Iterator[tuple[str, int, int, str]]:
    for name, width, count in model.mlps:
        yield name, width, count, "shared experts" if name else "mlp"


def _inputs(model: Architecture, plan: Plan) -> Iterator[Linear]:
    """The linear layers behind a gather."""
    layers, biases, whole = model.attending, model.biases, not plan.separate
    if model.attention and whole:
        yield Linear("q, k, v", qkv_width(model, plan.ranks), biases.qkv, layers, "attention")
    elif model.attention:
        width = max(model.kv_heads, plan.ranks) * model.head_dim
        yield Linear("q", qkv_width(model, plan.ranks) - 2 * width, biases.qkv, layers, "attention")
        yield Linear("k, v", width, biases.qkv, 2 * layers, "attention")
    if model.linear is not None:
        yield Linear("linear attention in", model.linear.inputs, False, model.linear.layers, "linear attention")
    for name, width, count, part in _mlps(model):
        yield Linear(f"gate, up{name}", (2 if whole else 1) * width, biases.mlp, (1 if whole else 2) * count, part)


def _outputs(model: Architecture) -> Iterator[Linear]:
    """The linear layers before a sum over ranks."""
    if model.attention:
        yield Linear("attention out", model.heads * model.head_dim, model.biases.out, model.attending, "attention")
    if model.linear is not None:
        yield Linear("linear attention out", model.linear.output, False, model.linear.layers, "linear attention")
    for name, width, count, part in _mlps(model):
        yield Linear(f"down{name}", width, model.biases.mlp, count, part)


def _calls(model: Architecture, plan: Plan, tokens: int) -> Iterator[Call]:
    common: dict[str, Any] = {"m": tokens, "world_size": plan.ranks, "b_order": "nk"}
    gathered = plan.sequence_parallel(tokens)
    for each in _inputs(model, plan) if gathered else ():
        if types := plan.types(each.part):
            problem = AllGatherGemm(**common, **types, n=each.size, k=model.hidden, bias=each.bias)
            yield Call(each.name, problem, each.layers)
    for each in _outputs(model):
        if types := plan.types(each.part):
            kind = GemmReduceScatter if gathered else GemmAllReduce
            yield Call(each.name, kind(**common, **types, n=model.hidden, k=each.size, bias=each.bias), each.layers)
    if (model.attention or model.latent) and not gathered:
        for context in plan.contexts:
            if count := model.layers_over(context):
                yield Call(f"attention, {context} tokens", _flash_decode(model, plan, tokens, context), count)
    types = plan.types("experts")
    if model.mixture is not None and types is not None:
        named = model.mixture.problems(
            model.hidden, tokens, plan.ranks, types["dtype"], types["scales"], plan.zipf, plan.experts_by_width
        )  # fmt: skip
        # The library's way gathers routing and tokens, and reduce-scatters. Where every rank has all tokens, plain
        # torch all-reduces instead; ours take a rank's share of them, and gather the results.
        collectives = ((0, 0), (0, 0)) if gathered else ((2, 0), (0, 1))
        for (layer, experts), (spared, gathers) in zip(named, collectives, strict=True):
            yield Call(layer, experts, model.mixture.layers, spared=spared, gathers=gathers)


def left_out(model: Architecture, plan: Plan) -> list[str]:
    """The parts of a model's layers that no operator multiplies as they are stored."""
    parts = dict.fromkeys(each.part for each in (*_inputs(model, plan), *_outputs(model)))
    if model.mixture is not None:
        parts["experts"] = None
    return [part for part in parts if plan.types(part) is None]


def _flash_decode(model: Architecture, plan: Plan, tokens: int, context: int) -> FlashDecode:
    if context % plan.ranks:
        raise InputError(f"--context {context}: {plan.ranks} ranks must divide it")
    common: dict[str, Any] = {
        "batch": tokens, "q_heads": model.heads, "kv_len": context // plan.ranks, "world_size": plan.ranks,
        "dtype": "fp16" if plan.dtype == "fp16" else "bf16",
    }  # fmt: skip
    if model.latent is not None:
        own: dict[str, Any] = {"head_dim": model.latent.rank, "rope": model.latent.rope, "scale": model.latent.scale}
        return FlashDecode(**common, **own, kv_heads=1, page_size=64)
    own = {"kv_heads": model.kv_heads, "head_dim": model.head_dim, "soft_cap": model.soft_cap}
    return FlashDecode(**common, **own, page_size=16)


def _rest(model: Architecture, plan: Plan, tokens: int) -> Iterator[Work]:
    def gemm(columns: float, depth: float, times: int, part: str = "", rows: int = tokens) -> Work:
        dtype = (plan.types(part) or {"dtype": plan.dtype})["dtype"]
        read = (rows + columns) * depth * _size(dtype)
        return Work(2.0 * rows * columns * depth * times, read * times, dtype)

    unscaled = "bf16" if plan.dtype in FP8 else plan.dtype
    if plan.sequence_parallel(tokens):
        width = model.heads * model.head_dim / plan.ranks if model.attention else 0
        # Causal: half of tokens squared, for the logits and again for the values.
        flops = 2.0 * tokens**2 * width * model.attending / ATTENTION
        read = 4.0 * tokens * width * _size(plan.dtype) * model.attending
        yield Work(flops, read, unscaled)
        yield gemm(model.vocabulary / plan.ranks, model.hidden, 1, rows=1)
    else:
        for each in _inputs(model, replace(plan, separate=False)):
            yield gemm(each.size / plan.ranks, model.hidden, each.layers, each.part)
        yield gemm(model.vocabulary / plan.ranks, model.hidden, 1)
    if (mixture := model.mixture) is not None:
        rows = tokens // plan.ranks if plan.sequence_parallel(tokens) else tokens
        flops = 2.0 * rows * mixture.experts * model.hidden * mixture.layers
        read = (rows + mixture.experts) * model.hidden * _size(unscaled) * mixture.layers
        yield Work(flops, read, unscaled, ROUTING * mixture.layers)
    yield _elementwise(model, plan, tokens, unscaled)


def _elementwise(model: Architecture, plan: Plan, tokens: int, dtype: str) -> Work:
    """Two norms a layer, each with the residual's sum: two tensors read, two written; activations: two and one. Where
    they are short they take as long as a launch, and so does the attention of a decode.
    """
    prefill = plan.sequence_parallel(tokens)
    norms = 8.0 * (tokens // plan.ranks if prefill else tokens) * model.hidden * model.layers
    activations = sum(3.0 * tokens * width / plan.ranks * layers for _, width, layers in model.mlps)
    attention = 0 if prefill else model.attending
    launches = 2 * model.layers + sum(layers for *_, layers in model.mlps) + attention
    return Work(0.0, (norms + activations) * _size(dtype), dtype, launches)


def _size(dtype: str) -> int:
    return 1 if dtype in FP8 else 4 if dtype == "fp32" else 2
