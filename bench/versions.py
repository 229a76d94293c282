"""The same configs by this checkout and by an earlier one, in turns: did a change make a kernel slower?

    git worktree add ../before COMMIT
    python bench/versions.py ../before --world-size 2

For README's rows that both know, or those that ``--only`` chooses: the earlier checkout's default config. Both
checkouts' ranks are on the GPUs at once and measure in turns of a tenth of a second, by the same stopwatch
(``versions_rank.py``). *Before / now* above 1: this one is faster; 0.99 is allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tables
import torch
from arguments import new_parser, whole
from listed import Sizes, selected

from autotune.model_runs.clock import Ratio

ROOT = Path(__file__).parents[1]

ALLOWED = 0.99
SECONDS = 0.1

HEADER = tables.head(["sizes", "before, µs", "now, µs", "before / now", "config"], "l   l")


class Refused(Exception):
    """A checkout does not do what it is asked for; the message is its own."""


class Checkout:
    """The ranks of the package as it lies in a folder, where nothing has been tuned."""

    def __init__(self, folder: Path, world_size: int, scratch: Path) -> None:
        paths = [str(folder), str(folder / "bench"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths), "AUTOTUNE_DB": str(scratch / "none.db"),
            "WORLD_SIZE": str(world_size), "NCCL_NVLS_ENABLE": "0",
        }  # fmt: skip
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host: its name need not resolve
        if not torch.cuda.is_available():
            environment["TRITON_INTERPRET"] = "1"
        # -P: not today's outside_cases.py, which lies beside the script
        command = [sys.executable, "-P", str(ROOT / "bench" / "versions_rank.py"), str(scratch / "rendezvous")]
        self._ranks = [
            subprocess.Popen(
                command, cwd=scratch, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world_size)
        ]  # fmt: skip

    def ask(self, do: str, **arguments: Any) -> list[Any]:
        """The ranks' answers to a request. Raises Refused; where a rank has died, the program ends."""
        line = json.dumps({"do": do, **arguments}) + "\n"
        with ThreadPoolExecutor(len(self._ranks)) as pool:
            answers = list(pool.map(lambda rank: self._asked(rank, line), self._ranks))
        for answer in answers:
            if "refused" in answer:
                raise Refused(answer["refused"])
        return [answer["found"] for answer in answers]

    def _asked(self, rank: subprocess.Popen[str], line: str) -> dict[str, Any]:
        assert rank.stdin is not None and rank.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            rank.stdin.write(line)
            rank.stdin.flush()
        if answer := rank.stdout.readline():
            return dict(json.loads(answer))
        for other in self._ranks:  # they may wait for it
            other.kill()
        raise SystemExit("a rank has died; what it said stands above")

    def microseconds(self, times: int) -> float:
        return float(max(self.ask("sample", times=times)))

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.communicate()


@contextlib.contextmanager
def both(before: Path, world_size: int) -> Iterator[tuple[Checkout, Checkout]]:
    with contextlib.ExitStack() as stack:
        found = []
        for folder in (before.resolve(), ROOT):
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
            found.append(Checkout(folder, world_size, Path(scratch)))
            stack.callback(found[-1].end)
        yield found[0], found[1]


def compared(
    sizes: Sizes, problem: dict[str, Any], before: Checkout, now: Checkout, turns: int, seconds: float
) -> tuple[str, bool]:
    """A line of the table, and whether this checkout is fast enough. Raises Refused."""
    asked = {"workload": sizes.workload, "fields": problem}
    config = before.ask("default", **asked)[0]
    for checkout in (before, now):
        checkout.ask("make", **asked, config=config)
    times = in_turns(before, now, turns, seconds)
    ratio = Ratio.of_rounds(*times)
    told = " ".join(f"{name}={value}" for name, value in problem.items() if name in sizes.varied)
    means = [f"{statistics.geometric_mean(each):.1f}" for each in times]
    cells = [f"{sizes.name} {told}", *means, str(ratio), " ".join(f"{name}={value}" for name, value in config.items())]
    return tables.row(cells), ratio.value >= ALLOWED


def in_turns(before: Checkout, now: Checkout, turns: int, seconds: float) -> tuple[list[float], list[float]]:
    """Microseconds of each checkout's turns: before, now, now, before, so that drift meets both alike."""
    times = _times(before, seconds)
    now.microseconds(times)
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        first, second, third, fourth = (each.microseconds(times) for each in (before, now, now, before))
        found[0].append(math.sqrt(first * fourth))
        found[1].append(math.sqrt(second * third))
    return found


def _times(checkout: Checkout, seconds: float) -> int:
    times = 1
    while True:
        begun = time.monotonic()
        checkout.microseconds(times)
        took = time.monotonic() - begun
        if took >= seconds / 2:
            return max(1, round(times * seconds / took))
        times *= 2


def table(given: argparse.Namespace, before: Checkout, now: Checkout) -> int:
    slower, done, taken = 0, 0, Counter[str]()
    print(HEADER, flush=True)
    for sizes, problem in given.problems:
        if taken[sizes.name] == given.sizes:
            continue
        taken[sizes.name] += 1
        try:
            told, fast = compared(sizes, problem, before, now, given.turns, 0.0 if given.toy else SECONDS)
        except Refused as error:
            print(f"{sizes.name}: not compared: {error}", file=sys.stderr)
            taken[sizes.name] = given.sizes  # its other sizes would be refused too
            continue
        print(told, flush=True)
        done, slower = done + 1, slower + (not fast)
    if slower:
        print(f"slower than {ALLOWED} of before: {slower}", file=sys.stderr)
    if not done:
        print("nothing was compared", file=sys.stderr)
    return int(slower > 0 or not done)


def main() -> int:
    parser = new_parser(__doc__)
    parser.add_argument("before", type=Path, help="folder of the earlier checkout")
    parser.add_argument("--world-size", type=whole, default=2)
    parser.add_argument("--sizes", type=whole, default=9, help="of each row at most; default: 9")
    parser.add_argument("--turns", type=whole, default=10, help="of both checkouts, at least 2; default: 10")
    parser.add_argument("--only", nargs="+", metavar="NAME[/FIELD=VALUE,...]", help="rows, or some of their sizes")
    parser.add_argument("--toy", action="store_true", help="tiny problems: does it work at all?")
    given = parser.parse_args()
    try:
        given.problems = selected(given.only, given.world_size, given.toy)
    except ValueError as error:
        parser.error(str(error))
    if given.turns < 2:
        parser.error("--turns: at least 2, or nothing is known of the error")
    if not (given.before / "bench" / "outside_cases.py").is_file():
        parser.error(f"{given.before}: no checkout of this project; make one with: git worktree add PATH COMMIT")
    with both(given.before, given.world_size) as checkouts:
        return table(given, *checkouts)


if __name__ == "__main__":
    sys.exit(main())
