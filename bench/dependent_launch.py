"""Programmatic dependent launch between a GEMM of few rows and its norm, against two launches: one GPU, sm_90 or later.

    python bench/dependent_launch.py [--json FILE]

The norm's programs may begin while the GEMM's run, and wait for its end where they need its result. The GEMM says when:
at its end (as Triton does unless told), at its begin, or once its products are summed. The norm waits at its begin, or
after it has loaded the residual and the weight, which no GEMM writes. Times are those of ``replays.py``; results are
compared with those of two launches one after the other.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import tables
import torch
import triton
import triton.language as tl
from arguments import new_parser, output_file
from replays import in_turns
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from autotune.kernels.all_reduce_norm.device import add_and_norm, load_rows
from autotune.kernels.primitives.known import Gemm, known
from autotune.kernels.primitives.products import Operands, tile_product
from autotune.kernels.primitives.tiles import put_tile
from autotune.machine import machine, versions

SHAPES = ((16, 8192, 1024), (16, 8192, 4096), (16, 5120, 4096), (16, 8192, 14336))
BLOCK_M, BLOCK_N, BLOCK_K, STAGES = 16, 64, 256, 4
TRIGGERS = ("end", "begin", "products")
WAITS = ("begin", "after loads")
ALONE = -1
"""In place of a trigger or a wait: two launches, one after the other."""


@triton.jit
def gemm_kernel(
    a, b, c, M, N, K, TRIGGER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    if TRIGGER == 1:
        gdc_launch_dependents()
    n = tl.program_id(0)
    FORM: tl.constexpr = known(Gemm, BLOCK_M, BLOCK_N, BLOCK_K, True, True, True)
    acc = tile_product(Operands(a, M, K, b, N, 1, K), 0, n * BLOCK_N, 0, K, FORM)
    if TRIGGER == 2:
        gdc_launch_dependents()
    put_tile(acc, c, 0, n * BLOCK_N, M, N)


@triton.jit
def norm_kernel(x, residual, weight, normed, total, M, N, eps, WAIT: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    if WAIT == 0:
        gdc_wait()
    columns = tl.arange(0, BLOCK_N)
    of_weight = tl.load(weight + columns, mask=columns < N, other=0.0)[None, :]
    of_residual = load_rows(residual, row, M, 0, N, 1, BLOCK_N)
    if WAIT == 1:
        gdc_wait()
    acc = load_rows(x, row, M, 0, N, 1, BLOCK_N).to(tl.float32)
    add_and_norm(acc, of_residual, of_weight, normed, total, row, M, N, eps, tl.bfloat16)


class Pair:
    """A GEMM and the norm behind it."""

    def __init__(self, m: int, n: int, k: int) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda", generator=generator).to(torch.bfloat16)

        self.sizes = m, n, k
        self.a = TensorDescriptor.from_tensor(drawn(m, k), [BLOCK_M, BLOCK_K])
        self.b = TensorDescriptor.from_tensor(drawn(n, k), [BLOCK_N, BLOCK_K])
        self.c, self.total, self.normed = (torch.empty_like(drawn(m, n)) for _ in range(3))
        self.residual, self.weight = drawn(m, n), drawn(n)

    def gemm(self, trigger: int) -> None:
        m, n, k = self.sizes
        gemm_kernel[(n // BLOCK_N,)](
            self.a, self.b, self.c, m, n, k, trigger, BLOCK_M, BLOCK_N, BLOCK_K, num_warps=4, num_stages=STAGES
        )  # fmt: skip

    def norm(self, wait: int) -> None:
        m, n, _ = self.sizes
        norm_kernel[(m,)](
            self.c, self.residual, self.weight, self.normed, self.total, m, n, 1e-6, wait, triton.next_power_of_2(n),
            num_warps=8, launch_pdl=wait != ALONE,
        )  # fmt: skip

    def both(self, trigger: int, wait: int) -> Callable[[], object]:
        def run() -> None:
            self.gemm(trigger)
            self.norm(wait)

        return run

    def ways(self) -> dict[str, Callable[[], object]]:
        early = itertools.product(enumerate(TRIGGERS), enumerate(WAITS))
        return {
            "GEMM alone": lambda: self.gemm(ALONE),
            "one after the other": self.both(ALONE, ALONE),
            **{f"{told}, {waited}": self.both(trigger, wait) for (trigger, told), (wait, waited) in early},
        }

    def check(self, ways: dict[str, Callable[[], object]]) -> None:
        ways["one after the other"]()
        right = self.normed.clone()
        for name, run in ways.items():
            self.normed.zero_()
            if name != "GEMM alone":
                run()
                assert torch.equal(self.normed, right), name


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all rows there, too")
    given = parser.parse_args()
    if machine().kind != "cuda" or torch.cuda.get_device_capability() < (9, 0):
        parser.error(f"needs an NVIDIA GPU, sm_90 or later; this machine has {machine().device}")
    found: list[dict[str, Any]] = []
    for shape in SHAPES:
        pair = Pair(*shape)
        ways = pair.ways()
        pair.check(ways)
        times = in_turns(ways)
        if not found:
            print(f"{machine().device}, {versions()}\n")
            print(tables.head(["m, n, k", *times], "l"))
        print(tables.row([", ".join(map(str, shape)), *(f"{time:.1f}" for time in times.values())]), flush=True)
        found.append({"shape": shape, "microseconds": times})
    if given.json is not None:
        about = {"device": machine().device, "versions": versions(), "rows": found}
        given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
