"""Our grouped GEMM alone, tile by tile, beside the library's: what a rank of a mixture of experts computes, on one GPU.

    python bench/grouped_gemm.py [--dtype fp8 [--scales block]] [--shapes 8192x4096x7168,…] [--experts 32] [--json FILE]

In bf16, or in fp8 with scales by rows or by blocks. torch has no grouped GEMM with scales by blocks: there the
library's with scales by rows is the yardstick. Each row belongs to an expert drawn at random. ``gathered``: A's rows
are tokens, each in eight rows, as in dispatch + grouped GEMM; ``laid out``: they lie expert by expert, as in grouped
GEMM + combine. Every tile's result is compared with the library's, or with the product of what the fp8 operands stand
for. Times are those of ``replays.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import triton
from arguments import need_gpu, output_file, shapes, whole
from replays import in_turns

from autotune.kernels.gemm.library import dequantised
from autotune.kernels.gemm.problem import scale_shapes
from autotune.kernels.launching.tensors import OPERAND_DTYPES
from autotune.kernels.moe.grouped_launch import GroupedOperands, grouped_gemm
from autotune.kernels.moe.grouped_tile import GroupedTile
from autotune.kernels.moe.library import Scaling, grouped_product
from autotune.machine import machine, versions

SHAPES = ("8192x4096x7168", "32768x4096x7168", "32768x7168x2048")
PER = 8
"""Rows that each token has."""

TILES = (
    # block_m, block_n, block_k, warps, stages, programs per unit
    (128, 128, 64, 8, 4, 1),
    (128, 128, 64, 4, 4, 2),
    (128, 128, 128, 8, 3, 1),
    (128, 256, 64, 8, 3, 1),
    (128, 256, 64, 8, 4, 1),
    (64, 256, 64, 4, 4, 1),
    (256, 128, 64, 8, 4, 1),
)
FP8_TILES = (
    (128, 128, 128, 8, 3, 1),
    (128, 128, 128, 4, 3, 2),
    (128, 256, 128, 8, 3, 1),
    (64, 128, 128, 4, 4, 2),
    (64, 128, 128, 4, 3, 2),
    (64, 128, 128, 4, 2, 3),
    (64, 256, 128, 4, 3, 1),
    (64, 256, 128, 8, 3, 1),
)
FAR = 6e-3
"""Largest |ours - library's| / |library's| (Frobenius): each rounds to bf16 once."""


class Comparison:
    """One shape: rows of all experts, columns, depth."""

    def __init__(self, rows: int, columns: int, depth: int, experts: int, dtype: str, scales: str) -> None:
        self.dtype, self.scales, kind = dtype, scales, OPERAND_DTYPES[dtype]
        generator = torch.Generator("cuda").manual_seed(0)
        expert = torch.randint(experts, (rows,), device="cuda", generator=generator)
        counts = expert.bincount(minlength=experts)
        self.offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        self.pairs = torch.randperm(rows, device="cuda", generator=generator).to(torch.int32)
        self.tokens = torch.randn(-(-rows // PER), depth, device="cuda", generator=generator).to(kind)
        self.a = self.tokens[self.pairs.long() // PER].contiguous()
        b = torch.randn(experts, columns, depth, device="cuda", generator=generator) * depth**-0.5
        self.b = b.to(kind).transpose(1, 2)
        self.scaling = self.by_rows = None
        if dtype == "fp8":
            self.by_rows = self.scaled("row", generator)
            self.scaling = self.by_rows if scales == "row" else self.scaled(scales, generator)
        self.c = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda")
        self.right = self.library() if scales == "row" else self.dequantised()

    def scaled(self, kind: str, generator: torch.Generator) -> Scaling:
        experts, depth, columns = self.b.shape
        of_a, (along_k, along_n) = scale_shapes(kind, (len(self.tokens), depth), (depth, columns))
        self.token_scales = torch.rand(of_a, device="cuda", generator=generator) + 0.5
        of_b = torch.rand(experts, along_n, along_k, device="cuda", generator=generator) + 0.5
        return Scaling(self.token_scales[self.pairs.long() // PER], of_b.transpose(1, 2), kind)

    def library(self) -> torch.Tensor:
        return grouped_product(self.a, self.b, self.offsets, self.by_rows)

    def dequantised(self) -> torch.Tensor:
        assert self.scaling is not None
        c = torch.empty_like(self.c)
        for expert, (begin, end) in enumerate(pairwise(self.offsets.tolist())):
            rows = dequantised(self.a[begin:end], self.scaling.a[begin:end])
            c[begin:end] = (rows @ dequantised(self.b[expert], self.scaling.b[expert])).to(torch.bfloat16)
        return c

    def ours(self, tile: tuple[int, ...], gathered: bool) -> Callable[[], object]:
        block_m, block_n, block_k, warps, stages, per_unit = tile
        knobs = GroupedTile(
            mode="push", loads="tma", block_m=block_m, block_n=block_n, block_k=block_k, num_warps=warps,
            num_stages=stages, group_m=8, swap_ab=False, programs_per_unit=per_unit,
        )  # fmt: skip
        rows = self.a.shape[0]
        operands = GroupedOperands(self.a, self.b, self.offsets, rows)
        if gathered:
            operands = dataclasses.replace(operands, a=self.tokens, gather=self.pairs, per=PER)
        if self.scaling is not None:
            scale_a = self.token_scales if gathered else self.scaling.a
            operands = dataclasses.replace(operands, scale_a=scale_a, scale_b=self.scaling.b, scales=self.scales)
        return grouped_gemm(knobs, operands, self.c, self.dtype, machine().compute_units).run

    def rows(self) -> list[dict[str, Any]]:
        """The library, then every tile, with A gathered and laid out: microseconds, and which are wrong or failed."""
        ways: dict[str, Callable[[], object]] = {"library": self.library}
        wrong, failed = [], {}
        for how in ("gathered", "laid out"):
            for tile in FP8_TILES if self.dtype == "fp8" else TILES:
                name = f"{how}: {' '.join(map(str, tile))}"
                try:
                    run = self.ours(tile, how == "gathered")
                    self.c.fill_(float("nan"))
                    run()
                    error = float((self.c.float() - self.right.float()).norm() / self.right.float().norm())
                except triton.runtime.errors.OutOfResources as refusal:
                    failed[name] = str(refusal)[:80]
                    continue
                ways[name] = run
                wrong += [] if error <= FAR else [name]
        times = in_turns(ways)
        return [{"way": name, "us": us, "wrong": name in wrong} for name, us in times.items()] + [
            {"way": name, "failed": why} for name, why in failed.items()
        ]


def compared(shape: str, experts: int, dtype: str, scales: str) -> list[dict[str, Any]]:
    rows, columns, depth = map(int, shape.split("x"))
    return Comparison(rows, columns, depth, experts, dtype, scales).rows()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--scales", choices=("row", "block"), default="row", help="of fp8")
    parser.add_argument(
        "--shapes", type=shapes, default=",".join(SHAPES), help="ROWSxCOLUMNSxDEPTH, with commas between"
    )
    parser.add_argument("--experts", type=whole, default=32)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all rows there, too")
    given = parser.parse_args()
    need_gpu(parser)
    print(f"{machine().device}, {versions()}\n\n| shape | way | µs | of the library's |\n|---|---|---:|---:|")
    found = []
    for shape in given.shapes:
        rows = [{"shape": shape, **row} for row in compared(shape, given.experts, given.dtype, given.scales)]
        found += rows
        for row in rows:
            said = row.get("failed") or f"{row['us']:.1f} | {row['us'] / rows[0]['us']:.3f}" + " WRONG" * row["wrong"]
            print(f"| {shape} | {row['way']} | {said} |", flush=True)
        torch.cuda.empty_cache()
    if given.json is not None:
        told = {"device": machine().device, "versions": versions(), "experts": given.experts, "rows": found}
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
