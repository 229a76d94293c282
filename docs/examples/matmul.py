"""C = A @ B with a Triton kernel that is tuned at its first launch and never again: docs/decorator.md walks through it.

python docs/examples/matmul.py                               on a GPU
TRITON_INTERPRET=1 python docs/examples/matmul.py            without one
torchrun --nproc-per-node 4 docs/examples/matmul.py          all ranks tune together
"""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl

import autotune
from autotune.search_spaces import Constraint, Space, Task, choices, numbers

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SIZES = (16, 32) if INTERPRETED else (32, 64, 128, 256)

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 32}, num_warps=warps, num_stages=3)
    for m in SIZES for n in SIZES for warps in (4, 8) if m * n >= 128 * warps or INTERPRETED
]  # fmt: skip


@triton.jit
def multiply_tile(a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + rows[:, None] * K + depth, mask=(rows[:, None] < M) & (depth < K), other=0.0)
        right = tl.load(b + depth[:, None] * N + columns, mask=(depth[:, None] < K) & (columns < N), other=0.0)
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + columns, total, mask=(rows[:, None] < M) & (columns < N))


listed = autotune.autotune(configs=CONFIGS, key=["M", "N", "K"])(multiply_tile)
"""A plain list: what ``triton.autotune(configs=CONFIGS, key=["M", "N", "K"])`` would be."""


def fits(s: Task[Any], BLOCK_M: int, BLOCK_N: int, BLOCK_K: int, num_stages: int) -> bool:
    """True if the pipeline's stages of 16-bit operands fit into shared memory."""
    return num_stages * (BLOCK_M + BLOCK_N) * BLOCK_K * 2 <= s.machine.shared_memory


SPACE = Space(
    choices("mode", "kernel"),
    numbers("BLOCK_M", *SIZES), numbers("BLOCK_N", *SIZES), numbers("BLOCK_K", 32, 64),
    numbers("num_warps", 4, 8), numbers("num_stages", 2, 3, 4),
    constraints=(
        Constraint("shared memory", ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages"), fits, "the stages would not fit"),
    ),
)  # fmt: skip

searched = autotune.autotune(
    space=SPACE, key=["M", "N", "K"], free=["M"], trials=12 if INTERPRETED else 60,
    default={"BLOCK_M": SIZES[-1], "BLOCK_N": SIZES[-1], "BLOCK_K": 32, "num_warps": 8, "num_stages": 3},
)(multiply_tile)  # fmt: skip
"""A joint space: tuned when ``searched.tune`` is called, else the nearest tuned M, else the default."""


def grid(meta: dict[str, int]) -> tuple[int, int]:
    """Programs for a call."""
    return triton.cdiv(meta["M"], meta["BLOCK_M"]), triton.cdiv(meta["N"], meta["BLOCK_N"])


def main() -> None:
    """Tune both, or find them tuned, and check the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64 if INTERPRETED else 4096, help="M, N and K")
    size = parser.parse_args().size
    logging.basicConfig(format="%(message)s")
    logging.getLogger("autotune").setLevel(logging.INFO)
    if not INTERPRETED and not torch.cuda.is_available():
        raise SystemExit("no GPU here: set TRITON_INTERPRET=1 to run this on the CPU")
    device = "cpu" if INTERPRETED else "cuda"
    if "RANK" in os.environ:
        if not INTERPRETED:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo" if INTERPRETED else "cpu:gloo,cuda:nccl")

    a, b = (torch.randn(size, size, device=device).half() for _ in range(2))
    c = torch.empty_like(a)
    listed[grid](a, b, c, size, size, size)
    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-1)

    searched[grid](a, b, c, size, size, size)  # with the default, unless it has been tuned before
    if [found.source for found in searched.decisions.values()] != ["exact"]:
        searched.tune(a, b, c, size, size, size, grid=grid)
    searched[grid](a[: size - 8], b, c, size - 8, size, size)  # the nearest M's config
    torch.testing.assert_close(c[: size - 8], (a @ b)[: size - 8], rtol=1e-2, atol=1e-1)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
