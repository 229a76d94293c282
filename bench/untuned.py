"""Our operators against plain torch at sizes that nobody tuned, in CUDA graphs, by outside.py's clock.

    torchrun --nproc-per-node 2 bench/untuned.py                                     a model's problems, nothing tuned
    torchrun --nproc-per-node 2 bench/untuned.py --list between --list odd --db URL  sizes between those of a grid
    torchrun --nproc-per-node 2 bench/untuned.py --toy                               tiny problems, without GPUs too

``between`` and ``odd`` are of two problems; tune them first, on two ranks, into the same database:

    tune grid all-gather-gemm --m 32,128,512,2048,8192 --n 28672 --k 4096 --dtype bf16 --b-order nk --budget 5s --db URL
    tune grid gemm-reduce-scatter --m 32,128,512,2048,8192 --n 4096 --k 14336 --dtype bf16 --b-order nk --budget 5s \\
        --db URL

A ratio is plain torch's time over ours, paired by rounds; worst and geometric mean follow each list.
"""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

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


def odd(count: int = 20, seed: int = 44) -> list[Sizes]:
    """Sizes from 64 to 8192, of equal weight by their logarithm; even, as two ranks need, and off all tiles."""
    rng = random.Random(seed)
    drawn = (2 * round(2 ** rng.uniform(5, 12)) for _ in range(100 * count))
    rows = sorted(list(dict.fromkeys(m for m in drawn if m % 32))[:count])
    return [(name, m, *sizes) for name, sizes in ((AG, GATHERS), (RS, SCATTERS)) for m in rows]


MODELS: tuple[Sizes, ...] = (
    (AG, 16, 4608, 7168), (AG, 128, 3072, 4096), (AG, 512, 720, 2880), (AG, 1024, 1024, 4096), (AG, 2048, 3584, 4096),
    (AG, 2048, 7392, 8192), (AG, 512, 51200, 5120),
    *((AG, m, *GATHERS) for m in (32, 128, 384, 512, 720, 1500, 2048, 3000, 6000, 8192)),
    (RS, 64, 7168, 4608), (RS, 512, 4096, 3072), (RS, 2048, 2880, 720), (RS, 4096, 4096, 1024), (RS, 8192, 4096, 3584),
    (RS, 8192, 8192, 7392), *((RS, m, *SCATTERS) for m in (32, 128, 512, 2048, 8192)),
    *((name, m, 5120, k) for name, m in ((AR, 128), (AR, 3000), (ARN, 128)) for k in (25600, 8192)),
)  # fmt: skip

LISTS: dict[str, Sequence[Sizes]] = {
    "models": MODELS,
    "between": [
        *((AG, m, *GATHERS) for m in (22, 96, 384, 720, 1500, 3000, 6000)),
        *((RS, m, *SCATTERS) for m in (22, 96, 384, 720, 1500, 3000, 6000)),
    ],
    "odd": odd(),
}
HEADING = ["list", "workload", "m", "n", "k", "plain, µs", "ours, µs", "plain over ours", "source", "mode"]
TINY = [(AG, 8, 64, 32), (RS, 12, 32, 64), (AR, 4, 32, 32)]


def measured(measuring: outside.Outside, context: autotune.Context, name: str, problem: Sizes, toy: bool) -> float:
    """The ratio of one problem, printed by the first rank."""
    workload, m, n, k = problem
    shared = {"dtype": "fp32" if toy else "bf16", "b_order": "nk", "world_size": dist.get_world_size()}
    regime = "graph" if torch.cuda.is_available() else "pipelined"
    (row,) = measuring.rows(name, {"m": m, "n": n, "k": k, **shared}, workload, [regime])
    if dist.get_rank() == 0:
        cells = [name, workload, m, n, k, f"{row.plain:.1f}", f"{row.ours:.1f}", row.ratio, row.source]
        print(tables.row([*cells, row.config["mode"]]), flush=True)
    gc.collect()  # the operands' memory, before the next problem's
    context.release()
    return row.ratio.value


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--list", action="append", choices=LISTS, help="again for more; default: models")
    parser.add_argument("--db", help="database of tuned configs; default: an empty one")
    parser.add_argument("--regime", default="pipelined", help="that look-ups ask for; default: pipelined")
    parser.add_argument("--heap-gib", type=positive, default=4.0, help="symmetric heap of each rank")
    parser.add_argument("--toy", action="store_true", help="tiny problems, few calls: does it work at all?")
    given = parser.parse_args()
    outside.demand_gpus(parser, given.toy)
    lists = {"toy": TINY} if given.toy else {name: LISTS[name] for name in given.list or ["models"]}
    outside.start_ranks()
    try:
        with tempfile.TemporaryDirectory() as folder:
            url = given.db or str(Path(folder) / "none.db")
            heap = int((0.05 if given.toy else given.heap_gib) * (1 << 30))
            with autotune.Context(heap, url=url, regime=given.regime) as context:
                measuring = outside.Outside(context, TOY if given.toy else Plan())
                if dist.get_rank() == 0:
                    print(f"{dist.get_world_size()} ranks, {context.machine.device}\n")
                    print(tables.head(HEADING, "ll      ll"))
                for name, problems in lists.items():
                    ratios = [measured(measuring, context, name, each, given.toy) for each in problems]
                    if dist.get_rank() == 0:
                        mean, least = statistics.geometric_mean(ratios), min(ratios)
                        print(f"\n{name}: {len(ratios)} problems, worst {least:.3f}, geometric mean {mean:.3f}\n")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
