"""The paper's sweep of flash decode: tunes every length and batch, prints each winner against its baselines, and a map.

    python bench/flash_decode.py --world-size 8 --kv-len 8192,…,524288 --batch 1,4,8,16 --budget 60s --db sweep.db \
        --json sweep.json

Other options go to ``tune grid``. Measured beside: *tuned bsp*, the library's exchange with the winner's local kernel;
*paper*, the paper's own config (BLOCK_N 64, 32 splits, blocks of 16 heads, 4 warps, 2 stages, three kernels).
"""

from __future__ import annotations

import json
import math
import statistics
from contextlib import closing
from typing import Any

from arguments import new_parser, output_file
from latencies import WINNER, microseconds, speedup
from listed import HEADS
from tables import table
from winners import tune

from autotune.config import Config
from autotune.db import Store
from autotune.kernels.flash_decode.space import of_mode
from autotune.machine import machine
from autotune.outcome import DEFAULT_REGIME
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import workload

HEADING = [
    "batch", "KV per GPU", "winner, µs", "bsp eager, µs", "bsp graph, µs", "over the faster", "tuned bsp, µs",
    "best fused, µs", "over always-fused", "paper, µs", "attention alone, µs", "mode", "trials",
]  # fmt: skip

SHORT = 65536

BRIEFLY = MeasurePlan(screen=15, iterations=15)

PAPER = {
    "mode": "fused", "block_n": 64, "programs_per_head": 32, "heads_per_program": 8, "num_warps": 4, "num_stages": 2,
    "loads": "pipelined", "table_reads": "in_step", "program_order": "tokens", "reducer": "kernel", "transfer_heads": 1,
    "combine_heads": 1, "wire": "rounded", "exchange": "one_shot", "combine_site": "next_launch", "protocol": "signal",
}  # fmt: skip
"""Its 16 rows hold the 8 query heads of one KV head, as there. LSEs travel in fp32 here, and its 32 splits are those of
the whole batch.
"""


def fastest_by_mode(database: str, study: int) -> dict[str, float]:
    """Each mode's best median of all trials of a study, in µs."""
    best: dict[str, float] = {}
    with Store.open(database, create=False) as store:
        for trial in store.trials(study):
            latency, mode = trial.evaluation.latency, str(trial.config["mode"])
            if latency is not None:
                best[mode] = min(latency.of(DEFAULT_REGIME), best.get(mode, math.inf))
    return best


def others(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Further measurements of every row's problem, medians in µs by name; without those that cannot run there."""
    found = []
    kind, here = workload("flash_decode"), machine()
    problems = [kind.problem_type.from_dict(row["problem"]) for row in rows]
    gang = Gang(kind, Task(problems[0], here), max(kind.heap_bytes(problem) for problem in problems))
    with closing(gang):
        for problem, row in zip(problems, rows, strict=True):
            gang.turn_to(kind, problem)
            gang.start()
            ways = {name: of_mode("bsp", Config(row["config"]), name.split()[-1]) for name in row["baselines"]}
            configs = {"paper": Config(PAPER), **ways}
            task = Task(problem, here)
            valid = {name: each for name, each in configs.items() if kind.space.violation(each, task) is None}
            latencies = {name: gang.evaluate(config, 1, BRIEFLY).latency for name, config in valid.items()}
            found.append({name: each.of(DEFAULT_REGIME) for name, each in latencies.items() if each is not None})
    return found


def point(row: dict[str, Any], beside: dict[str, float], database: str) -> dict[str, Any]:
    """A row of ``tune grid`` with each mode's fastest config, µs, and the paper's."""
    modes, taken = fastest_by_mode(database, row["study"]), microseconds(row)
    modes[row["config"]["mode"]] = taken[WINNER]  # as measured again in the finals
    modes["bsp"] = min([modes["bsp"], *(time for name, time in beside.items() if name in row["baselines"])])
    return {**row, "modes": modes, "paper": beside.get("paper")}


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """Each time beside the winner's over it, by its name in the table of means."""
    modes = row["modes"]
    times = {"tuned bsp": modes["bsp"], "the paper's config": row["paper"], "always-fused": modes.get("fused")}
    found = {name: time / microseconds(row)[WINNER] for name, time in times.items() if time is not None}
    return {"the faster baseline": speedup(row)["value"], **found}


def cells(row: dict[str, Any]) -> list[str]:
    problem, latency, taken, over, modes = row["problem"], row["latency"], microseconds(row), ratios(row), row["modes"]

    def tenths(time: float | None) -> str:
        return "" if time is None else f"{time:.1f}"

    return [
        str(problem["batch"]), f"{problem['kv_len'] // 1024}K",
        f"{taken[WINNER]:.1f} ± {(latency['high'] - latency['low']) / 2:.1f}",
        *(tenths(taken.get(name)) for name in ("bsp eager", "bsp graph")), f"{over['the faster baseline']:.2f}",
        tenths(modes["bsp"]), tenths(modes.get("fused")),
        f"{over['always-fused']:.2f}" if "always-fused" in over else "", tenths(row["paper"]),
        tenths(row["limits"].get("attention", {}).get("median")), row["config"]["mode"], str(row["trials"]),
    ]  # fmt: skip


def mode_map(points: list[dict[str, Any]]) -> str:
    modes = {(each["problem"]["batch"], each["problem"]["kv_len"]): each["config"]["mode"] for each in points}
    batches, lengths = (sorted({key[axis] for key in modes}) for axis in (0, 1))
    rows = [[batch, *(modes.get((batch, length), "") for length in lengths)] for batch in batches]
    return table(["batch", *(f"{length // 1024}K" for length in lengths)], rows, " " + "l" * len(lengths))


def means(points: list[dict[str, Any]]) -> str:
    """Geometric means over what each point was compared with."""
    lines = []
    for name in ("the faster baseline", "tuned bsp", "the paper's config", "always-fused"):
        values: dict[bool, list[float]] = {True: [], False: []}
        for each in points:
            if (over := ratios(each).get(name)) is not None:
                values[each["problem"]["kv_len"] <= SHORT].append(over)
        every = values[True] + values[False]
        apart = [f"{statistics.geometric_mean(some):.2f}" if some else "" for some in values.values()]
        if every:
            lines.append([name, f"**{statistics.geometric_mean(every):.2f}**", f"{min(every):.2f}", *apart])
    return table(["over", "geometric mean", "least", "up to 64K", "beyond"], lines, "l")


def document(points: list[dict[str, Any]]) -> str:
    every = table(HEADING, map(cells, points), " " * 11 + "l")
    return f"{every}\n\n{means(points)}\n\nWhich mode won:\n\n{mode_map(points)}"


def main() -> None:
    parser = new_parser(__doc__, allow_abbrev=False)
    lengths = ",".join(str(8192 << doubled) for doubled in range(7))
    for name, default in {"batch": "1,4,8,16", "kv_len": lengths, "page_size": 1, **HEADS, "world_size": 8}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=f"default: {default}")
    parser.add_argument("--db", required=True)
    parser.add_argument("--json", type=output_file, help="file for all numbers")
    options, rest = parser.parse_known_args()
    given = [f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items() if name != "json"]
    arguments = ["flash-decode", *given, *rest]
    rows = [each for each in tune(arguments) if each["latency"] is not None]
    points = [point(each, beside, options.db) for each, beside in zip(rows, others(rows), strict=True)]
    if options.json:
        options.json.write_text(json.dumps(points, indent=1))
    print(document(points))


if __name__ == "__main__":
    main()
