"""An independent stopwatch: plain torch and our operators as a user calls them, beside what the tuner claims.

    torchrun --nproc-per-node 4 bench/outside.py [--only ag-rows --only fd/batch=1] [--db URL] [--json FILE] [--strict]
    torchrun --nproc-per-node 2 bench/outside.py --toy         tiny problems, without GPUs too: does it work at all?

It shares no code with the tuner's measuring. Problems are those of README's table (listed.py), tuned before. Time is
wall clock on the slowest rank, ratios are of paired rounds, weights lie in several copies that take turns, and results
are compared with plain torch's. Flagged are ratios that differ from the claim by more than 3 % or read less than 1.00,
and problems that were not tuned. Ranks that share a GPU test the code alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import outside_experts
import tables
import torch
import torch.distributed as dist
from arguments import demand_gpus, new_parser, output_file, some_of
from latencies import REGIMES, time_in
from listed import selected
from outside_cases import FAR, Case, Collectives, Way, distances, make

import autotune
from autotune.machine import Machine, versions
from autotune.model_runs.clock import TOY, Clock, Plan, Ratio, captured
from autotune.workloads import workload as find

ALLOWED = 0.03
"""By which a ratio may differ from the tuner's."""
BOUND = "isolated, bound"
"""A row beside ``isolated``: what the tuner's stopwatch times, before it adds the operator's host overhead."""

BELOW = 0.995
"""A ratio under this reads as less than 1.00."""

HEADER = tables.head(
    ["table", "problem", "regime", "ours, µs", "plain, µs", "plain over ours", "claimed, µs", "claimed ratio", "off",
     "flags"], "lll      l",
)  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """What the tuner says of a problem in a regime."""

    microseconds: float
    ratio: float

    @classmethod
    def of(cls, found: autotune.Found, regime: str) -> Claim | None:
        """None where the problem was not tuned here, or not in this regime."""
        if found.source != "exact" or found.entry is None:
            return None
        winner = found.entry.winner
        ours = time_in(winner.latency, "isolated" if regime == BOUND else regime)
        if regime == BOUND and ours is not None:
            ours -= winner.latency.isolated_overhead or 0.0
            regime = "isolated"
        # Plain torch is captured in a graph here where ours is; elsewhere an eager call stands against an eager one.
        alike = (latency for name, latency in winner.baselines.items() if regime == "graph" or "graph" not in name)
        baselines = [time_in(latency, regime) for latency in alike]
        known = [time for time in baselines if time is not None]
        return cls(ours, min(known) / ours) if ours is not None and known else None


@dataclass
class Row:
    table: str
    problem: dict[str, Any]
    regime: str
    ours: float
    plain: float
    """µs, both."""
    way: str
    ratio: Ratio
    source: str
    """Where our config came from: exact, nearest, default."""
    config: dict[str, Any]
    claim: Claim | None
    ways: dict[str, float]
    """µs of every plain way"""
    flags: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Flag what a reader has to see."""
        if self.source != "exact":
            self.flags.append(f"not tuned ({self.source})")
        if self.off is not None and abs(self.off) > ALLOWED:
            self.flags.append("claim is off")
        if self.ratio.value < BELOW:
            self.flags.append("slower than plain")

    @property
    def off(self) -> float | None:
        """By which share the ratio differs from the claimed one."""
        return self.ratio.value / self.claim.ratio - 1 if self.claim is not None else None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "off": self.off}


def line(row: dict[str, Any]) -> str:
    """A row, as ``as_dict`` has it, as one line of the table."""
    shown = {
        name: row["problem"][name] for name in ("m", "n", "k", "batch", "kv_len", "tokens") if name in row["problem"]
    }
    claim, off = row["claim"], row["off"]
    cells = [
        row["table"], " ".join(f"{name}={value}" for name, value in shown.items()), row["regime"],
        f"{row['ours']:.1f}", f"{row['plain']:.1f}", str(Ratio(**row["ratio"])),
        f"{claim['microseconds']:.1f}" if claim else "", f"{claim['ratio']:.3f}" if claim else "",
        f"{off:+.1%}".replace("%", " %") if off is not None else "", ", ".join(row["flags"]),
    ]  # fmt: skip
    return tables.row(cells)


class Outside:
    def __init__(self, context: autotune.Context, plan: Plan) -> None:
        self._context = context
        self._on_gpu = context.heap.device.type == "cuda"
        self._shared = self._on_gpu and dist.get_world_size() > torch.cuda.device_count()
        self._clock = Clock(context.heap.device, context.group, plan)

    def rows(
        self, table: str, fields: dict[str, Any], workload: str, regimes: list[str], tokens: Sequence[int] | None = None
    ) -> Iterator[Row]:  # fmt: skip
        """A row for each regime that there is here; ``tokens`` of a mixture's ranks, where not all have as many."""
        problem = find(workload).problem_type(**fields)
        collectives = Collectives(self._shared)
        if workload.startswith("moe"):
            case = outside_experts.make(problem, self._context, collectives, tokens)
        else:
            case = make(problem, self._context, collectives)
        found = self._context.choose(problem)
        expected = [next(iter(case.plain.values()))(number) for number in range(case.sets)]
        for way in (*case.plain.values(), *case.counted.values(), case.ours):
            self._compare(case, way, expected)
        for regime in regimes:
            if regime != "graph" or self._on_gpu:
                times = self._graph(case, expected) if regime == "graph" else self._eager(case, regime)
                bound = times.pop(BOUND, None)
                yield judged(table, fields, regime, times, found)
                if bound is not None:
                    yield judged(table, fields, BOUND, {**times, "ours": bound}, found)
        self._compare(case, case.ours, expected)

    def _eager(self, case: Case, regime: str) -> dict[str, list[float]]:
        ways = {"ours": case.ours, **case.plain, **case.counted}
        if regime != "isolated":
            return self._clock.busy(ways, case.sets)
        return self._clock.isolated({**ways, BOUND: bound(self._context, case)})

    def _graph(self, case: Case, expected: list[torch.Tensor]) -> dict[str, list[float]]:
        """All sets in one graph, which counts as that many calls. Ranks that share a GPU call plain torch eagerly."""
        with ExitStack() as graphs:  # all of them alive until the last has been measured
            replay, results = graphs.enter_context(captured(case.ours, case.sets))
            case.restore()
            replay(0)
            self._compare(case, lambda number: results[number], expected)
            ways: dict[str, Way] = {"ours": replay}
            for name, way in case.plain.items():
                if self._shared:
                    ways[name] = lambda _, way=way: [way(number) for number in range(case.sets)]  # type: ignore[misc]
                else:
                    ways[name], _ = graphs.enter_context(captured(way, case.sets))
            return self._clock.busy(ways, 1, case.sets)

    def _compare(self, case: Case, way: Way, expected: list[torch.Tensor]) -> None:
        """Exit on every rank where any rank's results are not plain torch's."""
        case.restore()
        results = [way(number) for number in range(case.sets)]
        self._context.check()
        error = torch.tensor(max(distances(case, results, expected), key=lambda each: (math.isnan(each), each)))
        dist.all_reduce(error.nan_to_num_(nan=math.inf), dist.ReduceOp.MAX, group=self._context.group)
        allowed = FAR[case.problem.dtype]
        if not float(error) <= allowed:
            raise SystemExit(
                f"{case.problem}: results differ from plain torch's by {error:.1e}, allowed is {allowed:.0e}"
            )


def bound(context: autotune.Context, case: Case) -> Way:
    """The end of our operator's calls with each set: launches on addresses that are known, into results that stay."""
    ended: list[Callable[[], None]] = []
    enqueue = context.enqueue

    def noting(workspace: Any, *call: Any) -> None:
        ended.append(lambda: workspace.run(*call))
        enqueue(workspace, *call)

    context.enqueue = noting  # type: ignore[method-assign]
    try:
        for number in range(case.sets):
            case.ours(number)
    finally:
        del context.enqueue
    assert len(ended) == case.sets, "a call of ours is one of a workspace"
    return lambda number: ended[number % case.sets]()


def judged(
    table: str, fields: dict[str, Any], regime: str, times: dict[str, list[float]], found: autotune.Found
) -> Row:
    """The fastest plain way against ours."""
    means = {name: statistics.geometric_mean(each) for name, each in times.items()}
    way = min((name for name in times if name != "ours"), key=means.__getitem__)
    ratio = Ratio.of_rounds(times[way], times["ours"])
    row = Row(
        table, fields, regime, means["ours"], means[way], way, ratio, found.source, dict(found.config),
        Claim.of(found, regime), {name: mean for name, mean in means.items() if name != "ours"},
    )  # fmt: skip
    row.judge()
    return row


def arguments() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME[/FIELD=VALUE,…]", help="some of the list, again for more"
    )
    parser.add_argument("--regimes", type=some_of(REGIMES), default=[*REGIMES], help=f"default: {','.join(REGIMES)}")
    parser.add_argument("--db", help="database of tuned configs; default: the user's")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write the rows there too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where anything is flagged")
    parser.add_argument("--toy", action="store_true", help="tiny problems, few calls: does it work at all?")
    given = parser.parse_args()
    try:
        given.problems = selected(given.only, int(os.environ["WORLD_SIZE"]), given.toy)
    except KeyError:
        parser.error("run it under torchrun: torchrun --nproc-per-node 4 bench/outside.py …")
    except ValueError as error:
        parser.error(str(error))
    demand_gpus(parser, given.toy)
    return given


def start_ranks() -> None:
    """The process group, of one rank without torchrun: NCCL, without NVLink multicast, where each has its own GPU."""
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host: its name need not resolve
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    alone = gpus >= int(os.environ.get("WORLD_SIZE", "1"))
    one: dict[str, Any] = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl" if alone else "cpu:gloo,cuda:gloo" if gpus else "gloo", **one)


def heap_bytes(toy: bool) -> int:
    """The symmetric heap of each rank."""
    return (50 << 20) if toy else (4 << 30)


def where(world_size: int, machine: Machine) -> dict[str, Any]:
    return {
        "world_size": world_size, "gpus": torch.cuda.device_count(), "device": machine.device,
        "interconnect": machine.interconnect, "versions": versions(),
        "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def measure(given: argparse.Namespace) -> list[Row]:
    first = dist.get_rank() == 0
    plan = TOY if given.toy else Plan()
    rows: list[Row] = []
    with autotune.Context(heap_bytes(given.toy), url=given.db) as context:
        if first:
            print(f"{dist.get_world_size()} ranks, {context.machine.device}\n\n{HEADER}", flush=True)
        outside = Outside(context, plan)
        for each, fields in given.problems:
            for row in outside.rows(each.name, fields, each.workload, given.regimes):
                rows.append(row)
                if first:
                    print(line(row.as_dict()), flush=True)
                    save(given.json, rows, where(dist.get_world_size(), context.machine))
            gc.collect()  # the operands' memory, before the next problem's
            context.release()
    return rows


def save(file: Path | None, rows: list[Row], machine: dict[str, Any]) -> None:
    if file is not None:
        found = {**machine, "command": " ".join(sys.argv), "rows": [row.as_dict() for row in rows]}
        file.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    given = arguments()
    start_ranks()
    try:
        rows = measure(given)
    except Exception:  # noqa: BLE001  NCCL would wait for ever for what a broken capture holds
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    dist.destroy_process_group()
    flagged = [row for row in rows if row.flags]
    if int(os.environ["RANK"]) == 0:
        print(f"\n{len(rows)} rows, {len(flagged)} flagged")
    if given.strict and flagged:
        sys.exit(1)


if __name__ == "__main__":
    main()
