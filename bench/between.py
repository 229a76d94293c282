"""Our operators against plain torch at sizes between those that were tuned, in CUDA graphs, by outside.py's clock.

    python bench/between.py --grids --world-size 2 --db between.db | sh     tunes: a grid for each product, 1 to 16384
    torchrun --nproc-per-node 2 bench/between.py --db between.db --seed 1   sizes drawn with a seed
    … --exact --seed 1 --count 12 --db exact.db | sh                        tunes at the very sizes, to compare with
    torchrun --nproc-per-node 2 bench/between.py --toy                      tiny problems, without GPUs too
    … --mixtures                                                            mixtures of experts, 1 to 64 tokens a rank

Sizes are drawn from 1 to 16384, of equal weight by their logarithm, half of them odd for each rank. A ratio is plain
torch's time over ours, paired by rounds; worst and geometric mean follow.

Of mixtures a third of the draws has as many tokens on every rank, a third any number from 0 on, and a third all tokens
on one rank; every other round of these is routed by Zipf's law. Plain torch's ways are *gathered*, all tokens on all
ranks, eagerly and in graphs, and *counted*, an all-to-all whose sizes the host reads, eagerly alone.
"""

from __future__ import annotations

import os
import random
import shlex
from dataclasses import dataclass
from typing import Any

import outside
import tables
import torch
import torch.distributed as dist
import untuned
from arguments import whole
from listed import COMBINE, DISPATCH, EXPERTS, TOY_EXPERTS
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


def tuning(command: str, sizes: tuple[str, object, int, int], ranks: int, url: str) -> str:
    name, m, n, k = sizes
    return (
        f"tune {command}{name.replace('_', '-')} --m {m} --n {n} --k {k} --dtype bf16 --b-order nk "
        f"--world-size {ranks} --budget 5s --db {shlex.quote(url)}"
    )


def grids(ranks: int, url: str) -> list[str]:
    """The commands that tune the ranges that sizes are drawn from."""
    return [tuning("grid ", (name, f"{ranks}..{MOST}", n, k), ranks, url) for name, n, k in PRODUCTS]


MOST_TOKENS, ZIPF = 64, 1.2
HEADING = ["list", "workload", "tokens of the ranks", "routing", "regime", "gathered, µs", "counted, µs", "ours, µs",
           "faster over ours", "source", "mode"]  # fmt: skip


@dataclass(frozen=True)
class Mixture:
    workload: str
    tokens: tuple[int, ...]
    """Tokens of each rank."""
    exponent: float
    """Exponent of Zipf's law; 0: all experts are equally popular."""

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the problem, but for its fixed sizes."""
        routing = "zipf" if self.exponent else "uniform"
        return {"tokens": max(self.tokens), "routing": routing, "exponent": self.exponent}


def drawn_mixtures(count: int, seed: int, ranks: int, most: int = MOST_TOKENS) -> list[Mixture]:
    rng = random.Random(seed)
    found = []
    for number in range(count):
        tokens, full = round(most ** rng.random()), rng.randrange(ranks)
        others = (tokens, rng.randint(0, tokens), 0)[number // 2 % 3]
        of_ranks = tuple(tokens if rank == full else others for rank in range(ranks))
        found.append(Mixture((DISPATCH, COMBINE)[number % 2], of_ranks, (0.0, ZIPF)[number // 6 % 2]))
    return found


def grids_of_mixtures(ranks: int, url: str) -> list[str]:
    fixed = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in EXPERTS.items())
    return [
        f"tune grid {name.replace('_', '-')} --tokens 1..{MOST_TOKENS} {fixed} {routing}--world-size {ranks} "
        f"--budget 5s --db {shlex.quote(url)}"
        for name in (DISPATCH, COMBINE)
        for routing in ("", f"--routing zipf --exponent {ZIPF} ")
    ]


def mixture_measured(measuring: outside.Outside, name: str, mixture: Mixture, toy: bool) -> float:
    """The least ratio of a mixture, its rows printed by the first rank."""
    regimes = ["graph", "pipelined"] if torch.cuda.is_available() else ["pipelined"]
    fields = {**(TOY_EXPERTS if toy else EXPERTS), **mixture.fields, "world_size": dist.get_world_size()}
    rows = list(measuring.rows(name, fields, mixture.workload, regimes, mixture.tokens))
    for row in rows if dist.get_rank() == 0 else ():
        gathered = min(time for way, time in row.ways.items() if way != "counted")
        counted = f"{row.ways['counted']:.1f}" if "counted" in row.ways else ""
        routing = f"zipf {mixture.exponent:g}" if mixture.exponent else "uniform"
        cells = [name, mixture.workload, ", ".join(map(str, mixture.tokens)), routing, row.regime, f"{gathered:.1f}",
                 counted, f"{row.ours:.1f}", row.ratio, row.source, row.config["mode"]]  # fmt: skip
        print(tables.row(cells), flush=True)
    return min(row.ratio.value for row in rows)


def main() -> None:
    parser = untuned.options(__doc__)
    parser.add_argument("--db", default="between.db", help="database of tuned configs; default: between.db")
    parser.add_argument("--count", type=whole, default=40, help="sizes; default: 40")
    parser.add_argument("--seed", type=whole, default=1)
    parser.add_argument("--mixtures", action="store_true", help="mixtures of experts in place of GEMMs")
    parser.add_argument("--grids", action="store_true", help="print the commands that tune, measure nothing")
    parser.add_argument("--exact", action="store_true", help="print the commands that tune at the sizes drawn")
    parser.add_argument("--world-size", type=whole, default=2, help="ranks, for --grids and --exact; default: 2")
    given = parser.parse_args()
    if given.exact:
        sizes = drawn(given.count, given.seed, given.world_size)
        print("\n".join(tuning("", each, given.world_size, given.db) for each in sizes))
        return
    if given.grids:
        print("\n".join((grids_of_mixtures if given.mixtures else grids)(given.world_size, given.db)))
        return
    outside.demand_gpus(parser, given.toy)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    name = "toy" if given.toy else f"drawn with seed {given.seed}"
    if given.mixtures:
        mixtures = drawn_mixtures(given.count, given.seed, ranks, 4 if given.toy else MOST_TOKENS)
        untuned.measure(given, name, mixtures, given.db, mixture_measured, HEADING)
        return
    untuned.measure(given, name, TINY if given.toy else drawn(given.count, given.seed, ranks), given.db)


if __name__ == "__main__":
    main()
