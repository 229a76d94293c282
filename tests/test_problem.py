"""Problems check themselves, say what is allowed, and have one canonical form."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from autotune.errors import InvalidProblem
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_reduce_norm.problem import AllReduceNorm
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.gemm_all_reduce.problem import GemmAllReduce
from autotune.kernels.gemm_reduce_scatter.problem import GemmReduceScatter
from autotune.kernels.moe.problem import MOST_PAIRS, ExpertsProblem
from autotune.kernels.moe_dispatch_gemm.problem import MoeDispatchGemm
from autotune.problem import LARGEST_DIMENSION, Problem, choice, flag, size


@dataclass(frozen=True, kw_only=True)
class Sum(Problem):
    """A problem with a field of each kind."""

    workload = "sum"

    width: int = size("numbers on each rank")
    padding: int = size("numbers in front of them", default=0, least=0)
    rounding: str = choice("how", ("even", "zero"), "even")
    in_place: bool = flag("write over the input")


def gemm(**fields: Any) -> AllGatherGemm:
    return AllGatherGemm(**{"m": 4096, "n": 28672, "k": 8192, "world_size": 4, **fields})


def fp8(**fields: Any) -> AllGatherGemm:
    return gemm(**{"dtype": "fp8", "b_order": "nk", **fields})


def decode(**fields: Any) -> FlashDecode:
    sizes = {"batch": 4, "q_heads": 96, "kv_heads": 12, "head_dim": 128, "kv_len": 8192, "world_size": 8}
    return FlashDecode(**{**sizes, **fields})


def norm(**fields: Any) -> AllReduceNorm:
    return AllReduceNorm(**{"m": 4, "n": 64, "world_size": 2, **fields})


def experts(**fields: Any) -> ExpertsProblem:
    return ExpertsProblem(**{"tokens": 4, "hidden": 8, "experts": 1024, "top_k": 16, "world_size": 2, **fields})


def test_the_canonical_form_leads_back_and_ignores_the_order() -> None:
    problem = Sum(width=1024, world_size=2, in_place=True)
    assert problem.to_json() == (
        '{"dtype":"bf16","in_place":true,"padding":0,"rounding":"even","width":1024,"world_size":2}'
    )
    values = json.loads(problem.to_json())
    assert Sum.from_dict(values) == problem
    assert Sum.from_dict(dict(reversed(values.items()))).to_json() == problem.to_json()


def test_defaults_need_not_be_given() -> None:
    assert Sum(width=LARGEST_DIMENSION, world_size=2).width == LARGEST_DIMENSION
    assert Sum.from_dict({"width": 8, "world_size": 2}) == Sum(
        width=8, world_size=2, dtype="bf16", rounding="even", in_place=False, padding=0
    )


def test_unknown_and_missing_fields_are_named() -> None:
    with pytest.raises(InvalidProblem, match="world_size, width"):
        Sum.from_dict({})
    with pytest.raises(InvalidProblem, match="depth, height"):
        Sum.from_dict({"width": 8, "world_size": 2, "height": 1, "depth": 1})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("width", [0, LARGEST_DIMENSION + 1, "8", True, None]), ("world_size", [0]),
        ("padding", [-1, False, None]), ("dtype", ["int8"]), ("rounding", ["up", None]), ("in_place", [1, "yes"]),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(InvalidProblem) as caught:
            Sum.from_dict({"width": 8, "world_size": 2, field: value})
        assert str(caught.value).startswith(f"{field}={value!r}: ")


NUMBERS = (float("nan"), torch.ones(2))
MOST_TOKENS = MOST_PAIRS // 32


@pytest.mark.parametrize(
    ("make", "fields", "told"),
    [
        (gemm, {"n": 3}, "use 4"), (gemm, {"m": 4097}, "m=4097"), (gemm, {"layout": "k", "k": 8190}, "k=8190"),
        (gemm, {"b_order": "cm"}, "cm"), (gemm, {"scales": "row"}, "scales=row"), (fp8, {}, "scales=none"),
        (gemm, {"out_dtype": "fp16"}, "auto, bf16, fp32"), (fp8, {"scales": "row", "b_order": "kn"}, "b_order=nk"),
        (fp8, {"scales": "rows"}, "mean row"), (fp8, {"scales": "row", "n": 4 * 40}, "use 32 or 48"),
        (fp8, {"scales": "row", "k": 8}, "use 16"), (fp8, {"scales": "block", "k": 192}, "use 128 or 256"),
        (fp8, {"scales": "block", "k": 256, "layout": "k"}, "use 128"),
        (fp8, {"scales": "row", "dtype": "float8_e4m3fn"}, "mean fp8"), (gemm, {"fast_accum": True}, "scales=none"),
        (fp8, {"scales": "block", "fast_accum": True}, "fast_accum with scales=block"),
        (decode, {"dtype": "fp32"}, "dtype='fp32'"), (decode, {"head_dim": 96}, "head_dim=96"),
        (decode, {"kv_heads": 7}, "kv_heads=7"), (decode, {"page_size": 0}, "page_size=0"),
        (decode, {"soft_cap": -1}, "soft_cap=-1"), (decode, {"q_heads": 12, "result": "heads"}, "q_heads=12"),
        *((gemm, {"m": other}, "m=") for other in (4.5, "4", float("inf"), np.bool_(True), *NUMBERS)),
        *((norm, {"eps": other}, "eps=") for other in (-1.0, "1e-6", 10**400, *NUMBERS)),
        (experts, {"tokens": MOST_TOKENS + 1}, "fewer tokens"), (experts, {"top_k": 17}, "16 at most"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(make: Any, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidProblem, match=told):
        make(**fields)


def test_what_goes_together_is_taken() -> None:
    """Only the sharded dimension must divide; only sums over the whole depth stay in the tensor cores."""
    assert gemm(k=8191).shard == (1024, 8191) and gemm(layout="k", m=7).shard == (7, 2048)
    assert gemm(world_size=1, m=7, n=5, k=3).shard == (7, 3)
    assert fp8(scales="row", fast_accum=True).fast_accum and fp8(scales="tensor", fast_accum=True).fast_accum
    assert experts().local_experts == 512 and experts(tokens=MOST_TOKENS).all_pairs == MOST_PAIRS


def test_sizes_of_a_gemm() -> None:
    for layout in ("rows", "k"):
        problem = gemm(layout=layout)
        rows, width = problem.shard
        assert rows * width * problem.world_size == problem.m * problem.k
        assert problem.n_local == 7168
        assert problem.flops == 2 * 4096 * 7168 * 8192
        assert problem.bytes_moved == 3 * rows * width * 2, "what three peers hold"
        assert problem.bytes_read == (4096 * 8192 + 8192 * 7168) * 2
    assert gemm(world_size=1).bytes_moved == 0


def test_the_text_form_names_every_field_that_does_not_hold_its_default() -> None:
    problem = gemm(bias=True)
    told = {field.name for field in dataclasses.fields(problem) if getattr(problem, field.name) != field.default}
    text = str(problem)
    assert {word.partition("=")[0] for word in text.split()} == told
    assert "scales=row" in str(fp8(scales="row")) and "out_dtype=fp32" in str(fp8(scales="row", out_dtype="fp32"))
    assert "bias=True" in text


def test_a_key_says_every_field_in_one_way() -> None:
    key = gemm().to_json()
    assert json.loads(key) | {"invariant": False} == gemm().as_dict()  # stored keys are older than that field
    assert gemm(out_dtype="bf16", scales="none").to_json() == key
    assert AllGatherGemm.from_dict(json.loads(key)) == gemm() == gemm(out_dtype="auto")
    scaled = fp8(scales="row", out_dtype="bf16")
    assert scaled == fp8(scales="row") and AllGatherGemm.from_dict(json.loads(scaled.to_json())) == scaled


@pytest.mark.parametrize("four", [4.0, np.int32(4), torch.tensor(4)])
def test_numbers_may_be_those_of_numpy_torch_and_models_configs(four: Any) -> None:
    assert gemm(world_size=four, m=np.int64(4096)).to_json() == gemm().to_json()
    assert norm(m=four, eps=four).to_json() == norm(m=4, eps=4.0).to_json()


def test_sizes_of_a_decoding_step() -> None:
    problem, kept = decode(page_size=1000, lengths="even"), decode(result="heads")
    assert (problem.group, problem.rows, problem.pages) == (8, 384, 9)
    assert problem.cache_shape == (36, 1000, 12, 128)
    assert problem.flops == 2 * (2 * 4 * 96 * 8192 * 128), "two products"
    assert problem.bytes_read == 2 * (4 * 8192 * 12 * 128 * 2), "keys and values"
    assert problem.bytes_moved == 7 * 384 * 129 * 4, "values and an LSE from each of seven peers"
    assert (kept.owned_heads, kept.result_shape, kept.result_rows) == (12, (4, 12, 128), 48)
    assert kept.bytes_moved * 8 == problem.bytes_moved and decode(world_size=1).bytes_moved == 0
    assert decode(world_size=1, result="heads") == decode(world_size=1), "a rank alone owns every head"


def test_a_cache_of_fp8_has_scales_and_is_read_in_half_the_bytes() -> None:
    scaled = decode(kv_dtype="fp8", kv_scales="head")
    assert (scaled.cache_dtype, scaled.cache_element_size, scaled.element_size) == ("fp8", 1, 2)
    assert 2 * scaled.bytes_read == decode().bytes_read and scaled.bytes_moved == decode().bytes_moved
    assert decode(kv_dtype="fp8", kv_scales="head", kv_heads=1) == decode(
        kv_dtype="fp8", kv_scales="tensor", kv_heads=1
    )
    for lone in ({"kv_dtype": "fp8"}, {"kv_scales": "tensor"}):
        with pytest.raises(InvalidProblem):
            decode(**lone)


def test_sizes_of_a_sum_over_ranks() -> None:
    """A residual is read where the result is: whole, or an owner's rows."""
    sizes: dict[str, Any] = {"m": 64, "n": 256, "k": 4 * 96, "world_size": 4}
    for kind, rows in ((GemmAllReduce, 64), (GemmReduceScatter, 16)):
        plain = kind(**sizes)
        assert (plain.gemm, plain.rows, plain.flops) == ((64, 256, 96), rows, 2 * 64 * 256 * 96)
        assert plain.bytes_read == (64 + 256) * 96 * 2
        added = kind(**sizes, residual=True, out_dtype="fp32")
        assert added.bytes_read - plain.bytes_read == rows * 256 * 4


def test_a_b_of_fp8_is_stored_transposed_unless_it_is_said_otherwise() -> None:
    default = gemm().as_dict()
    assert AllGatherGemm.completed({"dtype": "fp8"}, default)["b_order"] == "nk"
    assert AllGatherGemm.completed({"dtype": "fp8", "b_order": "kn"}, default)["b_order"] == "kn"
    assert AllGatherGemm.completed({"dtype": "fp16"}, default)["b_order"] == "kn"


def test_sizes_of_a_mixture() -> None:
    """Of 4 experts of a token 2 at most are a rank's. It reaches a rank unless all 4 are among the 6 of others."""
    sizes: dict[str, Any] = {"tokens": 17, "hidden": 256, "experts": 8, "top_k": 4, "world_size": 4}
    problem = MoeDispatchGemm(**sizes, width=128)
    assert (problem.local_experts, problem.all_pairs, problem.capacity) == (2, 4 * 17 * 4, 4 * 17 * 2)
    assert problem.reached == 1 - 15 / 70 and problem.bytes_moved == int(3 * 17 * problem.reached * 256 * 2)
    _, columns, depth = problem.gemm
    assert problem.rows_per_expert == 34 and problem.flops == 2 * 17 * 4 * columns * depth
    assert dataclasses.replace(problem, tokens=1, top_k=1).rows_per_expert == 1, "rounded up"
    every = dataclasses.replace(problem, top_k=8)
    assert every.bytes_read == (2 * columns + 17 * 8) * depth * 2, "all experts' B, and a row for each pair"
    scales = {"none": 0, "row": 1, "block": 2}
    for kind, count in scales.items():
        scaled = MoeDispatchGemm(**sizes, width=128, dtype="bf16" if kind == "none" else "fp8", scales=kind)
        assert scaled.row_scales == count
