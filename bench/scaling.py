"""One problem on more and more GPUs: tunes it for each world size, prints the latency, the speedup and the efficiency.

    python bench/scaling.py all-gather-gemm --world-sizes 1,2,4,8 --m 4096 --n 28672 --k 8192 --budget 20s --db s.db
    python bench/scaling.py flash-decode --world-sizes 1,2,4,8 --divide kv-len=524288 --batch 1 --budget 20s --db s.db

The total problem is fixed: what ``--divide`` names is a rank's part, a total to be given out in equal parts; the other
sizes are totals already. *Speedup* is over one GPU's winner; *bsp* is the faster baseline, with a speedup of its own
over the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tables
from arguments import new_parser, output_file, share, wholes
from latencies import microseconds
from winners import tune

HEADING = ["workload", "GPUs", "winner, µs", "speedup", "efficiency", "bsp, µs", "its speedup", "over bsp", "mode"]


def rows(workload: str, world_sizes: list[int], divided: dict[str, int], rest: list[str]) -> list[dict[str, Any]]:
    found = []
    for world_size in world_sizes:
        parts = [f"--{name}={total // world_size}" for name, total in divided.items()]
        found += tune([workload, *rest, *parts, f"--world-size={world_size}"])
    return [row for row in found if row["latency"] is not None]


def table(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Markdown, several rows for each workload; the first of them is what its others are compared with."""
    lines = []
    for workload, parts in found.items():
        alone, fewest = microseconds(parts[0])["winner"], parts[0]["problem"]["world_size"]
        for part in parts:
            latency, *baselines = microseconds(part).values()
            world_size, bsp = part["problem"]["world_size"], min(baselines)
            lines.append([
                f"`{workload}`", world_size, f"{latency:.1f}", f"{alone / latency:.2f}",
                f"{alone / latency * fewest / world_size:.2f}", f"{bsp:.1f}", f"{alone / bsp:.2f}",
                f"{bsp / latency:.2f}", part["config"]["mode"],
            ])  # fmt: skip
    return tables.table(HEADING, lines, "l" + " " * 7 + "l")


def main() -> None:
    parser = new_parser(__doc__, allow_abbrev=False)
    parser.add_argument("workload")
    parser.add_argument("--world-sizes", type=wholes, default="1,2,4,8", help="separated by commas")
    parser.add_argument("--divide", action="append", type=share, default=[], metavar="NAME=TOTAL")
    parser.add_argument("--json", type=output_file, help="write all rows to this file")
    options, rest = parser.parse_known_args()
    divided = dict(options.divide)
    for name, total in divided.items():
        if uneven := [each for each in options.world_sizes if total % each]:
            parser.error(f"--divide {name}={total}: {', '.join(map(str, uneven))} ranks have no equal parts of it")
    found = rows(options.workload, options.world_sizes, divided, rest)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(table({options.workload: found}))


if __name__ == "__main__":
    main()
