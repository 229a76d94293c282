"""The dot products of a tile with scales, by themselves: tiles wider than a block, and as high as wgmma takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from ranks_of_functions import run_ranks
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.kernels.gemm.library import dequantised
from autotune.kernels.gemm.problem import scale_shapes
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import Operands, tile_product

K = 384


@triton.jit
def product_kernel(
    a, b, c, scale_a, scale_b, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SCALES: tl.constexpr, PROMOTE: tl.constexpr, HALVES: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """C [tiles, BLOCK_M, BLOCK_N]: every tile along N as it lies in registers."""
    column = tl.program_id(0) * BLOCK_N
    FORM: tl.constexpr = known(
        Gemm, BLOCK_M, BLOCK_N, BLOCK_K, TMA, True, False, SCALES, PROMOTE, HALVES=HALVES
    )  # fmt: skip
    acc = tile_product(Operands(a, M, K, b, N, 1, K, scale_a, scale_b), 0, column, 0, K, FORM)
    place = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(c + tl.program_id(0) * BLOCK_M * BLOCK_N + place, acc)


def described(tensor: torch.Tensor, *block: int) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def errors(cases: list[dict[str, Any]]) -> list[float]:
    found = []
    for case in cases:
        n, block_n, halves, scales = case["n"], case["block_n"], case["halves"], case["scales"]
        rows, block_m, parts = case.get("rows", 40), case.get("block_m", 64), case.get("parts", 0)
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(rows, K, generator=generator).to(torch.float8_e4m3fn)
        b = torch.randn(n, K, generator=generator).to(torch.float8_e4m3fn).t()
        of_a, of_b = scale_shapes(scales, (rows, K), (K, n))
        scale_a, scale_b = torch.rand(of_a, generator=generator) + 0.5, torch.rand(of_b[::-1]).t() + 0.5
        tiles = triton.cdiv(n, block_n)
        c = torch.full((tiles, block_m, block_n), float("nan"))
        operands = [a, b]
        if parts:
            operands = [described(a, block_m // parts, 128), described(b.t(), block_n, 128)]
        product_kernel[(tiles,)](
            *operands, c, scale_a, scale_b, rows, n, K, block_m, block_n, 128, {"row": 2, "block": 3}[scales],
            case["promote"], halves, parts > 0,
        )  # fmt: skip
        whole = dequantised(a, scale_a) @ dequantised(b, scale_b)
        parts = torch.cat([each[:rows] for each in c], dim=1)
        if halves:  # each tile has as much of the gate as of up
            gates = torch.cat([each[:rows, : block_n // 2] for each in c], dim=1)[:, : n // 2]
            ups = torch.cat([each[:rows, block_n // 2 :] for each in c], dim=1)[:, : n // 2]
            parts = torch.cat([gates, ups], dim=1)
        found.append(float((parts[:, :n] - whole).norm() / whole.norm()))
    return found


def test_tiles_find_the_scales_of_their_rows_columns_and_blocks(tmp_path: Path) -> None:
    plain = {"halves": False, "promote": None, "scales": "block"}
    cases = [
        {**plain, "n": 320, "block_n": 256},  # two blocks; then one, and none behind it
        {**plain, "n": 320, "block_n": 128},
        {**plain, "n": 96, "block_n": 32},
        {**plain, "n": 640, "block_n": 256, "halves": True},  # up begins within a block, and goes on in the next
        {**plain, "n": 96, "block_n": 64, "halves": True},
        {**plain, "n": 320, "block_n": 128, "scales": "row", "promote": 128},  # a step starts from zero
        {**plain, "n": 320, "block_n": 128, "scales": "row", "promote": 64},
        {**plain, "n": 96, "block_n": 64, "scales": "row", "promote": 128, "rows": 100, "block_m": 128, "parts": 1},
        {**plain, "n": 96, "block_n": 64, "scales": "row", "promote": 128, "rows": 100, "block_m": 128, "parts": 2},
        {**plain, "n": 320, "block_n": 128, "rows": 100, "block_m": 128, "parts": 2},
    ]
    (found,) = run_ranks(__file__, "errors", 1, tmp_path, argument=cases)
    assert all(error < 1e-5 for error in found), found
