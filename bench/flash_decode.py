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
from latencies import microseconds, speedup
from listed import HEADS
from tables import table
from winners import tune

from autotune.config import Config
from autotune.db import Store
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
    "table_reads": "in_step", "program_order": "tokens", "reducer": "kernel", "transfer_heads": 1, "combine_heads": 1,
    "wire": "rounded", "exchange": "one_shot", "combine_site": "next_launch", "protocol": "signal",
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
            configs = {"paper": Config(PAPER), **{name: bsp(row, name.split()[-1]) for name in row["baselines"]}}
            task = Task(problem, here)
            valid = {name: each for name, each in configs.items() if kind.space.violation(each, task) is None}
            latencies = {name: gang.evaluate(config, 1, BRIEFLY).latency for name, config in valid.items()}
            found.append({name: each.of(DEFAULT_REGIME) for name, each in latencies.items() if each is not None})
    return found


def bsp(row: dict[str, Any], launch: str) -> Config:
    names = {dimension.name for dimension in workload("flash_decode").space.dimensions_of("bsp")}
    kept = {name: value for name, value in row["config"].items() if name in names}
    return Config({**kept, "mode": "bsp", "launch": launch})


def point(found: dict[str, Any], beside: dict[str, float], database: str) -> dict[str, Any]:
    latency, baselines = found["latency"], microseconds(found)
    winner = baselines.pop("winner")
    modes = fastest_by_mode(database, found["study"])
    mode, paper = found["config"]["mode"], beside.get("paper")
    modes[mode] = winner  # as measured again in the finals
    modes["bsp"] = min([modes["bsp"], *(beside[name] for name in baselines if name in beside)])
    return {
        "problem": found["problem"],
        "config": found["config"],
        "mode": mode,
        "winner": winner,
        "spread": (latency["high"] - latency["low"]) / 2,
        "baselines": baselines,
        "over_bsp": speedup(found)["value"],
        "over_tuned_bsp": modes["bsp"] / winner,
        "modes": modes,
        "over_fused": modes["fused"] / winner if "fused" in modes else None,
        "over_paper": paper / winner if paper is not None else None,
        "paper": paper,
        "parts": {name: entry["median"] for name, entry in found["limits"].items()},
        "trials": found["trials"],
    }


def in_tenths(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds:.1f}"


def cells(found: dict[str, Any]) -> list[str]:
    return [
        str(found["problem"]["batch"]),
        f"{found['problem']['kv_len'] // 1024}K",
        f"{found['winner']:.1f} ± {found['spread']:.1f}",
        *(in_tenths(found["baselines"].get(name)) for name in ("bsp eager", "bsp graph")),
        f"{found['over_bsp']:.2f}",
        f"{found['modes']['bsp']:.1f}",
        in_tenths(found["modes"].get("fused")),
        f"{found['over_fused']:.2f}" if found["over_fused"] is not None else "",
        in_tenths(found["paper"]),
        in_tenths(found["parts"].get("attention")),
        found["mode"],
        str(found["trials"]),
    ]


def mode_map(points: list[dict[str, Any]]) -> str:
    modes = {(each["problem"]["batch"], each["problem"]["kv_len"]): each["mode"] for each in points}
    batches, lengths = (sorted({key[axis] for key in modes}) for axis in (0, 1))
    rows = [[batch, *(modes.get((batch, length), "") for length in lengths)] for batch in batches]
    return table(["batch", *(f"{length // 1024}K" for length in lengths)], rows, " " + "l" * len(lengths))


def means(points: list[dict[str, Any]]) -> str:
    """Geometric means over what each point was compared with."""
    names = {
        "over_bsp": "the faster baseline", "over_tuned_bsp": "tuned bsp", "over_paper": "the paper's config",
        "over_fused": "always-fused",
    }  # fmt: skip
    lines = []
    for name, shown in names.items():
        values: dict[bool, list[float]] = {True: [], False: []}
        for each in points:
            if each[name] is not None:
                values[each["problem"]["kv_len"] <= SHORT].append(each[name])
        every = values[True] + values[False]
        apart = [f"{statistics.geometric_mean(some):.2f}" if some else "" for some in values.values()]
        if every:
            lines.append([shown, f"**{statistics.geometric_mean(every):.2f}**", f"{min(every):.2f}", *apart])
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
