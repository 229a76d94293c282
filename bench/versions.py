"""The same configs by this checkout and by an earlier one, in turns: did a change make a kernel slower?

    git worktree add ../before COMMIT
    python bench/versions.py ../before --world-size 2 --minutes 8

For the first sizes of each of README's rows that both know, or those that ``--only`` chooses: the earlier checkout's
default config, here in today's words. A turn is a process, ``tune WORKLOAD … --config … --json`` of one checkout, so
that they share the machine and the installed packages alone. *Before / now* above 1: this one is faster; 0.99 is
allowed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from arguments import positive, whole
from listed import Sizes, selected
from steps import ROOT

from autotune.config import Config
from autotune.model_runs.clock import Ratio
from autotune.workloads import workload

ALLOWED = 0.99

HEADER = "| sizes | before, µs | now, µs | before / now | config |\n|---|---:|---:|---:|---|"


class Refused(Exception):
    """A checkout does not do what it is asked for; the message is its own."""


class Checkout:
    """The command line of the package as it lies in a folder, where nothing has been tuned."""

    def __init__(self, folder: Path, scratch: str) -> None:
        self.folder, self._scratch = folder, scratch

    def tune(self, *words: str) -> Any:
        """The output of ``tune … --json``. Raises Refused where it ends badly."""
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        database = f"{self._scratch}/none.db"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "AUTOTUNE_DB": database}
        found = subprocess.run(
            [sys.executable, "-m", "autotune.cli", *words, "--json"],
            cwd=self._scratch, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        if found.returncode:
            said = (found.stderr.strip() or found.stdout.strip()).splitlines()
            raise Refused(said[-1] if said else f"exit code {found.returncode}")
        return json.loads(found.stdout)

    def default(self, asked: list[str]) -> Config:
        return Config(self.tune("lookup", *asked)["config"])

    def microseconds(self, asked: list[str], config: Config) -> float:
        """On the device, the median over a process's calls."""
        found = self.tune(*asked, "--config", json.dumps(dict(config)))
        return float(found["latency"]["median"])


def compared(sizes: Sizes, problem: dict[str, Any], before: Checkout, now: Checkout, turns: int) -> tuple[str, bool]:
    """A line of the table, and whether this checkout is fast enough. Raises Refused."""
    asked = sizes.command(problem)
    old = before.default(asked)
    new = workload(sizes.workload).space.current(old)
    times: dict[Checkout, list[float]] = {before: [], now: []}
    for turn in range(turns):
        for checkout in (before, now) if turn % 2 == 0 else (now, before):
            times[checkout].append(checkout.microseconds(asked, old if checkout is before else new))
    ratio = Ratio.of_rounds(times[before], times[now])
    told = " ".join(f"{name}={value}" for name, value in problem.items() if name in sizes.varied)
    means = [f"{statistics.geometric_mean(each):.1f}" for each in times.values()]
    cells = [f"{sizes.name} {told}", *means, str(ratio), " ".join(f"{name}={value}" for name, value in new.items())]
    return "| " + " | ".join(cells) + " |", ratio.value >= ALLOWED


def table(given: argparse.Namespace, before: Checkout, now: Checkout) -> int:
    """Print it; the command's exit code."""
    begun, slower, done, taken = time.monotonic(), 0, 0, Counter[str]()
    print(HEADER, flush=True)
    for sizes, problem in given.problems:
        if taken[sizes.name] == given.sizes:
            continue
        if time.monotonic() - begun > given.minutes * 60:
            print("the time is over", file=sys.stderr)
            return 1
        taken[sizes.name] += 1
        try:
            told, fast = compared(sizes, problem, before, now, given.turns)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="folder of the earlier checkout")
    parser.add_argument("--world-size", type=whole, default=2)
    parser.add_argument("--sizes", type=whole, default=2, help="of each row at most; default: 2")
    parser.add_argument("--turns", type=whole, default=3, help="of each checkout, at least 2; default: 3")
    parser.add_argument("--only", nargs="+", metavar="NAME[/FIELD=VALUE,...]", help="rows, or some of their sizes")
    parser.add_argument("--minutes", type=positive, default=math.inf, help="no new problem later than that")
    parser.add_argument("--toy", action="store_true", help="tiny problems: does it work at all?")
    given = parser.parse_args()
    try:
        given.problems = selected(given.only, given.world_size, given.toy)
    except ValueError as error:
        parser.error(str(error))
    if given.turns < 2:
        parser.error("--turns: at least 2, or nothing is known of the error")
    if not (given.before / "autotune" / "cli").is_dir():
        parser.error(f"{given.before}: no checkout of this project; make one with: git worktree add PATH COMMIT")
    with tempfile.TemporaryDirectory() as scratch:
        return table(given, Checkout(given.before.resolve(), scratch), Checkout(ROOT, scratch))


if __name__ == "__main__":
    sys.exit(main())
