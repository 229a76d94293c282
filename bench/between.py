"""Our operators against plain torch at sizes between those that were tuned, in CUDA graphs, by outside.py's clock.

    python bench/between.py --grids --world-size 2 --db between.db | sh     tunes: a grid for each product, 1 to 16384
    torchrun --nproc-per-node 2 bench/between.py --db between.db --seed 1   sizes drawn with a seed
    torchrun --nproc-per-node 2 bench/between.py --toy                      tiny problems, without GPUs too

Sizes are drawn from 1 to 16384, of equal weight by their logarithm, half of them odd for each rank. A ratio is plain
torch's time over ours, paired by rounds; worst and geometric mean follow.
"""

from __future__ import annotations

import os
import random
import shlex

import outside
import untuned
from arguments import whole
from untuned import AG, RS, TINY, Sizes

PRODUCTS = (
    (AG, 28672, 4096), (AG, 10240, 8192), (AG, 9216, 4096), (RS, 4096, 14336), (RS, 8192, 8192), (RS, 4096, 8192),
)  # fmt: skip
"""Workload, n and k of layers of Llama-8B, Llama-70B and Qwen3-235B, as totals over the ranks."""

MOST = 16384


def drawn(count: int, seed: int, ranks: int) -> list[Sizes]:
    """``count`` sizes, shared out over the products in turn."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        rows = max(1, round(MOST ** rng.random() / ranks))
        odd = rows | 1 if number % 2 else max(2, rows & ~1)
        workload, n, k = PRODUCTS[number % len(PRODUCTS)]
        found.append((workload, ranks * odd, n, k))
    return found


def grids(ranks: int, url: str) -> list[str]:
    """The commands that tune what is drawn."""
    return [
        f"tune grid {name.replace('_', '-')} --m {ranks}..{MOST} --n {n} --k {k} --dtype bf16 --b-order nk "
        f"--world-size {ranks} --budget 5s --db {shlex.quote(url)}"
        for name, n, k in PRODUCTS
    ]


def main() -> None:
    parser = untuned.options(__doc__)
    parser.add_argument("--db", default="between.db", help="database of tuned configs; default: between.db")
    parser.add_argument("--count", type=whole, default=40, help="sizes; default: 40")
    parser.add_argument("--seed", type=whole, default=1)
    parser.add_argument("--grids", action="store_true", help="print the commands that tune, measure nothing")
    parser.add_argument("--world-size", type=whole, default=2, help="ranks, for --grids; default: 2")
    given = parser.parse_args()
    if given.grids:
        print("\n".join(grids(given.world_size, given.db)))
        return
    outside.demand_gpus(parser, given.toy)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    problems = TINY if given.toy else drawn(given.count, given.seed, ranks)
    untuned.measure(given, "toy" if given.toy else f"drawn with seed {given.seed}", problems, given.db)


if __name__ == "__main__":
    main()
