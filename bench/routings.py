"""A mixture's tuned config under other popularities of the experts than the one it was tuned for.

    python bench/winners.py moe-dispatch-gemm --tokens 128,4096 … --no-rivals --json rows.json
    python bench/routings.py rows.json --exponents 0.5,1,1.5

Winner and baselines are checked and measured under each routing by the tuner's own stopwatch, a few calls each, once:
a look at what skew costs, not finals. A config that was tuned for one routing is never served for another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tables
from arguments import input_file, new_parser, positives

from autotune.config import Config
from autotune.machine import machine
from autotune.ranks.evaluation import MeasurePlan
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import workload

PLAN = MeasurePlan(warmup=3, screen=10, iterations=40)
HEADER = tables.head(
    ["workload", "tokens", "tuned for", "routed by", "winner, µs", "fastest baseline, µs", "over it"], "l ll"
)


def routings(exponents: list[float]) -> Iterator[dict[str, Any]]:
    yield {"routing": "uniform", "exponent": 0.0, "histogram": ""}
    for exponent in exponents:
        yield {"routing": "zipf", "exponent": exponent, "histogram": ""}


def said(fields: dict[str, Any]) -> str:
    return fields["routing"] + (f" {fields['exponent']:g}" if fields["exponent"] else "")


def median(gang: Gang, config: Config) -> float | None:
    """The median of a config's calls, µs; None where the config is wrong or does not run."""
    latency = gang.evaluate(config, 1, PLAN).latency
    return None if latency is None else latency.median


def lines(rows: list[dict[str, Any]], exponents: list[float]) -> Iterator[str]:
    gang, here = None, machine()
    try:
        for row in rows:
            found = workload(row["workload"])
            for fields in routings(exponents):
                problem = found.problem_type.from_dict({**row["problem"], **fields})
                if gang is None:
                    gang = Gang(found, Task(problem, here), max(found.heap_bytes(problem), 1 << 28))
                gang.turn_to(found, problem)
                gang.start()
                winner = median(gang, Config(row["config"]))
                baselines = [median(gang, config) for config in found.baselines(Task(problem, here)).values()]
                best = min((each for each in baselines if each is not None), default=None)
                yield tables.row([
                    row["workload"], problem.tokens, said(row["problem"]), said(fields),
                    "fails" if winner is None else f"{winner:.1f}", "" if best is None else f"{best:.1f}",
                    "" if winner is None or best is None else f"{best / winner:.2f}",
                ])  # fmt: skip
    finally:
        if gang is not None:
            gang.close()


def main() -> None:
    parser = new_parser(__doc__, allow_abbrev=False)
    parser.add_argument("rows", type=input_file, help="a file that winners.py --json has written")
    parser.add_argument("--exponents", type=positives, default="0.5,1,1.5", help="of the Zipf distributions")
    given = parser.parse_args()
    rows = [row for row in json.loads(given.rows.read_text()) if row["latency"] is not None]
    print(HEADER)
    for line in lines(rows, given.exponents):
        print(line, flush=True)


if __name__ == "__main__":
    main()
