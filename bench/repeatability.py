"""The same problem tuned with several seeds, each from an empty database; then all winners measured together.

    python bench/repeatability.py --world-size 2 --seconds 12 --folder repeatability

What a search claims of its winner is of its own minutes and clocks; measured together, in turns in one process, the
winners show their true latencies. *Spread* is the largest of these over the smallest, less 1. The same command again
continues.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arguments import new_parser, output_file, positive, whole
from latencies import microseconds, speedup
from listed import REPEATED, Sizes
from steps import FOLDER, JSON, Folder, Step, here, run_all, run_to_end
from tables import table

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


def tuning(sizes: Sizes, fields: dict[str, Any], seed: int, seconds: int, toy: bool) -> Step:
    name = f"{sizes.name}-{seconds}s-{seed}"
    effort = ["--trials=2", "--effort=quick"] if toy else [f"--budget={seconds}s"]
    words = ["-m", "autotune.cli", *sizes.command(fields), *effort, f"--seed={seed}"]
    return Step(name, (*words, f"--db={FOLDER}/{name}.db", "--json"), seconds + 60)


def comparison(sizes: Sizes, fields: dict[str, Any], seconds: int, configs: Sequence[Any], toy: bool) -> Step:
    asked = {"workload": sizes.workload, "problem": fields, "configs": configs, "rounds": 2 if toy else ROUNDS}
    words = ("bench/repeatability.py", "--together", json.dumps(asked), "--json", JSON)
    return Step(f"{sizes.name}-{seconds}s-together", words, 120)


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


def repeated(
    sizes: Sizes, folder: Folder, options: argparse.Namespace, deadline: float
) -> tuple[dict[str, Any] | None, list[str]]:
    """One problem's summary, None where it is not done; and what failed or is left."""
    (fields,) = sizes.problems(options.world_size, options.toy)
    searches = [tuning(sizes, fields, seed, options.seconds, options.toy) for seed in range(options.seeds)]
    if left := run_all(folder, searches, deadline):
        return None, left
    tuned = [json.loads(stored["found"]) for step in searches if (stored := folder.found(step)) is not None]
    step = comparison(sizes, fields, options.seconds, [entry["config"] for entry in tuned], options.toy)
    if left := run_all(folder, [step], deadline):
        return None, left
    stored = folder.found(step)
    assert stored is not None
    return summary(sizes.name, fields, options.seconds, tuned, stored["found"]), []


def arguments() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--world-size", type=whole, default=2)
    parser.add_argument("--seconds", type=whole, default=12, help="of each search")
    parser.add_argument("--seeds", type=whole, default=SEEDS)
    parser.add_argument("--only", choices=[each.name for each in REPEATED], action="append", help="default: all")
    parser.add_argument("--folder", type=Path, default=Path("repeatability"), help="what is done so far")
    parser.add_argument("--minutes", type=positive, default=math.inf, help="stop before a step that would end later")
    parser.add_argument("--json", type=output_file, help="write the summaries there too")
    parser.add_argument("--toy", action="store_true", help="tiny problems and two trials: does it work at all?")
    parser.add_argument("--together", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options, begin = arguments(), time.monotonic()
    if options.together:
        options.json.write_text(json.dumps(together(**json.loads(options.together))))
        return
    place = here()
    if place["machine"]["kind"] == "interpreter" and not options.toy:
        sys.exit("no GPU found; --toy runs tiny problems under Triton's interpreter, whose times say nothing")
    folder, found = Folder(options.folder, place), []
    chosen = [sizes for sizes in REPEATED if options.only is None or sizes.name in options.only]
    for sizes in chosen:
        result, left = repeated(sizes, folder, options, begin + 60 * options.minutes)
        if result is None:
            sys.exit("\n".join([*left, "the same command again continues"]))
        found.append(result)
        print(f"{summed_up(result)}\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run_to_end(main)
