"""The same problem tuned with several seeds, each from an empty database; then all winners measured together.

    python bench/repeatability.py --world-size 2 --seconds 12 --folder repeatability

What a search claims of its winner is of its own minutes and clocks; measured together, in turns in one process, the
winners show their true latencies. *Spread* is the largest of these over the smallest, less 1. Searches that the folder
has the databases of are not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from arguments import need_gpu, new_parser, output_file, whole
from latencies import microseconds, speedup
from listed import REPEATED, Sizes
from tables import table
from winners import told

from autotune.config import Config
from autotune.machine import machine
from autotune.model_runs.clock import Ratio
from autotune.outcome import DEFAULT_REGIME
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import workload as named

SEEDS = 5

ROUNDS = 8

WARM_UP, MEASURED, MOST = 60e3, 150e3, 400
"""Microseconds that a config runs before it is measured and for which it is, and calls at most for either."""

AIMS = {12: 0.02, 30: 0.01}
"""Largest spread of the true latencies, by seconds of search."""

HEADING = ["seed", "claimed, µs", "true, µs", "claimed speedup", "true speedup", "mode", "trials"]


def tuned(sizes: Sizes, fields: dict[str, Any], seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """The result of a search with this seed, from a database of its own."""
    effort = ["--trials=2", "--effort=quick"] if given.toy else [f"--budget={given.seconds}s"]
    database = given.folder / f"{sizes.name}-{given.seconds}s-{seed}.db"
    found: dict[str, Any] = told([*sizes.command(fields), *effort, f"--seed={seed}", f"--db={database}"])
    return found


def together(workload: str, problem: dict[str, Any], configs: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Each config's and each baseline's latency in every round, µs, by one gang of ranks."""
    found, here = named(workload), machine()
    of = found.problem_type.from_dict(problem)
    baselines = found.baselines(Task(of, here))
    entrants = list(dict.fromkeys([*baselines.values(), *map(Config, configs)]))
    times: dict[Config, list[float]] = {config: [] for config in entrants}

    def measured(config: Config, seed: int, plan: MeasurePlan) -> float:
        evaluation = gang.evaluate(config, seed, plan)
        if evaluation.latency is None:
            raise SystemExit(f"{of}: {config}: {evaluation.outcome}: {evaluation.reason}")
        return evaluation.latency.of(DEFAULT_REGIME)

    with Gang(found, Task(of, here)) as gang:
        plans = {}
        for config in entrants:
            took = measured(config, 0, MeasurePlan())
            most = MOST if not here.is_interpreter else 2
            count = min(most, round(MEASURED / took) + 2)
            plans[config] = MeasurePlan(min(most, round(WARM_UP / took) + 1), count, count)
        for number in range(rounds):
            for config in entrants if number % 2 == 0 else reversed(entrants):
                times[config].append(measured(config, number, plans[config]))
    return {
        "winners": [times[Config(config)] for config in configs],
        "baselines": {name: times[config] for name, config in baselines.items()},
    }


def summary(name: str, fields: dict[str, Any], seconds: int, tuned: list[dict[str, Any]], true: Any) -> dict[str, Any]:
    fastest = min(true["baselines"].values(), key=statistics.median)
    medians = [statistics.median(times) for times in true["winners"]]
    rows = [
        {
            "seed": seed, "claimed": microseconds(entry)["winner"], "true": median,
            "claimed_speedup": speedup(entry)["value"],
            "true_speedup": vars(Ratio.of_rounds(fastest, times)), "mode": entry["config"]["mode"],
            "config": entry["config"], "trials": entry["trials"],
        }
        for seed, (entry, median, times) in enumerate(zip(tuned, medians, true["winners"], strict=True))
    ]  # fmt: skip
    told = {"name": name, "problem": fields, "seconds": seconds, "rows": rows}
    return {**told, "spread": max(medians) / min(medians) - 1, "aim": AIMS.get(seconds)}


def summed_up(found: dict[str, Any]) -> str:
    problem = " ".join(f"{name}={value}" for name, value in found["problem"].items())
    rows = [
        [row["seed"], f"{row['claimed']:.1f}", f"{row['true']:.1f}", f"{row['claimed_speedup']:.3f}",
         f"{row['true_speedup']['value']:.3f} ± {row['true_speedup']['error']:.3f}", row["mode"], row["trials"]]
        for row in found["rows"]
    ]  # fmt: skip
    aim = f", aimed at: {found['aim']:.0%}" if found["aim"] is not None else ""
    spread = f"Spread of the true latencies: {found['spread']:.1%}{aim}.".replace("%", " %")
    title = f"{found['name']} ({problem}), {found['seconds']} s of search:"
    return "\n\n".join([title, table(HEADING, rows, "     l"), spread])


def repeated(sizes: Sizes, given: argparse.Namespace) -> dict[str, Any]:
    (fields,) = sizes.problems(given.world_size, given.toy)
    found = [tuned(sizes, fields, seed, given) for seed in range(given.seeds)]
    rounds = 2 if given.toy else ROUNDS
    true = together(sizes.workload, fields, [each["config"] for each in found], rounds)
    return summary(sizes.name, fields, given.seconds, found, true)


def arguments() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--world-size", type=whole, default=2)
    parser.add_argument("--seconds", type=whole, default=12, help="of each search")
    parser.add_argument("--seeds", type=whole, default=SEEDS)
    parser.add_argument("--only", choices=[each.name for each in REPEATED], action="append", help="default: all")
    parser.add_argument("--folder", type=Path, default=Path("repeatability"), help="of the databases")
    parser.add_argument("--json", type=output_file, help="write the summaries there too")
    parser.add_argument("--toy", action="store_true", help="tiny problems and two trials: does it work at all?")
    given = parser.parse_args()
    if not given.toy:
        need_gpu(parser, instead="; --toy runs tiny problems")
    return given


def main() -> None:
    given, found = arguments(), []
    given.folder.mkdir(parents=True, exist_ok=True)
    for sizes in (each for each in REPEATED if given.only is None or each.name in given.only):
        found.append(repeated(sizes, given))
        print(f"{summed_up(found[-1])}\n", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
