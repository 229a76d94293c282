"""The paper's sweep of flash decode: tunes every length and batch, prints each winner against its baselines, and a map.

    python bench/flash_decode.py --world-size 8 --kv-len 8192,…,524288 --batch 1,4,8,16 --budget 60s --db sweep.db \
        --json sweep.json

Every row is one run of ``tune``; a row that is in the database already is answered from it. ``paper`` is the paper's
own config (BLOCK_N 64, 32 splits, blocks of 16 heads, 4 warps, 2 stages, three kernels), measured beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from autotune.db import Store

HEADER = (
    "| batch | KV per GPU | winner, µs | bsp eager, µs | bsp graph, µs | over the faster | best bsp, µs "
    "| best fused, µs | over always-fused | paper, µs | attention alone, µs | mode | configs measured |"
)

PAPER = {
    "mode": "fused", "block_n": 64, "kv_splits": 32, "heads_per_program": 8, "num_warps": 4, "num_stages": 2,
    "table_reads": "in_step", "program_order": "splits", "reducer": "kernel", "flag_heads": 1, "combine_heads": 1,
    "wire": "rounded", "combiner": "every_rank", "combine_site": "next_launch", "protocol": "flags",
}  # fmt: skip
"""Its 16 rows hold the 8 query heads of one KV head, as there. LSEs travel in fp32 here."""


def tune(arguments: list[str], check: bool = True) -> dict[str, Any]:
    """Run ``tune`` and return its JSON; its progress goes to stderr. ``check``: raises CalledProcessError."""
    command = [sys.executable, "-m", "autotune.cli", "flash-decode", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=check, stdout=subprocess.PIPE, text=True).stdout)


def fastest_by_mode(database: str, study: int) -> dict[str, float]:
    """Each mode's best median of all trials of a study, in µs."""
    best: dict[str, float] = {}
    with Store.open(database, create=False) as store:
        for trial in store.trials(study):
            latency, mode = trial.evaluation.latency, str(trial.config["mode"])
            if latency is not None:
                best[mode] = min(latency.median, best.get(mode, latency.median))
    return best


def point(problem: list[str], same: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Tune one problem; its numbers by name."""
    found = tune([*problem, *same, f"--budget={options.budget}", f"--db={options.db}"])
    paper = tune([*problem, *same, f"--config={json.dumps(PAPER)}"], check=False)
    latency = found["latency"]
    times = {name: entry["median"] for name, entry in found["baselines"].items()}
    modes = fastest_by_mode(options.db, found["study"])
    mode = found["config"]["mode"]
    modes[mode] = latency["median"]  # as measured again in the finals
    return {
        "problem": found["problem"],
        "config": found["config"],
        "mode": mode,
        "winner": latency["median"],
        "spread": (latency["high"] - latency["low"]) / 2,
        "baselines": times,
        "over_bsp": min(times.values()) / latency["median"],
        "modes": modes,
        "over_fused": modes["fused"] / latency["median"],
        "paper": paper["latency"]["median"] if paper["latency"] else None,
        "parts": {name: entry["median"] for name, entry in found["limits"].items()},
        "measured": found["outcomes"].get("measured", 0),
    }


def row(found: dict[str, Any]) -> str:
    """One line of the table."""
    cells = [
        str(found["problem"]["batch"]),
        f"{found['problem']['kv_len'] // 1024}K",
        f"{found['winner']:.1f} ± {found['spread']:.1f}",
        *(
            f"{found['baselines'][name]:.1f}" if name in found["baselines"] else ""
            for name in ("bsp eager", "bsp graph")
        ),
        f"{found['over_bsp']:.2f}",
        *(f"{found['modes'][mode]:.1f}" for mode in ("bsp", "fused")),
        f"{found['over_fused']:.2f}",
        f"{found['paper']:.1f}" if found["paper"] else "",
        f"{found['parts'].get('attention', float('nan')):.1f}",
        found["mode"],
        str(found["measured"]),
    ]
    return "| " + " | ".join(cells) + " |"


def mode_map(points: list[dict[str, Any]]) -> str:
    """Which mode wins where: a line for each batch, a column for each length."""
    modes = {(each["problem"]["batch"], each["problem"]["kv_len"]): each["mode"] for each in points}
    batches, lengths = (sorted({key[axis] for key in modes}) for axis in (0, 1))
    lines = ["| batch | " + " | ".join(f"{length // 1024}K" for length in lengths) + " |"]
    lines.append("|---:|" + "---|" * len(lengths))
    for batch in batches:
        lines.append(f"| {batch} | " + " | ".join(modes.get((batch, length), "") for length in lengths) + " |")
    return "\n".join(lines)


def main() -> None:
    """Tune every point, print the table, the geometric means and the map; write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", default="1,4,8,16", help="sequences, separated by commas")
    parser.add_argument("--kv-len", default="8192,16384,32768,65536,131072,262144,524288", help="tokens on each GPU")
    parser.add_argument("--page-size", default="1")
    parser.add_argument("--world-size", default="8")
    parser.add_argument("--budget", default="60s", help="for each point")
    parser.add_argument("--db", required=True)
    parser.add_argument("--json", type=Path, help="file for all numbers")
    options = parser.parse_args()
    same = ["--q-heads=96", "--kv-heads=12", "--head-dim=128", "--dtype=fp16"]
    same += [f"--page-size={options.page_size}", f"--world-size={options.world_size}"]
    points: list[dict[str, Any]] = []
    print(HEADER, "|" + "---:|" * 11 + "---|---:|", sep="\n", flush=True)
    for batch in options.batch.split(","):
        for kv_len in options.kv_len.split(","):
            points.append(point([f"--batch={batch}", f"--kv-len={kv_len}"], same, options))
            print(row(points[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(points, indent=1))
    for name in ("over_bsp", "over_fused"):
        print(f"\n{name}, geometric mean: {statistics.geometric_mean(each[name] for each in points):.3f}")
    print(f"\n{mode_map(points)}")


if __name__ == "__main__":
    main()
