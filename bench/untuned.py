"""Our operators against plain torch at sizes that nobody tuned, in CUDA graphs, by outside.py's clock.

    torchrun --nproc-per-node 2 bench/untuned.py          problems of models, nothing tuned
    torchrun --nproc-per-node 2 bench/untuned.py --toy    tiny problems, without GPUs too

A ratio is plain torch's time over ours, paired by rounds; worst and geometric mean follow. Sizes between tuned ones:
``between.py``.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import outside
import tables
import torch
import torch.distributed as dist
from arguments import new_parser, positive

import autotune
from autotune.model_runs.clock import TOY, Plan

AG, RS, AR, ARN = "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_reduce_norm"
Sizes = tuple[str, int, int, int]
"""Workload, and m, n, k as totals over the ranks."""

GATHERS, SCATTERS = (28672, 4096), (4096, 14336)


MODELS: tuple[Sizes, ...] = (
    (AG, 16, 4608, 7168), (AG, 128, 3072, 4096), (AG, 512, 720, 2880), (AG, 1024, 1024, 4096), (AG, 2048, 3584, 4096),
    (AG, 2048, 7392, 8192), (AG, 512, 51200, 5120),
    *((AG, m, *GATHERS) for m in (32, 128, 384, 512, 720, 1500, 2048, 3000, 6000, 8192)),
    (RS, 64, 7168, 4608), (RS, 512, 4096, 3072), (RS, 2048, 2880, 720), (RS, 4096, 4096, 1024), (RS, 8192, 4096, 3584),
    (RS, 8192, 8192, 7392), *((RS, m, *SCATTERS) for m in (32, 128, 512, 2048, 8192)),
    *((RS, m, 8192, 8192) for m in (540, 616, 700)),
    *((name, m, 5120, k) for name, m in ((AR, 128), (AR, 3000), (ARN, 128)) for k in (25600, 8192)),
)  # fmt: skip

HEADING = ["list", "workload", "m", "n", "k", "plain, µs", "ours, µs", "plain over ours", "source", "mode"]
TINY = [(AG, 8, 64, 32), (RS, 12, 32, 64), (AR, 4, 32, 32)]


def measured(measuring: outside.Outside, name: str, problem: Sizes, toy: bool) -> float:
    """The ratio of one problem, printed by the first rank."""
    workload, m, n, k = problem
    shared = {"dtype": "fp32" if toy else "bf16", "b_order": "nk", "world_size": dist.get_world_size()}
    regime = "graph" if torch.cuda.is_available() else "pipelined"
    (row,) = measuring.rows(name, {"m": m, "n": n, "k": k, **shared}, workload, [regime])
    if dist.get_rank() == 0:
        cells = [name, workload, m, n, k, f"{row.plain:.1f}", f"{row.ours:.1f}", row.ratio, row.source]
        print(tables.row([*cells, row.config["mode"]]), flush=True)
    return row.ratio.value


Measured = Callable[[outside.Outside, str, Any, bool], float]
"""Prints a problem's row on the first rank, and returns its ratio."""


def measure(
    given: argparse.Namespace, name: str, problems: Sequence[Any], url: str, measured: Measured = measured,
    heading: Sequence[str] = HEADING,
) -> None:  # fmt: skip
    """A row of the table for each problem, then the worst ratio and the mean, printed by the first rank."""
    outside.start_ranks()
    try:
        heap = int((0.05 if given.toy else given.heap_gib) * (1 << 30))
        with autotune.Context(heap, url=url, regime=given.regime) as context:
            measuring = outside.Outside(context, TOY if given.toy else Plan())
            if dist.get_rank() == 0:
                print(f"{dist.get_world_size()} ranks, {context.machine.device}\n")
                print(tables.head(heading, "ll" + " " * (len(heading) - 4) + "ll"))
            ratios = []
            for each in problems:
                ratios.append(measured(measuring, name, each, given.toy))
                gc.collect()  # the operands' memory, before the next problem's
                context.release()
            if dist.get_rank() == 0:
                mean, least = statistics.geometric_mean(ratios), min(ratios)
                print(f"\n{name}: {len(ratios)} problems, worst {least:.3f}, geometric mean {mean:.3f}\n")
    finally:
        dist.destroy_process_group()


def options(doc: str | None) -> argparse.ArgumentParser:
    parser = new_parser(doc)
    parser.add_argument("--regime", default="pipelined", help="that look-ups ask for; default: pipelined")
    parser.add_argument("--heap-gib", type=positive, default=4.0, help="symmetric heap of each rank")
    parser.add_argument("--toy", action="store_true", help="tiny problems, few calls: does it work at all?")
    return parser


def main() -> None:
    parser = options(__doc__)
    given = parser.parse_args()
    outside.demand_gpus(parser, given.toy)
    with tempfile.TemporaryDirectory() as folder:
        measure(given, "toy" if given.toy else "models", TINY if given.toy else MODELS, str(Path(folder) / "none.db"))


if __name__ == "__main__":
    main()
