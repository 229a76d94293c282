"""Our fp8 GEMM alone, tile by tile, beside torch._scaled_mm: what a rank of all-gather + GEMM computes, on one GPU.

    python bench/fp8_gemm.py [--scales row,block] [--shapes 1024x14336x8192,…] [--json FILE]

The kernel is the one of the operators without its communication: their program order, dot products and stores. ``row``
is measured with the sums in fp32 registers and, as ``row fast``, with the tensor cores' own (``use_fast_accum``).
Every tile's result is compared with the product of the dequantised operands in fp32. A time is the median over rounds
in which all ways take turns, each by a CUDA graph of calls that lasts a twentieth of a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import tables
import torch
import triton
import triton.language as tl
from arguments import need_gpu, new_parser, output_file, shapes, some_of
from replays import in_turns

import autotune
from autotune.kernels.gemm.library import dequantised, multiply
from autotune.kernels.gemm.problem import scale_shapes
from autotune.kernels.gemm.tile import GemmKnobs
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import Operands, tile_product
from autotune.kernels.primitives.tiles import Output, store_tile, swizzle
from autotune.machine import machine, versions

KINDS = {"tensor": 1, "row": 2, "row fast": 2, "block": 3}
"""What is measured, with the kernel's number of its scales."""

SHAPES = ("256x14336x8192", "1024x14336x8192", "4096x14336x8192", "8192x14336x8192")

TILES = (
    # block_m, block_n, block_k, warps, stages, programs per unit (0: one per tile), flattened
    (128, 128, 128, 8, 3, 0, False),
    (128, 128, 128, 8, 4, 0, False),
    (128, 128, 128, 8, 4, 1, True),
    (128, 128, 128, 4, 3, 0, False),
    (128, 128, 128, 4, 3, 2, False),
    (128, 128, 128, 4, 3, 2, True),
    (128, 256, 128, 8, 3, 0, False),
    (128, 256, 128, 8, 3, 1, False),
    (128, 256, 128, 8, 3, 1, True),
    (128, 256, 128, 8, 4, 0, False),
    (256, 128, 128, 8, 3, 0, False),
    (256, 128, 128, 8, 4, 1, True),
    (64, 256, 128, 4, 3, 0, False),
    (64, 128, 128, 4, 4, 0, False),
    (128, 128, 64, 8, 6, 0, False),
    (128, 256, 64, 8, 6, 1, True),
)

FAR = {False: 5e-3, True: 3e-2}
"""Largest |ours - right| / |right| (Frobenius) of a result in bf16, by whether the tensor cores add up."""


@triton.jit(do_not_specialize=["group_m"])
def gemm_kernel(
    a, b, c, scale_a, scale_b, M, N, K, group_m,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SCALES: tl.constexpr, PROMOTE: tl.constexpr,
    FLATTEN: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    operands = Operands(a, M, K, b, N, 1, K, scale_a, scale_b)
    FORM: tl.constexpr = known(Gemm, BLOCK_M, BLOCK_N, BLOCK_K, True, True, True, SCALES, PROMOTE)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLATTEN):
        m, n = swizzle(tile, tiles_m, tiles_n, group_m)
        acc = tile_product(operands, m * BLOCK_M, n * BLOCK_N, 0, K, FORM)
        store_tile(acc, Output(c, M, N), m * BLOCK_M, n * BLOCK_N, FORM)


class Comparison:
    """One shape with one kind of scales."""

    def __init__(self, kind: str, m: int, n: int, k: int) -> None:
        self.kind, self.sizes = kind, (m, n, k)
        self.scales = kind.split()[0]
        self.fast = kind == "row fast"
        self.problem = autotune.AllGatherGemm(
            m=m, n=n, k=k, world_size=1, dtype="fp8", scales=self.scales, b_order="nk", fast_accum=self.fast
        )
        generator = torch.Generator("cuda").manual_seed(0)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda", generator=generator)

        of_a, of_b = scale_shapes(self.scales, (m, k), (k, n))
        self.tensors = GemmTensors(
            a=drawn(m, k).to(torch.float8_e4m3fn), b=drawn(n, k).to(torch.float8_e4m3fn).t(),
            c=torch.empty((m, n), dtype=torch.bfloat16, device="cuda"),
            scale_a=drawn(*of_a).abs() + 0.5, scale_b=(drawn(*of_b[::-1]).abs() + 0.5).t(),
        )  # fmt: skip

    def library(self) -> None:
        tensors = self.tensors
        multiply(self.problem, tensors.a, tensors.scale_a, tensors, tensors.c)

    def ours(self, tile: tuple[Any, ...]) -> Callable[[], object]:
        block_m, block_n, block_k, warps, stages, per_unit, flatten = tile
        m, n, k = self.sizes
        tensors = self.tensors
        tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
        programs = min(tiles, per_unit * machine().compute_units) if per_unit else tiles

        knobs = GemmKnobs(mode="push", loads="tma", block_m=block_m, block_n=block_n, block_k=block_k, num_warps=warps)
        operands = (
            knobs.a_operand(tensors.a, in_two_parts=knobs.in_two_parts(self.problem, machine())),
            knobs.b_operand(self.problem, tensors.b), knobs.operand(tensors.c, (block_m, block_n // 2)),
            tensors.scale_a, tensors.scale_b,
        )  # fmt: skip
        promote = knobs.promoted(self.problem, machine())
        return lambda: gemm_kernel[(programs,)](
            *operands, m, n, k, 8, block_m, block_n, block_k, KINDS[self.kind], promote, flatten,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def error(self, run: Callable[[], object]) -> float:
        """Of the first and the last rows of a result."""
        tensors = self.tensors
        assert tensors.scale_a is not None and tensors.scale_b is not None
        tensors.c.fill_(float("nan"))
        run()
        b = dequantised(tensors.b, tensors.scale_b)
        errors = []
        for rows in (slice(0, 64), slice(-64, None)):
            right = dequantised(tensors.a[rows], tensors.scale_a if self.scales == "tensor" else tensors.scale_a[rows])
            right = right @ b
            errors.append(float((tensors.c[rows].float() - right).norm() / right.norm()))
        return max(errors)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The library, then every tile that the GPU takes: microseconds and error; those that fail say so."""
        ways: dict[str, Callable[[], object]] = {"library": self.library}
        ways |= {" ".join(map(str, tile)): self.ours(tile) for tile in TILES if tile[0] <= max(64, self.sizes[0])}
        errors, failed = {}, {}
        for name, run in ways.items():
            try:
                errors[name] = self.error(run)
            except (triton.runtime.errors.OutOfResources, RuntimeError) as error:
                failed[name] = str(error).splitlines()[0][:80]
        times = in_turns({name: ways[name] for name in errors})
        for name in ways:
            shared = {"kind": self.kind, "shape": "x".join(map(str, self.sizes)), "way": name}
            if name in failed:
                yield {**shared, "failed": failed[name]}
            else:
                yield {**shared, "us": times[name], "error": errors[name], "wrong": not errors[name] <= FAR[self.fast]}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument(
        "--scales", type=some_of(KINDS), default="row,row fast,block", help=f"some of {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--shapes", type=shapes, default=",".join(SHAPES), help="MxNxK of one rank's GEMM, with commas between"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all rows there, too")
    given = parser.parse_args()
    need_gpu(parser)
    print(f"{machine().device}, {versions()}\n")
    print(tables.head(["scales", "shape", "way", "µs", "of the library's", "error"], "lll"))
    rows = []
    for kind in given.scales:
        for shape in given.shapes:
            library = 0.0
            for row in Comparison(kind, *map(int, shape.split("x"))).rows():
                rows.append(row)
                library = library or row.get("us", 0.0)
                print(line(row, library), flush=True)
            torch.cuda.empty_cache()
    if given.json is not None:
        found = {"device": machine().device, "versions": versions(), "rows": rows}
        given.json.write_text(json.dumps(found, indent=1) + "\n")


def line(row: dict[str, Any], library: float) -> str:
    said = row.get("failed", "")
    cells = [row["kind"], row["shape"], row["way"], said, "", ""]
    if not said:
        error = f"{row['error']:.1e}" + (" WRONG" if row["wrong"] else "")
        cells[3:] = [f"{row['us']:.1f}", f"{row['us'] / library:.3f}", error]
    return tables.row(cells)


if __name__ == "__main__":
    main()
