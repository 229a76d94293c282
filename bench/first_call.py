"""Untuned configs at problems that nobody measured: against the library, and against what a search finds, how soon.

    python bench/first_call.py --db first.db                 forty problems of served models, 12 s of search each
    python bench/first_call.py --toy                         tiny problems: does it work at all?

Problems are drawn: a layer of one of twelve models, and a number of tokens, half of them odd for each rank. The finals
measure the untuned config, the winner and the library's ways in turns; the faster of these counts. *Trials* are those
until the search was within 2 % of its end.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from arguments import need_gpu, new_parser, whole
from tables import head, row

from autotune.cli import session
from autotune.db import Store
from autotune.outcome import Regime
from autotune.task import Task
from autotune.tuning import EFFORTS, Budget, tune
from autotune.tuning.finals import in_finals, of_search
from autotune.workloads import workload as named

NEAR = 1.02

AG, RS, AR, GARN = "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_reduce_norm"
TURNS = (AG, RS, AG, AR, AG, RS, AG, RS, AR, GARN)

MODELS = {
    "Llama 3.2 3B": (3072, 8192, 5120), "Phi 4": (5120, 17920, 7680), "Mistral Nemo": (5120, 14336, 6144),
    "Qwen2.5 72B": (8192, 29568, 10240), "Yi 34B": (7168, 20480, 9216), "Command R": (8192, 22528, 24576),
    "Gemma 2 27B": (4608, 36864, 8192), "GLM 4 9B": (4096, 13696, 4608), "OLMo 2 32B": (5120, 27648, 7168),
    "Granite 34B": (6144, 24576, 6400), "DBRX": (6144, 10752, 8192), "Llama 3.1 405B": (16384, 53248, 18432),
}  # fmt: skip
"""Hidden size, that of the MLP, and columns of q, k and v together."""

TOYS = [(AG, {"m": 8, "n": 64, "k": 32}), (RS, {"m": 12, "n": 32, "k": 64}), (AR, {"m": 3, "n": 32, "k": 32})]


def drawn(count: int, ranks: int, seed: int) -> list[tuple[str, dict[str, int]]]:
    rng, problems = random.Random(seed), []
    for number in range(count):
        hidden, mlp, qkv = rng.choice(list(MODELS.values()))
        workload = TURNS[number % len(TURNS)]
        if workload == AG:
            n, k = rng.choice([2 * mlp, qkv]), hidden
        else:
            n, k = hidden, rng.choice([mlp, hidden])
        rows = round(2 ** rng.uniform(0, 12))
        m = rows | 1 if rng.random() < 0.5 else 2 ** rows.bit_length()
        problems.append((workload, {"m": m * ranks if workload in (AG, RS) else m, "n": n, "k": k}))
    return problems


def trials_until_near(history: Sequence[Any], regime: Any) -> int:
    """Trials of the search until it was near its end, without baselines."""
    tried = [each.evaluation.latency for each in of_search(history) if each.source != "baseline"]
    values = [each.of(regime) if each is not None else float("inf") for each in tried]
    return next(place for place, value in enumerate(values, 1) if value <= NEAR * min(values))


def measured(store: Any, entry: Any, task: Any, workload: Any) -> dict[str, Any]:
    """A finished study's figures; NaN for an untuned config that failed."""
    history, regime = store.trials(entry.study_id), Regime(entry.key.regime)
    final = {config: latency.of(regime) for config, latency in in_finals(history).items()}
    untuned, best = final.get(workload.default_config(task), math.nan), final[entry.winner.config]
    library = min(final[config] for config in workload.baselines(task).values() if config in final)
    return {
        "untuned": untuned, "over_library": library / untuned, "winner": best / untuned,
        "trials": trials_until_near(history, regime), "config": str(entry.winner.config),
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--world-size", type=whole, default=2)
    parser.add_argument("--count", type=whole, default=40)
    parser.add_argument("--seed", type=whole, default=1)
    parser.add_argument("--budget", default="12s", help="of each search")
    parser.add_argument("--db", type=Path, help="database; default: one that is thrown away")
    parser.add_argument("--toy", action="store_true", help="tiny problems: does it work at all?")
    given = parser.parse_args()
    if not given.toy:
        need_gpu(parser, instead="; --toy runs tiny problems")
    return given


def figures(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    machine = session.machine_to_measure_on()
    session.check_ranks(given.world_size, machine)
    problems = TOYS if given.toy else drawn(given.count, given.world_size, given.seed)
    fields = {"dtype": "fp32"} if given.toy else {"dtype": "bf16", "b_order": "nk"}
    made = [
        (named(name), Task(named(name).problem_type(**sizes, **fields, world_size=given.world_size), machine))
        for name, sizes in problems
    ]
    effort = EFFORTS["quick" if given.toy else "standard"]
    budget = Budget(2) if given.toy else Budget.of(effort, None, given.budget)
    regime = Regime.PIPELINED if given.toy else Regime.GRAPH
    with (
        tempfile.TemporaryDirectory() as folder, Store.open(str(given.db or Path(folder, "first.db"))) as store,
        session.make_screen(*made[0]) as screen,
        closing(session.make_gang(*made[0], max(found.heap_bytes(task.problem) for found, task in made))) as gang,
    ):  # fmt: skip
        for workload, task in made:
            gang.turn_to(workload, task.problem)
            screen.turn_to(workload, task.problem)
            result = tune(workload, task, store, gang, screen, budget=budget, effort=effort, regime=regime, trace=False)
            if result.entry is None:
                raise SystemExit(f"{workload.name} {task.problem}: no config could be measured")
            problem = task.problem
            sizes = {"workload": workload.name, "m": problem.m, "n": problem.n, "k": problem.k}
            yield {**sizes, **measured(store, result.entry, task, workload)}


def main() -> None:
    given, found = arguments(), []
    print(head(["workload", "m", "n", "k", "untuned, µs", "untuned over library", "winner over untuned", "trials",
                "winner"], "l       l"))  # fmt: skip
    for each in figures(given):
        found.append(each)
        shares = [f"{each[name]:.3f}" for name in ("over_library", "winner")]
        cells = [each["workload"], each["m"], each["n"], each["k"], f"{each['untuned']:.1f}", *shares]
        print(row([*cells, each["trials"], each["config"]]), flush=True)
    over, winner, trials = ([each[name] for each in found] for name in ("over_library", "winner", "trials"))
    means = [f"{statistics.geometric_mean(each):.3f}" for each in (over, winner)]
    print(f"\nuntuned over library: least {min(over):.3f}, geometric mean {means[0]}; winner over untuned: {means[1]}; "
          f"trials: median {statistics.median(trials)}")  # fmt: skip


if __name__ == "__main__":
    main()
