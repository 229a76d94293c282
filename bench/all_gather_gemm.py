"""The README's table: tunes all-gather + GEMM for several M and prints each winner against its baselines and the limit.

    python bench/all_gather_gemm.py --world-size 4 --m 16,64,256,1024,4096,8192 --budget 70s --db table.db

Every row is one run of ``tune``; a row that is in the database already is answered from it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

HEADER = (
    "| M | winner, µs | bsp eager, µs | bsp graph, µs | over the faster | all-gather alone, µs | GEMM alone, µs "
    "| share of the limit | mode | configs measured |"
)


def tune(arguments: list[str]) -> dict[str, Any]:
    """Run ``tune`` and return its JSON; its progress goes to stderr. Raises CalledProcessError."""
    command = [sys.executable, "-m", "autotune.cli", "all-gather-gemm", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def row(m: int, found: dict[str, Any]) -> str:
    """One line of the table."""
    latency, baselines, limits = found["latency"], found["baselines"], found["limits"]
    times = {name: entry["median"] for name, entry in baselines.items()}
    spread = (latency["high"] - latency["low"]) / 2
    limit = max(entry["median"] for entry in limits.values())
    cells = [
        str(m),
        f"{latency['median']:.1f} ± {spread:.1f}",
        *(f"{times[name]:.1f}" if name in times else "" for name in ("bsp eager", "bsp graph")),
        f"{min(times.values()) / latency['median']:.2f}",
        *(f"{limits[name]['median']:.1f}" for name in ("all_gather", "gemm")),
        f"{limit / latency['median']:.2f}",
        found["config"]["mode"],
        str(found["outcomes"].get("measured", 0)),
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Tune every M and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--m", default="16,64,256,1024,4096,8192", help="rows of A, separated by commas")
    parser.add_argument("--n", default="28672")
    parser.add_argument("--k", default="8192")
    parser.add_argument("--layout", default="rows")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--world-size", default="4")
    parser.add_argument("--budget", default="70s", help="for each M")
    parser.add_argument("--db", required=True)
    options = parser.parse_args()
    same = [f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items() if name != "m"]
    lines = [HEADER, "|" + "---:|" * 8 + "---|---:|"]
    for m in (int(text) for text in options.m.split(",")):
        lines.append(row(m, tune([f"--m={m}", *same])))
        print("\n".join(lines) if len(lines) == 3 else lines[-1], flush=True)


if __name__ == "__main__":
    main()
