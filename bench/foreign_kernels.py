"""Six Triton kernels from other people's packages, and the space of each: what ``record_kernels.py`` records.

No code of theirs is here: a kernel is imported from its package, taken out of its own autotuner, and launched with the
arguments that its package gives it. Dimensions have the names of the kernel's own constants, or of Triton's options.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton import cdiv

from autotune.config import Config
from autotune.decorator.candidates import NO_MODES
from autotune.search_spaces import Constraint, Dimension, Space, choices, numbers

Arguments = dict[str, Any]
ACCUMULATOR = 128
"""Registers of a thread that the accumulators of a tile may take."""


@dataclass(frozen=True)
class Foreign:
    """A kernel, one problem for it, and the space in which to look for its best config."""

    name: str
    package: str
    path: str
    """Module and name, as ``module:name``."""
    problem: Mapping[str, int]
    space: Space
    arguments: Callable[[str], Arguments]
    """Makes the arguments that all configs share, on a device; ``meta`` is enough to compile."""
    grid: Callable[[Config, Arguments], tuple[int, ...]]
    output: str
    reference: Callable[[Arguments], torch.Tensor]
    derived: Callable[[Config, Arguments], Arguments] = lambda config, arguments: {}
    adds: Callable[[Config], bool] = lambda config: False
    """True where the kernel adds to its output, which has to be zero before."""

    def kernel(self) -> Any:
        module, name = self.path.split(":")
        found = getattr(importlib.import_module(module), name)
        while not isinstance(found, triton.JITFunction):
            found = found.fn  # an autotuner or heuristics around it
        return found

    def bound(self, config: Config, arguments: Arguments) -> Arguments:
        """All arguments and options of a launch, by name; the common ones that the kernel has no name for left out."""
        own = {name: value for name, value in config.items() if name != "mode"}
        given = {name: value for name, value in arguments.items() if not name.startswith("_")}
        return {**given, **own, **self.derived(config, arguments)}


def _space(*dimensions: Dimension, constraints: tuple[Constraint, ...] = ()) -> Space:
    return Space(NO_MODES, *dimensions, constraints=constraints)


def _fits(m: str, n: str, copies: int = 1) -> Constraint:
    """Accumulators that fit into registers; beyond that a compiler spends a minute on spilling them."""

    def allows(setting: Any, **values: int) -> bool:
        return copies * values[m] * values[n] <= ACCUMULATOR * 32 * values["num_warps"]

    return Constraint("accumulator", (m, n, "num_warps"), allows, "the accumulators do not fit into registers")


# GEMM with weights of 4 bits, 128 of them to a scale.


def _int4_arguments(device: str) -> Arguments:
    m, n, k, group = 64, 8192, 8192, 128
    a = torch.randn(m, k, device=device, dtype=torch.float16)
    b = torch.randint(-(2**31), 2**31 - 1, (k // 8, n), device=device, dtype=torch.int32)
    scales = torch.rand(k // group, n, device=device, dtype=torch.float16) / 64
    c = torch.empty(m, n, device=device, dtype=torch.float16)
    return {
        "a_ptr": a, "b_ptr": b, "c_ptr": c, "scales_ptr": scales, "zeros_ptr": scales, "scales_a_ptr": None,
        "m_dim": m, "k_dim": k, "n_dim": n, "cxpr_w_nbits": 4, "cxpr_weight_bias": 8, "cxpr_group_size": group,
        "cxpr_unpack_mask": 15, "cxpr_elements_per_sample": 8, "matrix_a_stride_m": k, "matrix_a_stride_k": 1,
        "matrix_b_stride_k": n, "matrix_b_stride_n": 1, "matrix_c_stride_m": n, "matrix_c_stride_n": 1,
        "meta_stride_g": n, "meta_stride_n": 1, "cxpr_input_dtype": tl.float16, "cxpr_output_dtype": tl.float16,
        "cxpr_acc_dtype": tl.float32, "cxpr_meta_dtype": tl.float16, "cxpr_channel_scale_mode": 0,
        "cxpr_w_group_mode": 2, "cxpr_zero_is_scalar": False, "cxpr_block_size_scale_a": 1,
        "cxpr_block_size_scale_b": 1, "cxpr_matrix_a_eviction_policy": "evict_last",
        "cxpr_matrix_b_eviction_policy": "evict_first", "cxpr_meta_eviction_policy": "",
        "cxpr_data_contiguous": True, "cxpr_swizzle_pid": True, "cxpr_group_size_m": 4,
    }  # fmt: skip


def _int4_reference(arguments: Arguments) -> torch.Tensor:
    shifts = torch.arange(0, 32, 4, device=arguments["b_ptr"].device)
    codes = (arguments["b_ptr"][:, None, :] >> shifts[None, :, None]) & 15
    weights = (codes.reshape(arguments["k_dim"], -1) - 8).half()
    weights *= arguments["scales_ptr"].repeat_interleave(arguments["cxpr_group_size"], 0)
    return arguments["a_ptr"] @ weights


INT4 = Foreign(
    name="int4-gemm",
    package="conch-triton-kernels",
    path="conch.kernels.quantization.gemm:_gemm_kernel",
    problem={"m": 64, "n": 8192, "k": 8192, "weight_bits": 4, "group": 128},
    space=_space(
        numbers("cxpr_block_size_m", 16, 32, 64), numbers("cxpr_block_size_n", 32, 64, 128, 256),
        numbers("cxpr_block_size_k", 32, 64, 128), numbers("cxpr_matrix_a_load_order", 0, 2, 3),
        numbers("num_warps", 2, 4, 8), numbers("num_stages", 2, 3, 4),
        constraints=(_fits("cxpr_block_size_m", "cxpr_block_size_n"),),
    ),
    arguments=_int4_arguments,
    grid=lambda config, arguments: (
        cdiv(64, config.integer("cxpr_block_size_m")) * cdiv(8192, config.integer("cxpr_block_size_n")),
    ),
    output="c_ptr",
    reference=_int4_reference,
)  # fmt: skip


# A persistent GEMM in bfloat16.


def _persistent_arguments(device: str) -> Arguments:
    m, n, k = 2048, 4096, 4096
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, k, device=device, dtype=torch.bfloat16).T
    c = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    return {
        "A": a, "B": b, "C": c, "A_scale_ptr": None, "B_scale_ptr": None, "bias_ptr": None, "M": m, "N": n, "K": k,
        "stride_am": k, "stride_bn": k, "stride_cm": n, "stride_cn": 1, "stride_bias": 0, "stride_ak": 1,
        "stride_bk": 1, "NUM_XCDS": 1, "CHUNK_SIZE": 1, "BIAS": False, "EVEN_K": True,
    }  # fmt: skip


PERSISTENT = Foreign(
    name="persistent-gemm",
    package="tokenspeed-tritonblas",
    path="tritonblas.kernels.persistent_gemm_monolithic:persistent_matmul",
    problem={"m": 2048, "n": 4096, "k": 4096},
    space=_space(
        numbers("BLOCK_SIZE_M", 64, 128, 256), numbers("BLOCK_SIZE_N", 64, 128, 256),
        numbers("BLOCK_SIZE_K", 32, 64, 128), numbers("GROUP_SIZE_M", 1, 8), numbers("NUM_SMS", 132, 264),
        choices("CACHE_MODIFIER_A", ".ca", ".cg"), numbers("num_warps", 4, 8), numbers("num_stages", 2, 3, 4),
        constraints=(_fits("BLOCK_SIZE_M", "BLOCK_SIZE_N"),),
    ),
    arguments=_persistent_arguments,
    grid=lambda config, arguments: (config.integer("NUM_SMS"),),
    output="C",
    reference=lambda arguments: arguments["A"] @ arguments["B"],
    derived=lambda config, arguments: {"CACHE_MODIFIER_B": ".ca"},
)  # fmt: skip


# Causal attention, four query heads to one of keys.


def _attention_arguments(device: str) -> Arguments:
    t, heads, queries, width = 4096, 4, 16, 128
    q = torch.randn(1, t, queries, width, device=device, dtype=torch.bfloat16)
    k, v = (torch.randn(1, t, heads, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    return {
        "q": q, "k": k, "v": v, "o": torch.empty_like(q),
        "g_cumsum": None, "sink_bias": None, "lse": torch.empty(1, t, queries, device=device),
        "scale": width**-0.5, "cu_seqlens": None, "chunk_indices": None, "T": t, "W": None, "B": 1, "H": heads,
        "HQ": queries, "G": queries // heads, "K": width, "V": width, "BK": width, "USE_G": False,
        "USE_SINK_BIAS": False, "USE_WINDOW": False, "IS_VARLEN": False,
    }  # fmt: skip


def _attention_reference(arguments: Arguments) -> torch.Tensor:
    q, k, v = (arguments[name].transpose(1, 2) for name in "qkv")
    k, v = (each.repeat_interleave(arguments["G"], 1) for each in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


ATTENTION = Foreign(
    name="attention",
    package="fla-core",
    path="fla.ops.attn.parallel:parallel_attn_fwd_kernel",
    problem={"tokens": 4096, "heads": 16, "kv_heads": 4, "width": 128},
    space=_space(
        numbers("BT", 32, 64, 128, 256), numbers("BS", 16, 32, 64, 128), numbers("BV", 32, 64, 128),
        numbers("num_warps", 2, 4, 8, 16), numbers("num_stages", 1, 2, 3, 4),
        constraints=(
            Constraint("whole blocks", ("BT", "BS"), lambda s, BT, BS: BS <= BT, "a block of queries has whole blocks"),
            _fits("BT", "BV"), _fits("BT", "BS"),
        ),
    ),
    arguments=_attention_arguments,
    grid=lambda config, arguments: (cdiv(128, config.integer("BV")) * cdiv(4096, config.integer("BT")), 16),
    output="o",
    reference=_attention_reference,
)  # fmt: skip


# A GEMM of few rows whose depth may be split among programs that add up atomically.


def _skinny_arguments(device: str) -> Arguments:
    m, n, k = 32, 8192, 8192
    a = torch.randn(m, k, device=device, dtype=torch.float16)
    b = torch.randn(k, n, device=device, dtype=torch.float16) / 64
    c = torch.empty(m, n, device=device, dtype=torch.float16)
    tensors = {f"{name}{i}{j}": t for name, t in (("A", a), ("B", b), ("C", c)) for i in "123" for j in "123"}
    sizes = {f"{name}{i}": size * (i == 1) for name, size in (("M", m), ("N", n), ("K", k)) for i in (1, 2, 3)}
    strides = {f"stride_{name}1": stride for name, stride in (("am", k), ("bk", n), ("cm", n))}
    strides |= {f"stride_{name}{i}": 0 for name in ("am", "bk", "cm") for i in (2, 3)}
    strides |= {f"stride_{name}{i}": 1 for name in ("ak", "bn", "cn") for i in (1, 2, 3)}
    return {**tensors, **sizes, **strides, "GROUP_M": 8, "EVEN_K": True, "ACC_TYPE": tl.float32}


SKINNY = Foreign(
    name="split-k-gemm",
    package="xformers",
    path="xformers.ops._triton.tiled_matmul_kernels:_xformers_tiled_matmul_kernel",
    problem={"m": 32, "n": 8192, "k": 8192},
    space=_space(
        numbers("BLOCK_M", 16, 32), numbers("BLOCK_N", 32, 64, 128, 256), numbers("BLOCK_K", 32, 64, 128),
        numbers("SPLIT_K", 1, 2, 4, 8), numbers("num_warps", 2, 4, 8), numbers("num_stages", 2, 3, 4, 5),
        constraints=(_fits("BLOCK_M", "BLOCK_N"),),
    ),
    arguments=_skinny_arguments,
    grid=lambda config, arguments: (
        cdiv(32, config.integer("BLOCK_M")) * cdiv(8192, config.integer("BLOCK_N")), config.integer("SPLIT_K"),
    ),
    output="C11",
    reference=lambda arguments: arguments["A11"] @ arguments["B11"],
    adds=lambda config: config["SPLIT_K"] != 1,
)  # fmt: skip


# A GEMM of int8 with weights of 2 bits.


def _int2_arguments(device: str) -> Arguments:
    m, n, k = 512, 4096, 4096
    return {
        "a_ptr": torch.randint(-128, 127, (m, k), device=device, dtype=torch.int8),
        "b_ptr": torch.randint(0, 255, (k // 4, n), device=device, dtype=torch.uint8),
        "c_ptr": torch.empty(m, n, device=device, dtype=torch.int32), "M": m, "N": n, "K": k,
        "stride_am": k, "stride_ak": 1, "stride_bk": n, "stride_bn": 1, "stride_cm": n, "stride_cn": 1,
    }  # fmt: skip


def _int2_reference(arguments: Arguments) -> torch.Tensor:
    weights = torch.cat([((arguments["b_ptr"] >> (2 * i)) & 3).to(torch.int8) - 1 for i in range(4)])
    return arguments["a_ptr"].double() @ weights.double()


INT2 = Foreign(
    name="int2-gemm",
    package="liger-kernel",
    path="liger_kernel.ops.experimental.mm_int8int2:matmul_kernel",
    problem={"m": 512, "n": 4096, "k": 4096, "weight_bits": 2},
    space=_space(
        numbers("BLOCK_SIZE_M", 32, 64, 128), numbers("BLOCK_SIZE_N", 32, 64, 128, 256),
        numbers("BLOCK_SIZE_K", 32, 64, 128), numbers("GROUP_SIZE_M", 1, 4, 16), numbers("num_warps", 2, 4, 8),
        numbers("num_stages", 2, 3, 4, 5), constraints=(_fits("BLOCK_SIZE_M", "BLOCK_SIZE_N"),),
    ),
    arguments=_int2_arguments,
    grid=lambda config, arguments: (
        cdiv(512, config.integer("BLOCK_SIZE_M")) * cdiv(4096, config.integer("BLOCK_SIZE_N")),
    ),
    output="c_ptr",
    reference=_int2_reference,
)  # fmt: skip


# A mixture of experts: rows gathered, two GEMMs of each expert, SwiGLU.

TOKENS, EXPERTS, CHOSEN, WIDTH, INNER = 2048, 16, 2, 2048, 1024


def _tiles(counts: list[int], block: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The first row and the expert of each tile of rows; no tile has rows of two experts."""
    begins = [sum(counts[:expert]) for expert in range(len(counts))]
    tiles = [(begins[e] + row, e) for e, count in enumerate(counts) for row in range(0, count, block)]
    rows, experts = (torch.tensor(column, dtype=torch.int32, device=device) for column in zip(*tiles, strict=True))
    return rows, experts


def _moe_arguments(device: str) -> Arguments:
    draw = random.Random(0)
    total = TOKENS * CHOSEN
    cuts = sorted(draw.sample(range(1, total), EXPERTS - 1))
    ends = [*cuts, total]
    counts = [end - begin for begin, end in zip([0, *cuts], ends, strict=True)]
    gathered = [draw.randrange(TOKENS) for _ in range(total)]
    return {
        "x_ptr": torch.randn(TOKENS, WIDTH, device=device, dtype=torch.bfloat16),
        "gate_up_proj_ptr": torch.randn(EXPERTS, 2 * INNER, WIDTH, device=device, dtype=torch.bfloat16) / 32,
        "x_gather_idx_ptr": torch.tensor(gathered, dtype=torch.int32, device=device),
        "expert_start_ptr": torch.tensor([0, *ends], dtype=torch.int32, device=device),
        "pre_act_ptr": torch.empty(total, 2 * INNER, device=device, dtype=torch.bfloat16),
        "post_act_ptr": torch.empty(total, INNER, device=device, dtype=torch.bfloat16),
        "H_dim": WIDTH, "I_dim": INNER, "stride_x_T": WIDTH, "stride_x_H": 1, "stride_w_E": 2 * INNER * WIDTH,
        "stride_w_N": WIDTH, "stride_w_K": 1, "stride_pre_TK": 2 * INNER, "stride_pre_N": 1, "stride_post_TK": INNER,
        "stride_post_N": 1, "_counts": counts,
        "_tiles": {block: _tiles(counts, block, device) for block in (16, 32, 64, 128)},
    }  # fmt: skip


def _moe_reference(arguments: Arguments) -> torch.Tensor:
    rows = arguments["x_ptr"][arguments["x_gather_idx_ptr"].long()].split(arguments["_counts"])
    pairs = [(x @ w.T).chunk(2, dim=1) for x, w in zip(rows, arguments["gate_up_proj_ptr"], strict=True)]
    return torch.cat([functional.silu(gate.float()) * up.float() for gate, up in pairs])


MOE = Foreign(
    name="moe-swiglu",
    package="liger-kernel",
    path="liger_kernel.ops.fused_moe_kernels:_fused_up_proj_swiglu_kernel",
    problem={"tokens": TOKENS, "experts": EXPERTS, "chosen": CHOSEN, "width": WIDTH, "inner": INNER},
    space=_space(
        numbers("BLOCK_M", 16, 32, 64, 128), numbers("BLOCK_N", 16, 32, 64, 128), numbers("BLOCK_K", 32, 64, 128),
        numbers("num_warps", 2, 4, 8), numbers("num_stages", 2, 3, 4, 5),
        constraints=(_fits("BLOCK_M", "BLOCK_N", copies=2),),
    ),
    arguments=_moe_arguments,
    grid=lambda config, arguments: (
        len(arguments["_tiles"][config["BLOCK_M"]][0]), cdiv(INNER, config.integer("BLOCK_N")),
    ),
    output="post_act_ptr",
    reference=_moe_reference,
    derived=lambda config, arguments: dict(
        zip(("tile_row_start_ptr", "tile_expert_ptr"), arguments["_tiles"][config["BLOCK_M"]], strict=True)
    ),
)  # fmt: skip

FOREIGN = {each.name: each for each in (INT4, PERSISTENT, ATTENTION, SKINNY, INT2, MOE)}
