"""Replays recorded search spaces and says how near each strategy comes to the optimum: no GPU needed.

    python bench/search_quality.py bench/recordings/*.json.gz --seeds 50 --plot quality.svg
    python bench/search_quality.py bench/recordings/foreign/*.json.gz --seeds 50

Tables come from ``tune record``, those of foreign kernels from a script of commit 39ef14a0. The plot needs matplotlib.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
import tables
from arguments import new_parser, output_file, whole, wholes
from search_strategies import SEQUENTIAL, STRATEGIES, Table

from autotune.errors import InputError

TRIALS = (10, 25, 50, 100, 200)
JOINT = "ours"
PAIRS = ((JOINT, SEQUENTIAL), ("ours, told nothing", "ours, told nothing, one at a time"))
RESAMPLES = 10_000


@dataclass(frozen=True)
class Score:
    """% of the optimum that one strategy reached on one table, over the seeds."""

    mean: float
    worst_decile: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> Score:
        worst = sorted(shares)[: max(1, round(len(shares) / 10))]
        return cls(100 * statistics.mean(shares), 100 * statistics.mean(worst))

    def __str__(self) -> str:
        return f"{self.mean:.1f} / {self.worst_decile:.1f}"


def run(job: tuple[Path, str, Sequence[int], int]) -> list[float]:
    """Optimum over the best latency of so many trials: shares of the optimum, 0 where nothing was found."""
    file, name, trials, seed = job
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table = opened(file)
    found = STRATEGIES[name](table, max(trials), seed)
    return [table.recording.optimum / min(found[:n], default=math.inf) for n in trials]


opened = functools.cache(Table.open)
"""Each process reads a table once."""


def shares(
    files: Sequence[Path], names: Sequence[str], trials: Sequence[int], seeds: int, workers: int
) -> dict[tuple[Path, str, int], list[float]]:
    """Shares of the optimum by seed, per table, strategy and number of trials."""
    runs = {name: [(n,) for n in trials] if name == SEQUENTIAL else [tuple(trials)] for name in names}
    jobs = [(f, name, ns, seed) for f in files for name in names for ns in runs[name] for seed in range(seeds)]
    if workers == 1:
        found = [run(job) for job in jobs]
    else:
        with ProcessPoolExecutor(workers) as pool:
            found = list(pool.map(run, jobs, chunksize=4))
    result: dict[tuple[Path, str, int], list[float]] = {}
    for (file, name, ns, _), each in zip(jobs, found, strict=True):
        for n, share in zip(ns, each, strict=True):
            result.setdefault((file, name, n), []).append(share)
    return result


def advantage(joint: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Mean over paired seeds of how much faster the joint search's config is, in %, and its 95 % bootstrap interval."""
    gains = 100 * (np.array(joint) / np.maximum(other, 1e-9) - 1)
    means = np.random.default_rng(0).choice(gains, (RESAMPLES, len(gains))).mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(gains.mean()), float(low), float(high)


def report(
    files: Sequence[Path], names: Sequence[str], trials: Sequence[int], found: dict[tuple[Path, str, int], list[float]]
) -> str:
    """Markdown: what was replayed, the mean over the tables, each table, joint against sequential."""
    text = [
        tables.table(["table", "origin", "configs", "failing", "optimum"], [described(opened(f)) for f in files], "l")
    ]
    header = ["strategy", *(f"{n} trials" for n in trials)]
    text.append("% of the optimum, mean / worst decile of the seeds, each meaned over the tables:")
    rows = []
    for name in names:
        scores = [[Score.of(found[f, name, n]) for f in files] for n in trials]
        means = [Score(statistics.mean(s.mean for s in each), statistics.mean(s.worst_decile for s in each))
                 for each in scores]  # fmt: skip
        rows.append([name, *map(str, means)])
    text.append(tables.table(header, rows, "l"))
    if len(files) > 1:
        for f in files:
            rows = [[name, *(str(Score.of(found[f, name, n])) for n in trials)] for name in names]
            text += [f"### {opened(f).name}", tables.table(header, rows, "l")]
    groups = [(opened(f).name, [f]) for f in files] + [("all", list(files))] * (len(files) > 1)
    for one, other in PAIRS:
        if {one, other} <= set(names):
            text.append(f"How much faster the config of *{one}* is than that of *{other}*:")
            text.append(advantages(groups, (one, other), trials, found))
    return "\n\n".join(text)


def advantages(
    groups: Sequence[tuple[str, Sequence[Path]]], pair: tuple[str, str], trials: Sequence[int],
    found: dict[tuple[Path, str, int], list[float]],
) -> str:  # fmt: skip
    """A row for each group of tables: how much faster one strategy's config is than the other's, paired by seed."""
    rows = []
    for name, files in groups:
        gains = [advantage(*([s for f in files for s in found[f, way, n]] for way in pair)) for n in trials]
        rows.append([name, *(f"{mean:+.1f} % ({low:+.1f} to {high:+.1f})" for mean, low, high in gains)])
    return tables.table(["table", *(f"{n} trials" for n in trials)], rows, "l")


def described(table: Table) -> list[str]:
    evaluations = table.recording.evaluations.values()
    failing = sum(evaluation.latency is None for evaluation in evaluations)
    gpus = table.problem.world_size if table.workload is not None else 1
    return [
        table.name, f"{table.recording.origin}, {gpus} × {table.machine.device}",
        str(len(evaluations)), str(failing), f"{table.recording.optimum:.1f} µs",
    ]  # fmt: skip


def plot(
    target: Path, names: Sequence[str], trials: Sequence[int], files: Sequence[Path],
    found: dict[tuple[Path, str, int], list[float]],
) -> None:  # fmt: skip
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in names:
        means = [100 * statistics.mean(share for f in files for share in found[f, name, n]) for n in trials]
        axes.plot(trials, means, marker="o", label=name)
    axes.set(xscale="log", xlabel="trials", ylabel="% of the optimum", xticks=trials, xticklabels=map(str, trials))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(target)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--seeds", type=whole, default=50)
    parser.add_argument("--trials", type=wholes, default=",".join(map(str, TRIALS)), help="comma-separated")
    parser.add_argument("--only", help="names of strategies, separated by ;")
    parser.add_argument("--workers", type=whole, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--plot", type=output_file, help="an image file")
    arguments = parser.parse_args()
    trials = arguments.trials
    names = list(STRATEGIES)
    if arguments.only:
        asked = [word.strip() for word in arguments.only.split(";")]
        if unknown := [word for word in asked if word not in names]:
            parser.error(f"--only: no strategy {'; '.join(map(repr, unknown))}; there are {'; '.join(names)}")
        names = [name for name in names if name in asked]
    try:
        tables = [opened(file) for file in arguments.tables]
    except InputError as error:
        parser.error(str(error))
    if any(table.workload is None for table in tables):
        print(f"A foreign kernel has no cost model and no default: no {JOINT!r}, no {SEQUENTIAL!r}", file=sys.stderr)
        names = [name for name in names if name not in (JOINT, SEQUENTIAL)]
    found = shares(arguments.tables, names, trials, arguments.seeds, arguments.workers)
    print(report(arguments.tables, names, trials, found))
    if arguments.plot is not None:
        if importlib.util.find_spec("matplotlib") is None:
            print("matplotlib is not installed: no plot", file=sys.stderr)
        else:
            plot(arguments.plot, names, trials, arguments.tables, found)


if __name__ == "__main__":
    main()
