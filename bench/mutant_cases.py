"""The problems and configs whose evaluation has to find a mutant out, on two ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TILE = {
    "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2, "loads": "pointer",
}  # fmt: skip
PUSH = {
    **TILE, "mode": "push", "schedule": "tile", "transfer_rows": 16, "comm_programs": 1, "copy_kib": 2,
    "peer_order": "rotate", "push_site": "same_launch", "head_start": 0, "split_k": 1, "preload_b": False,
    "k_chunks": 1,
}  # fmt: skip
STAGED = {name: value for name, value in PUSH.items() if name != "push_site"} | {"mode": "pull_staged"}
GATHER = {
    "mode": "custom_collective", "comm_programs": 2, "copy_kib": 2, "peer_order": "rotate", "protocol": "signal",
}  # fmt: skip
COPIES = {"mode": "copy_engine", "transfer_rows": 16, "gemm_streams": 1}
WORDS = {**GATHER, "peer_order": "fanout", "protocol": "sentinel"}
SPECIALIZED = {
    "mode": "warp_specialized", "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_stages": 4,
    "consumers": "cooperative", "transfer_rows": 4, "sending_warps": 1, "across_shards": 0,
    "split_tail": False,
}  # fmt: skip
SPECIALIZED_TILE = {
    **dict.fromkeys(("num_warps", "loads", "swap_ab", "programs_per_unit", "tile_order")),
    "mode": "warp_specialized", "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 1, "num_stages": 4,
    "consumers": "cooperative",
}  # fmt: skip
SCATTER = {
    **TILE, "mode": "push", "schedule": "tile", "peer_order": "rotate", "signals": "at_once", "split_k": 1,
    "transfer_tiles": 1,
}  # fmt: skip
AT_ONCE = {**TILE, "mode": "one_shot", "split_k": 1, "protocol": "signal"}
SUM = {"sum_block": 512, "sum_warps": 4}
REDUCE = {
    **TILE, "mode": "one_shot", "schedule": "tile", "programs_per_unit": 1, "combine": "sender", "protocol": "signal",
    "split_k": 1,
}  # fmt: skip
DECODE = {
    "mode": "fused", "block_n": 16, "programs_per_head": 2, "heads_per_program": 2, "num_warps": 2, "num_stages": 2,
    "loads": "pipelined", "table_reads": "ahead", "program_order": "heads", "reducer": "trailing",
    "transfer_heads": 1, "combine_heads": 1, "wire": "fp32", "exchange": "one_shot", "combine_site": "same_launch",
    "protocol": "signal",
}  # fmt: skip
APART = {"reducer": "kernel", "combine_site": "next_launch"}
"""Everything is sent before anything is waited for: interpreted programs run in turn."""
COLLECTIVE = {"mode": "custom_collective", "exchange": "one_shot", "protocol": "signal", **SUM, "transfer_rows": 16}
ALL_GATHER = {name: value for name, value in DECODE.items() if name not in ("exchange", "combine_site", "protocol")}

NORM = {"mode": "one_shot", "norm_rows": 2, "norm_warps": 2, "senders": 0, "protocol": "signal"}

AG = {"m": 64, "n": 128, "k": 64, "bias": True}
RS = {"m": 64, "n": 64, "k": 128, "bias": True}
AR = {"m": 16, "n": 64, "k": 128, "bias": True}
DISPATCH = {
    "mode": "push", "protocol": "signal", "comm_programs": 1, "transfer_tokens": 2, "split": 1, "copy_kib": 1,
    "layout_rows": 2, "num_warps": 4,
}  # fmt: skip
LAYOUT = {"layout_rows": 2, "layout_warps": 4}
MOVES = ("mode", "comm_programs", "transfer_tokens", "split", "copy_kib")
MULTIPLY = {
    **{name: DISPATCH[name] for name in (*MOVES, "protocol")}, **TILE, "swap_ab": False, "programs_per_unit": 1,
    "tile_order": "experts",
}  # fmt: skip

ARN = {"m": 7, "n": 264, "eps": 0.5}
HEADS = {"batch": 2, "result": "heads"}
MD = {"tokens": 5, "hidden": 136, "experts": 4, "top_k": 2}
MDG = {"tokens": 5, "hidden": 72, "experts": 4, "top_k": 2, "width": 24}
FD = {"batch": 1, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "kv_len": 72, "page_size": 16, "dtype": "fp16"}


MC = {"tokens": 9, "hidden": 72, "experts": 6, "top_k": 3}
MGC = {"tokens": 3, "hidden": 64, "experts": 4, "top_k": 2, "width": 24}
COMBINE = {
    "mode": "push", "peer_order": "rotate", "comm_programs": 2, "transfer_tokens": 2, "split": 1, "copy_kib": 1,
    "num_warps": 4,
}  # fmt: skip
ROWS = {**{name: value for name, value in COMBINE.items() if name != "peer_order"}, "mode": "one_shot"}
TILE_ROWS = {name: value for name, value in ROWS.items() if name != "comm_programs"}
GROUPED = {**TILE, "swap_ab": False, "programs_per_unit": 1}


@dataclass(frozen=True)
class Case:
    """A workload's problem on two ranks, and a config."""

    workload: str
    problem: Mapping[str, Any]
    config: Mapping[str, Any]

    def on_gpu(self) -> Case:
        """The case with sizes and tiles that keep a GPU busy; ragged sizes stay ragged."""
        scale, knobs = ON_GPU[self.workload]
        problem = {
            name: value * scale[name] + (value % 8 if name in GEMM else 0) if name in scale else value
            for name, value in self.problem.items()
        }
        config = {
            name: min(value * knobs[name], LARGEST.get(name, value * knobs[name])) if name in knobs else value
            for name, value in self.config.items()
        }
        while config.get("block_m", 0) * config.get("block_n", 0) > MOST_SUMS * config.get("num_warps", 8):
            config["block_n"] //= 2
        return Case(self.workload, problem, config)


GEMM = ("m", "n", "k")
MOST_SUMS = 128 * 32
"""Elements of a tile for each of its warps."""

LARGEST = {"block_m": 256, "block_n": 256, "block_k": 128, "transfer_rows": 256}

ON_GPU: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]] = {
    "all_gather_gemm": (
        {"m": 32, "n": 64, "k": 32},
        {"block_m": 8, "block_n": 4, "block_k": 2, "num_warps": 2, "transfer_rows": 8, "comm_programs": 8}
        | {"copy_kib": 4},
    ),
    "gemm_reduce_scatter": (
        {"m": 32, "n": 64, "k": 32},
        {"block_m": 8, "block_n": 4, "block_k": 2, "num_warps": 2, "transfer_rows": 16, "sum_block": 4, "sum_warps": 2},
    ),
    "gemm_all_reduce": ({"n": 128, "k": 64}, {"block_n": 2, "block_k": 4, "sum_block": 2, "sum_warps": 1}),
    "all_reduce_norm": ({"m": 16, "n": 16}, {"norm_warps": 8}),
    "moe_dispatch": ({"tokens": 16, "hidden": 16}, {"transfer_tokens": 4, "copy_kib": 4}),
    "moe_dispatch_gemm": ({"tokens": 16, "hidden": 16, "width": 8}, {"transfer_tokens": 4, "copy_kib": 4}),
    "moe_combine": ({"tokens": 16, "hidden": 16, "experts": 4}, {"copy_kib": 4, "comm_programs": 16}),
    "moe_gemm_combine": (
        {"tokens": 16, "hidden": 16, "experts": 4, "width": 8},
        {"copy_kib": 4, "comm_programs": 8, "block_m": 4, "block_n": 4, "block_k": 2},
    ),
    "flash_decode": (
        {"q_heads": 8, "kv_heads": 4, "kv_len": 128},
        {"block_n": 4, "programs_per_head": 8, "num_warps": 2},
    ),
}
"""By workload: how many times larger the problem's sizes and the config's numbers are on GPUs."""


def _gather(config: Mapping[str, Any], problem: Mapping[str, Any] | None = None, **knobs: Any) -> Case:
    return Case("all_gather_gemm", {**AG, **(problem or {})}, {**config, **knobs})


def _scatter(config: Mapping[str, Any], problem: Mapping[str, Any] | None = None, **knobs: Any) -> Case:
    return Case("gemm_reduce_scatter", {**RS, **(problem or {})}, {**config, **knobs})


def _reduce(problem: Mapping[str, Any] | None = None, **knobs: Any) -> Case:
    return Case("gemm_all_reduce", {**AR, **(problem or {})}, {**REDUCE, **knobs})


def _norm(**knobs: Any) -> Case:
    return Case("all_reduce_norm", ARN, {**NORM, **knobs})


def _dispatch(**knobs: Any) -> Case:
    """Values of None are knobs that the mode has not."""
    config = {name: value for name, value in {**DISPATCH, **knobs}.items() if value is not None}
    return Case("moe_dispatch", MD, config)


def _multiply(problem: Mapping[str, Any] | None = None, **knobs: Any) -> Case:
    config = {name: value for name, value in {**MULTIPLY, **knobs}.items() if value is not None}
    return Case("moe_dispatch_gemm", {**MDG, **(problem or {})}, config)


def _decode(problem: Mapping[str, Any] | None = None, **knobs: Any) -> Case:
    return Case("flash_decode", {**FD, **(problem or {})}, {**DECODE, **knobs})


def _combine(config: Mapping[str, Any], **knobs: Any) -> Case:
    return Case("moe_combine", MC, {**config, **knobs})


def _gemm_combine(config: Mapping[str, Any], problem: Mapping[str, Any] | None = None, **knobs: Any) -> Case:
    return Case("moe_gemm_combine", {**MGC, **(problem or {})}, {**config, **GROUPED, **knobs})


RAGGED = {"m": 68, "n": 84, "k": 70}
"""Edges in every direction: nothing divides."""

PULL = {**TILE, "mode": "pull", "schedule": "tile"}

FP8 = {"dtype": "fp8", "b_order": "nk", "scales": "row"}
BLOCKED = {**FP8, "scales": "block"}
BLOCKS = {**BLOCKED, "n": 160, "k": 512}
"""Two blocks of B in either direction, on each rank."""

TWO_PARTS = {"block_m": 128, "block_n": 128, "loads": "tma"}
"""Tiles of fp8 whose upper and lower rows are multiplied in turn."""
ONE_GROUP = {"column_groups": 1, "transfer_tokens": 8}
LONG = {"tokens": 80, "experts": 2, "top_k": 1}
"""Experts have more rows than half a tile."""

QUANTISED = {"epilogue": "swiglu", "quantised": True, "n": 1024}
"""Two blocks of C on each rank."""

CASES: Mapping[str, Case] = {
    "ag push": _gather(PUSH),
    "ag tma": _gather(PUSH, loads="tma"),
    "ag fanout": _gather(PUSH, peer_order="fanout"),
    "ag ragged": _gather(PUSH, RAGGED),
    "ag units": _gather(PUSH, block_m=32),
    "ag chunks": _gather(PUSH, k_chunks=2),
    "ag split": _gather(PUSH, {"k": 96}, split_k=2),
    "ag K": _gather(PUSH, {"layout": "k"}),
    "ag own stream": _gather(PUSH, push_site="same_stream"),
    "ag staged": _gather(STAGED),
    "ag staged deep": _gather(STAGED, {"m": 256, "k": 256, "n": 64}, block_m=128, block_k=256, transfer_rows=128),
    "ag pull": _gather(PULL),
    "ag pull ragged": _gather(PULL, RAGGED),
    "ag gather": _gather(GATHER),
    "ag words": _gather(WORDS, {"layout": "k"}),
    "ag words alone": _gather(WORDS, comm_programs=1),
    "ag gather wide": _gather(GATHER, {"n": 512, "k": 512}),
    "ag copies": _gather({**COPIES, "copies": "pulled", "chunk_sizes": "even"}),
    "ag pushed copies": _gather({**COPIES, "copies": "pushed", "chunk_sizes": "shrinking"}, {"m": 128}),
    "ag specialized": _gather(SPECIALIZED),
    "ag pingpong": _gather(SPECIALIZED, consumers="pingpong"),
    "ag across": _gather({**SPECIALIZED, "across_shards": 4}, {"m": 8}, transfer_rows=16),
    "ag tail": _gather(SPECIALIZED, {"m": 24}, split_tail=True),
    "ag gathered": _gather(PUSH, {"gathered": True}),
    "ag gathered staged": _gather(STAGED, {"gathered": True, "layout": "k"}),
    "ag swiglu": _gather(PUSH, {"epilogue": "swiglu"}),
    "ag swiglu tma": _gather(PUSH, {"epilogue": "swiglu"}, loads="tma", k_chunks=2),
    "ag swiglu turns": _gather(PUSH, {"epilogue": "swiglu", "gate_up": "interleaved"}),
    "ag swiglu gather": _gather(GATHER, {"epilogue": "swiglu"}),
    "ag swiglu fp8": _gather(PUSH, {**QUANTISED, "m": 32}, block_n=256),
    "ag swiglu fp8 gather": _gather(GATHER, QUANTISED),
    "ag geglu": _gather(PUSH, {"epilogue": "geglu"}),
    "ag scales": _gather(PUSH, FP8),
    "ag scales staged": _gather(STAGED, FP8),
    "ag scales pull": _gather(PULL, FP8),
    "ag scales gather": _gather(GATHER, FP8),
    "ag blocks": _gather(PUSH, {**BLOCKS, "n": 128, "k": 256}, k_chunks=2, block_k=128),
    "ag parts": _gather(PUSH, {**FP8, "m": 256, "n": 256, "k": 96}, **TWO_PARTS),
    "ag parts blocks": _gather(PUSH, {**BLOCKS, "m": 256, "n": 256, "k": 256}, **TWO_PARTS, block_k=128),
    "rs scales": _scatter(SCATTER, FP8),
    "rs blocks": _scatter(SCATTER, {**BLOCKS, "m": 32}, block_k=128),
    "ar scale": _reduce({**FP8, "scales": "tensor"}),
    "rs wire": _scatter(SCATTER, {"wire": "fp8"}),
    "rs wire pull": _scatter(SCATTER, {"wire": "fp8"}, mode="pull"),
    "ar wire": _reduce({"wire": "fp8"}),
    "ar wire two": _reduce({"wire": "fp8"}, mode="two_shot"),
    "rs one": _scatter(AT_ONCE, {"m": 8, "residual": True}),
    "rs one sentinel": _scatter(AT_ONCE, {"m": 8}, protocol="sentinel"),
    "rs push": _scatter(SCATTER),
    "rs units": _scatter(SCATTER, transfer_tiles=2),
    "rs late": _scatter(SCATTER, schedule="persistent", signals="next_turn"),
    "rs pull": _scatter(SCATTER, mode="pull"),
    "rs split": _scatter(SCATTER, split_k=2),
    "rs gather": _scatter({"mode": "custom_collective", **SUM}),
    "rs copies": _scatter({"mode": "copy_engine", "transfer_rows": 16, "gemm_streams": 1, **SUM}),
    "rs residual": _scatter(SCATTER, {"residual": True}),
    "rs residual gather": _scatter({"mode": "custom_collective", **SUM}, {"residual": True}),
    "rs residual copies": _scatter(
        {"mode": "copy_engine", "transfer_rows": 16, "gemm_streams": 1, **SUM}, {"residual": True}
    ),
    "ar residual": _reduce({"residual": True}),
    "ar residual two": _reduce({"residual": True}, mode="two_shot"),
    "arn one": _norm(),
    "arn two": _norm(mode="two_shot"),
    "arn ll": _norm(protocol="ll", senders=2),
    "arn sentinel": _norm(protocol="sentinel", senders=2),
    "arn senders": _norm(senders=2),
    "arn fp8": Case("all_reduce_norm", {**ARN, "n": 384, "quantised": "block"}, NORM),
    "ar one": _reduce(),
    "ar two": _reduce(mode="two_shot"),
    "ar ll": _reduce(protocol="ll"),
    "ar two ll": _reduce(mode="two_shot", protocol="ll"),
    "ar sentinel": _reduce(protocol="sentinel"),
    "ar two sentinel": _reduce(mode="two_shot", protocol="sentinel"),
    "ar separate ll": _reduce(combine="separate", protocol="ll"),
    "ar separate sentinel": _reduce(combine="separate", protocol="sentinel"),
    "ar gather": Case("gemm_all_reduce", {**AR, "m": 32, "residual": True}, COLLECTIVE),
    "ar separate": _reduce(combine="separate"),
    "ar split": _reduce(split_k=2),
    "md push": _dispatch(),
    "md ll": _dispatch(protocol="ll"),
    "md pull": _dispatch(mode="pull", protocol=None),
    "md split": _dispatch(split=2, comm_programs=2, transfer_tokens=4, copy_kib=1),
    "mdg push": _multiply(),
    "mdg ll": _multiply(protocol="ll"),
    "mdg own": _multiply({"tokens": 24}, tile_order="own_first"),
    "mdg parts": _multiply({**FP8, **LONG, "hidden": 64, "width": 64}, **TWO_PARTS, transfer_tokens=8),
    "mdg pull": _multiply(mode="pull", protocol=None),
    "mdg bias": _multiply({"epilogue": "swiglu_oai", "gate_up": "interleaved", "bias": True}),
    "mdg bias library": Case(
        "moe_dispatch_gemm",
        {**MDG, "bias": True},
        {name: DISPATCH[name] for name in MOVES} | {"mode": "custom_collective", "protocol": "signal"} | LAYOUT,
    ),
    "mdg specialized": _multiply({"tokens": 56, "epilogue": "none", "bias": True}, **SPECIALIZED_TILE, **LAYOUT),
    "mdg unfused": _multiply({"tokens": 56}, mode="unfused", loads="tma", tile_order=None, **LAYOUT),
    "mc push": _combine(COMBINE),
    "mc pull": _combine(COMBINE, mode="pull"),
    "mc one": _combine(ROWS, protocol="signal"),
    "mc ll": _combine(ROWS, protocol="ll", transfer_tokens=1),
    "mgc push": _gemm_combine(COMBINE, column_groups=2),
    "mgc bias": _gemm_combine(COMBINE, {"bias": True}, column_groups=2),
    "mgc one": _gemm_combine(TILE_ROWS, protocol="signal"),
    "mgc parts": _gemm_combine(COMBINE, {**FP8, **LONG, "width": 64, "hidden": 128}, **TWO_PARTS, **ONE_GROUP),
    "mgc parts blocks": _gemm_combine(
        COMBINE, {**BLOCKED, **LONG, "width": 256, "hidden": 128}, **TWO_PARTS, block_k=128, **ONE_GROUP
    ),
    "mgc idle": _gemm_combine(COMBINE, {"top_k": 1}, column_groups=2),
    "mgc idle one": _gemm_combine(TILE_ROWS, {"top_k": 1}, protocol="signal"),
    "fd signal": _decode(),
    "fd ll": _decode(protocol="ll"),
    "fd two shot": _decode(exchange="two_shot"),
    "fd last": _decode(reducer="last", program_order="tokens"),
    "fd last even": _decode({"batch": 2, "lengths": "even"}, reducer="last", program_order="tokens"),
    "fd kernel": _decode(**APART),
    "fd cap": _decode({"batch": 2, "soft_cap": 3}),
    "fd cache": _decode({"kv_dtype": "fp8", "kv_scales": "head"}),
    "fd latent": _decode({"kv_heads": 1, "rope": 32, "scale": 0.25}),
    "fd specialized": _decode(
        {"batch": 3, "kv_heads": 1, "q_heads": 8, "head_dim": 512, "rope": 64, "scale": 0.1},
        **APART,
        loads="specialized",
        num_warps=4,
        heads_per_program=16,
        table_reads="in_step",
    ),
    "fd sentinel": _decode(protocol="sentinel"),
    "fd heads sentinel": _decode(HEADS, protocol="sentinel", wire="rounded"),
    "fd heads": _decode(HEADS),
    "fd heads ll": _decode(HEADS, protocol="ll"),
    "fd kernel ll": _decode(**APART, protocol="ll"),
    "fd kernel sentinel": _decode(**APART, protocol="sentinel"),
    "fd heads kernel ll": _decode(HEADS, **APART, protocol="ll"),
    "fd heads gather": Case(
        "flash_decode", {**FD, **HEADS}, {**ALL_GATHER, "mode": "iris_all_gather", "launch": "eager"}
    ),
    "fd gather": Case("flash_decode", FD, {**ALL_GATHER, "mode": "iris_all_gather", "launch": "eager"}),
}
