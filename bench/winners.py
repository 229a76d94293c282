"""Tunes a workload for many sizes and prints each winner beside its baselines, its limit and its rivals.

    python bench/winners.py all-gather-gemm --m 16,64,256,1024,4096,8192 --n 28672 --k 8192 --world-size 8 \\
        --budget 60s --db winners.db --json winners.json

Everything but --db, --json, --rivals and --no-rivals goes to ``tune grid``. Then the rivals (see rivals.py) are
measured in turns with the winner and for as long as in the finals; the table has how many times as long they take.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tables
from arguments import new_parser, output_file, some_of
from latencies import WINNER, microseconds, speedup

from autotune.model_runs.clock import Ratio
from autotune.outcome import Latency
from autotune.task import Task

RIVALS = Path(__file__).with_name("rivals.py")

SOME_FAILED = 1
"""The exit code of ``tune grid`` where a size could not be measured; it prints the others."""

SUPPLIERS = ("torch", "flashinfer", "quack", "iris", "paper", "served")


def tune(arguments: list[str]) -> list[dict[str, Any]]:
    """Run ``tune grid`` and return its rows; its progress goes to stderr. Ends this process if nothing was measured:
    ``tune grid`` has said why.
    """
    rows: list[dict[str, Any]] = told(["grid", *arguments, "--no-verify"], SOME_FAILED)
    if all(row["latency"] is None for row in rows):
        sys.exit(SOME_FAILED)
    return rows


def told(words: list[str], *allowed: int) -> Any:
    """The JSON of a ``tune`` command. Ends this process with its exit code if it fails: it has said why."""
    done = subprocess.run([sys.executable, "-m", "autotune.cli", *words, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, *allowed) or not done.stdout:
        sys.exit(done.returncode or SOME_FAILED)
    return json.loads(done.stdout)


ROUNDS = 4


def rated(rounds: Sequence[Mapping[str, Latency]]) -> dict[str, dict[str, Any]]:
    """Each rival's latency, µs, and its ratio to the winner's in the same rounds where there is a winner."""
    names = [name for name in rounds[0] if all(name in each for each in rounds)]
    times = {name: [each[name].median for each in rounds] for name in names}
    winner = times.pop(WINNER, None)
    return {
        name: {"microseconds": statistics.median(its), "over": asdict(Ratio.of_rounds(its, winner)) if winner else None}
        for name, its in times.items()
    }


def measure_rivals(rows: list[dict[str, Any]], suppliers: Sequence[str]) -> None:
    """Add to each row what others offer for the same operation, see ``rated``."""
    os.environ["AUTOTUNE_WORKLOADS"] = str(RIVALS)
    from autotune.errors import UnknownWorkload
    from autotune.machine import machine
    from autotune.ranks.gang import Gang
    from autotune.tuning.finals import finals_plan
    from autotune.workloads import workload

    plan = finals_plan(15)

    gang = None
    hanging = set()
    try:
        for row, supplier in itertools.product(rows, suppliers):
            row.setdefault("rivals", {})
            try:
                found = workload(f"{supplier}_{row['workload']}")
            except UnknownWorkload:
                continue
            if found.name in hanging:
                continue
            problem = found.problem_type.from_dict(row["problem"])
            if gang is None:
                gang = Gang(found, Task(problem, machine()), max(found.heap_bytes(problem), 1 << 30))
            else:
                gang.turn_to(found, problem)
            gang.start()
            restarts = gang.restarts
            rounds = [gang.measure_parts(plan)]
            while rounds[-1] and len(rounds) < ROUNDS:  # empty after a failure, which costs a deadline
                rounds.append(gang.measure_parts(plan))
            row["rivals"] |= rated(rounds)
            if gang.restarts > restarts:
                hanging.add(found.name)  # once is enough: each time costs a deadline and a start
                print(f"{found.name} hangs or crashes at {problem}: left out from here on", file=sys.stderr)
            elif words := [line for line in gang.last_words().splitlines() if "rival" in line]:
                print(*words, sep="\n", file=sys.stderr)
    finally:
        if gang is not None:
            gang.close()


def cells(row: dict[str, Any], baselines: list[str], parts: list[str], rivals: list[str]) -> list[str]:
    latency, limits, taken, over = row["latency"], row["limits"], microseconds(row), speedup(row)
    spread = (latency["high"] - latency["low"]) / 2
    found = row.get("rivals", {})
    sizes = row["sizes"] or {
        name: row["problem"][name] for name in ("m", "batch", "kv_len", "tokens") if name in row["problem"]
    }
    return [
        " ".join(f"{name}={value}" for name, value in sizes.items()),
        f"{taken[WINNER]:.1f} ± {spread:.1f}",
        *(f"{taken[name]:.1f}" if name in taken else "" for name in baselines),
        f"**{over['value']:.2f}** ± {over['error']:.2f}",
        *(f"{limits[name]['median']:.1f}" if name in limits else "" for name in parts),
        f"{row['limit_share']:.2f}" if row["limit_share"] is not None else "",
        f"{row['roofline_share']:.2f}" if row.get("roofline_share") is not None else "",
        f"{row['overlap_efficiency']:.0%}" if row.get("overlap_efficiency") is not None else "",
        row["config"]["mode"],
        *(beside(found[name]) if name in found else "fails" for name in rivals),
        str(row["trials"]),
    ]


def beside(rival: dict[str, Any]) -> str:
    over = rival["over"]
    return f"{over['value']:.2f} ± {over['error']:.2f}" if over else f"{rival['microseconds']:.1f} µs"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, with the geometric mean of the speedups below."""
    done = [row for row in rows if row["latency"] is not None]
    parts = sorted({name for row in done for name in row["limits"]})
    rivals = sorted({name for row in done for name in row.get("rivals", {})})
    baselines = list(dict.fromkeys(name for row in done for name in row["baselines"]))
    heading = ["sizes", "winner, µs", *(f"{name}, µs" for name in baselines), "over the faster"]
    heading += [f"{name} alone, µs" for name in parts] + ["share of the limit", "of the roofline", "E", "mode"]
    heading += [f"{name} / winner" for name in rivals] + ["trials"]
    speedups = [speedup(row)["value"] for row in done]
    mean = statistics.geometric_mean(speedups)
    text = tables.table(heading, [cells(row, baselines, parts, rivals) for row in done])
    over = f"Over the faster baseline, geometric mean: {mean:.2f}; least: {min(speedups):.2f}."
    return f"{text}\n\n{over} E: overlap efficiency. NCCL: NVLS {rows[0].get('nvls', 'as NCCL finds it')}."


def nvls() -> str:
    """A word for NCCL's use of NVLink's multicast in these numbers."""
    return "off" if os.environ.get("NCCL_NVLS_ENABLE") == "0" else "as NCCL finds it"


def main() -> None:
    parser = new_parser(__doc__, allow_abbrev=False)
    parser.add_argument("--json", type=output_file, help="write all rows to this file")
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--rivals", type=some_of(SUPPLIERS), default=SUPPLIERS, help=f"of these: {','.join(SUPPLIERS)}")
    parser.add_argument("--db", help="database: a path or a URL; default: the user's")
    options, arguments = parser.parse_known_args()
    if not arguments:
        parser.error("name a workload, then its sizes as tune grid takes them")
    if options.db is not None:
        os.environ["AUTOTUNE_DB"] = options.db  # for the rivals' ranks, too, which look the winner up
    rows = [{**row, "nvls": nvls()} for row in tune(arguments)]
    if not options.no_rivals:
        measure_rivals([row for row in rows if row["latency"] is not None], options.rivals)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
