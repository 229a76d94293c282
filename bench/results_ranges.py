"""README's table of ranges: what was searched and verified of each, from stored studies.

tune report --format json --db tuned.db -o report.json
python bench/results_ranges.py report.json
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tables
from arguments import input_file, new_parser
from latencies import speedup
from results_text import shared_text

AXES = {"m": "M", "batch": "batch", "kv_len": "KV per GPU", "tokens": "tokens per rank"}
"""The sizes that ranges go over, in words."""


@dataclass(frozen=True)
class Span:
    """Studies that differ in the sizes of ranges alone; speedups over the faster baseline by those sizes."""

    workload: str
    problem: Mapping[str, Any]
    searched: Mapping[tuple[int, ...], float]
    verified: Mapping[tuple[int, ...], float]
    axes: Sequence[str]
    """The sizes that vary, in the order of the keys above."""

    @property
    def cells(self) -> list[str]:
        sizes, found = [*self.searched, *self.verified], [*self.searched.values(), *self.verified.values()]
        where = [
            f"{AXES[name]} = {min(each[at] for each in sizes)} to {max(each[at] for each in sizes)}"
            for at, name in enumerate(self.axes)
        ]
        searched = f"{min(self.searched.values()):.2f} to {max(self.searched.values()):.2f}" if self.searched else ""
        worst = f"{math.floor(100 * min(self.verified.values())) / 100:.2f}" if self.verified else ""
        return [
            f"`{self.workload.replace('_', '-')}`, {shared_text(dict(self.problem))}", ", ".join(where), searched,
            str(len(self.searched)), worst, str(len(self.verified)), f"{statistics.geometric_mean(found):.2f}",
        ]  # fmt: skip


def spans(studies: Iterable[Mapping[str, Any]]) -> Iterator[Span]:
    """Ranges among a report's studies, one for each problem, newest first; those without a baseline are left out."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for study in studies:
        if study.get("latency") and study["speedups"]:
            rest = {name: value for name, value in study["problem"].items() if name not in AXES}
            fixed = [study[name] for name in ("workload", "device", "world_size", "regime")]
            groups[json.dumps([fixed, rest], sort_keys=True)].append(study)
    for group in groups.values():
        values = {name: {each["problem"].get(name) for each in group} for name in AXES}
        axes = [name for name in AXES if len(values[name]) > 1]
        kinds: dict[bool, dict[tuple[int, ...], float]] = {False: {}, True: {}}
        for each in reversed(group):
            sizes = tuple(each["problem"][name] for name in axes)
            kinds[not each.get("verified")].pop(sizes, None)
            kinds[bool(each.get("verified"))][sizes] = speedup(dict(each))["value"]
        if axes:
            yield Span(group[0]["workload"], group[0]["problem"], kinds[False], kinds[True], axes)


def table(studies: Iterable[Mapping[str, Any]]) -> str:
    heading = ["workload", "range", "times as fast", "sizes searched", "worst between", "sizes verified", "all, mean"]
    return tables.table(heading, (span.cells for span in spans(studies)), "ll")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("report", type=input_file, help="a file that tune report --format json has written")
    given = parser.parse_args()
    try:
        report = json.loads(given.report.read_text())
    except ValueError:
        parser.error(f"{given.report} is no JSON; give a file that tune report --format json has written")
    print(table(report))


if __name__ == "__main__":
    main()
