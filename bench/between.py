"""Our operators against plain torch at sizes that nobody tuned, in CUDA graphs, by outside.py's clock.

    torchrun --nproc-per-node 2 bench/between.py --models                   sizes of models, nothing tuned
    python bench/between.py --grids --world-size 2 --db between.db | sh     tunes: a grid for each product, 1 to 16384
    torchrun --nproc-per-node 2 bench/between.py --db between.db --seed 1   sizes between, drawn with a seed
    … --exact --seed 1 --count 12 --db exact.db | sh                        tunes at the very sizes, to compare with
    … --first-call --seed 13 --db first.db   problems of first_call.py and its winners; without its database, untuned
    … --mixtures                                                            mixtures of experts, 1 to 64 tokens a rank

Half of the sizes drawn are odd for each rank. Of mixtures a third of the draws has as many tokens on every rank, a
third any number from 0 on, and a third all tokens on one rank; every other round of these is routed by Zipf's law.
Plain torch's ways are those of outside_experts.py. A ratio is plain torch's time over ours, paired by rounds.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shlex
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import first_call
import outside
import tables
import torch
import torch.distributed as dist
from arguments import demand_gpus, new_parser, whole
from listed import AG, AR, COMBINE, DISPATCH, EXPERTS, GARN, RS, entry

import autotune
from autotune.model_runs.clock import TOY, Plan

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
    *((name, m, 5120, k) for name, m in ((AR, 128), (AR, 3000), (GARN, 128)) for k in (25600, 8192)),
)  # fmt: skip

PRODUCTS = (
    (AG, *GATHERS), (AG, 10240, 8192), (AG, 9216, 4096), (RS, *SCATTERS), (RS, 8192, 8192), (RS, 4096, 8192),
)  # fmt: skip
"""Workload, n and k of layers of Llama-8B, Llama-70B and Qwen3-235B, as totals over the ranks."""

TINY: Sequence[Sizes] = ((AG, 8, 64, 32), (RS, 12, 32, 64), (AR, 4, 32, 32))
MOST, MOST_TOKENS, ZIPF = 16384, 64, 1.2

HEADING = ["list", "workload", "m", "n", "k", "plain, µs", "ours, µs", "plain over ours", "source", "mode"]
OF_MIXTURES = ["list", "workload", "tokens of the ranks", "routing", "regime", "gathered, µs", "counted, µs",
               "ours, µs", "faster over ours", "source", "mode"]  # fmt: skip


def drawn(count: int, seed: int, ranks: int) -> list[Sizes]:
    """``count`` sizes of equal weight by their logarithm, shared out over the products in turn."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        rows = max(1, round(MOST ** rng.random() / ranks))
        odd = rows | 1 if number % 2 else max(2, rows & ~1)
        workload, n, k = PRODUCTS[number % len(PRODUCTS)]
        found.append((workload, ranks * odd, n, k))
    return found


@dataclass(frozen=True)
class Mixture:
    workload: str
    tokens: tuple[int, ...]
    exponent: float
    """Exponent of Zipf's law; 0: all experts are equally popular."""

    @property
    def fields(self) -> dict[str, Any]:
        routing = "zipf" if self.exponent else "uniform"
        return {"tokens": max(self.tokens), "routing": routing, "exponent": self.exponent}


def drawn_mixtures(count: int, seed: int, ranks: int, most: int) -> list[Mixture]:
    rng = random.Random(seed)
    found = []
    for number in range(count):
        tokens, full = round(most ** rng.random()), rng.randrange(ranks)
        others = (tokens, rng.randint(0, tokens), 0)[number // 2 % 3]
        of_ranks = tuple(tokens if rank == full else others for rank in range(ranks))
        found.append(Mixture((DISPATCH, COMBINE)[number % 2], of_ranks, (0.0, ZIPF)[number // 6 % 2]))
    return found


def commands(given: argparse.Namespace) -> list[str]:
    ranks, command = given.world_size, "" if given.exact else "grid "
    sizes: Sequence[tuple[Any, ...]] = [(name, f"{ranks}..{MOST}", n, k) for name, n, k in PRODUCTS]
    if given.exact:
        sizes = drawn(given.count, given.seed, ranks)
    words = [f"{name} --m {m} --n {n} --k {k} --dtype bf16 --b-order nk" for name, m, n, k in sizes]
    if given.mixtures:
        fixed = " ".join(f"--{name} {value}" for name, value in EXPERTS.items())
        words = [f"{name} --tokens 1..{MOST_TOKENS} {fixed}{routing}" for name in (DISPATCH, COMBINE)
                 for routing in ("", f" --routing zipf --exponent {ZIPF}")]  # fmt: skip
    end = f"--world-size {ranks} --budget 5s --db {shlex.quote(given.db)}"
    return [f"tune {command}{each.replace('_', '-')} {end}" for each in words]


def measured(measuring: outside.Outside, name: str, problem: Sizes, toy: bool) -> float:
    workload, m, n, k = problem
    shared = {"dtype": "fp32" if toy else "bf16", "b_order": "nk", "world_size": dist.get_world_size()}
    regime = "graph" if torch.cuda.is_available() else "pipelined"
    (row,) = measuring.rows(name, {"m": m, "n": n, "k": k, **shared}, workload, [regime])
    if dist.get_rank() == 0:
        cells = [name, workload, m, n, k, f"{row.plain:.1f}", f"{row.ours:.1f}", row.ratio, row.source]
        print(tables.row([*cells, row.config["mode"]]), flush=True)
    return row.ratio.value


def mixture_measured(measuring: outside.Outside, name: str, mixture: Mixture, toy: bool) -> float:
    regimes = ["graph", "pipelined"] if torch.cuda.is_available() else ["pipelined"]
    fields = {**entry("moe-dispatch").shared(toy), **mixture.fields, "world_size": dist.get_world_size()}
    rows = list(measuring.rows(name, fields, mixture.workload, regimes, mixture.tokens))
    for row in rows if dist.get_rank() == 0 else ():
        gathered = min(time for way, time in row.ways.items() if way != "counted")
        counted = f"{row.ways['counted']:.1f}" if "counted" in row.ways else ""
        routing = f"zipf {mixture.exponent:g}" if mixture.exponent else "uniform"
        cells = [name, mixture.workload, ", ".join(map(str, mixture.tokens)), routing, row.regime, f"{gathered:.1f}",
                 counted, f"{row.ours:.1f}", row.ratio, row.source, row.config["mode"]]  # fmt: skip
        print(tables.row(cells), flush=True)
    return min(row.ratio.value for row in rows)


Measured = Callable[[outside.Outside, str, Any, bool], float]
"""Prints a problem's row on the first rank, and returns its ratio."""


def measure(
    toy: bool, name: str, problems: Sequence[Any], url: str, measured: Measured, heading: Sequence[str]
) -> None:  # fmt: skip
    """A row of the table for each problem, then the worst ratio and the mean, printed by the first rank."""
    outside.start_ranks()
    try:
        with autotune.Context(outside.heap_bytes(toy), url=url) as context:
            measuring = outside.Outside(context, TOY if toy else Plan())
            if dist.get_rank() == 0:
                print(f"{dist.get_world_size()} ranks, {context.machine.device}\n")
                print(tables.head(heading, "ll" + " " * (len(heading) - 4) + "ll"))
            ratios = []
            for each in problems:
                ratios.append(measured(measuring, name, each, toy))
                gc.collect()  # the operands' memory, before the next problem's
                context.release()
            if dist.get_rank() == 0:
                mean, least = statistics.geometric_mean(ratios), min(ratios)
                print(f"\n{name}: {len(ratios)} problems, worst {least:.3f}, geometric mean {mean:.3f}\n")
    finally:
        dist.destroy_process_group()


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--db", default="between.db", help="database of tuned configs; default: between.db")
    parser.add_argument("--count", type=whole, default=40, help="sizes; default: 40")
    parser.add_argument("--seed", type=whole, default=1)
    parser.add_argument("--models", action="store_true", help="a list of models' sizes, without a database")
    parser.add_argument("--first-call", action="store_true", help="the problems that first_call.py draws")
    parser.add_argument("--mixtures", action="store_true", help="mixtures of experts in place of GEMMs")
    parser.add_argument("--grids", action="store_true", help="print the commands that tune, measure nothing")
    parser.add_argument("--exact", action="store_true", help="print the commands that tune at the sizes drawn")
    parser.add_argument("--world-size", type=whole, default=2, help="ranks, for --grids and --exact; default: 2")
    parser.add_argument("--toy", action="store_true", help="tiny problems, few calls: does it work at all?")
    given = parser.parse_args()
    if given.exact or given.grids:
        print("\n".join(commands(given)))
        return
    demand_gpus(parser, given.toy)
    ranks, toy = int(os.environ.get("WORLD_SIZE", "1")), given.toy
    name = "toy" if toy else "models" if given.models else f"drawn with seed {given.seed}"
    if given.mixtures:
        mixtures = drawn_mixtures(given.count, given.seed, ranks, 4 if toy else MOST_TOKENS)
        measure(toy, name, mixtures, given.db, mixture_measured, OF_MIXTURES)
        return
    problems = TINY if toy else MODELS if given.models else drawn(given.count, given.seed, ranks)
    if given.first_call and not toy:
        problems = [(name, *sizes.values()) for name, sizes in first_call.drawn(given.count, ranks, given.seed)]
    with tempfile.TemporaryDirectory() as folder:
        measure(toy, name, problems, f"{folder}/none.db" if given.models else given.db, measured, HEADING)


if __name__ == "__main__":
    main()
