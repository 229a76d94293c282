"""Layers of a Llama-70B, or of a mixture, with random weights: parallelism of others, compiled, against ours.

    python bench/model_layers.py --client transformers --phases prefill decode --tune 5 --minutes 4 --json FILE
    python bench/model_layers.py --client mixture --tune 8 --minutes 8 --json FILE
    python bench/model_layers.py --tiny                          without GPUs: does it work at all?

It first runs the phases once to see what they call, and tunes that. The same command continues an earlier one.

The ways: "plain" is the client under its own plan; "styles" is autotune.nn.tuned(plan), for transformers
autotune.nn.transformers.parallelize; "fusing" is plain with torch.compile(options=autotune.fusing(context)). Prefill
and decode (a step without its KV cache) are also captured in CUDA graphs; the faster one counts. "of the limits" is
what ours saved, over what the operators would save at their limits; "of the winners", over what their tuning saved.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import tables
import torch
from arguments import new_parser, output_file, positive, whole
from model_clients import MIXTURE, PHASES, TINY, TINY_MIXTURE, Sizes, expert_parallelism
from model_rows import CLIENTS, ModelRows
from outside import where

import autotune
from autotune.db import Entry
from autotune.machine import machine
from autotune.model_runs.comparison import PLAIN, RIVALS, WAYS, Row, best, called_in
from autotune.model_runs.ranks import rows_of
from autotune.models.forward import Call
from autotune.models.problem_lists import write_list
from autotune.models.promise import Measured, Promise
from autotune.outcome import DEFAULT_REGIME
from autotune.problem import Problem
from autotune.tuning.effort import SHORTEST

TOKENS = ("prefill", "decode", "train")

TUNING = 0.55

HEADER = tables.head(["phase", "tokens", "plain, µs", "ours, µs", "plain / ours", "of the limits", "of the winners",
                      "each way, µs", "error", "flags"], "l      l l")  # fmt: skip


def line(found: Row) -> str:
    means, ratios, fastest, promise = found["us"], found["ratios"], found["fastest"], Promise(**found["promise"])
    way, ratio = best(found)
    rival = means[found["rival"]]
    saved = rival - means[fastest[way]]
    flags = [f"{name} is slower than the others" for name, each in ratios.items() if each["value"] + each["error"] < 1]
    if found.get("not_captured"):
        flags.append(f"eager alone, not captured ({found['not_captured'][:60]})")
    if promise.untuned:
        flags.append(f"{promise.untuned} calls not tuned")
    cells = [
        found["phase"], str(found["tokens"]), f"{rival:.0f}", f"{means[fastest[way]]:.0f} ({way})",
        str(ratio), _share(saved, promise.most), _share(saved, promise.gain),
        ", ".join(f"{name} {mean:.0f}" for name, mean in means.items()), f"{found['error']:.0e}", ", ".join(flags),
    ]  # fmt: skip
    return tables.row(cells)


def _share(saved: float, promised: float) -> str:
    return f"{saved / promised:.2f} of {promised:.0f} µs" if promised > 0 else ""


def arguments() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--client", choices=CLIENTS, default="pytorch")
    parser.add_argument("--phases", nargs="+", metavar="PHASE", help="default: all of the client's")
    parser.add_argument("--ways", nargs="+", choices=(*RIVALS, *WAYS[1:]), help="default: all that run here")
    parser.add_argument("--tokens", nargs="+", type=whole, metavar="M", help="only these numbers of tokens")
    parser.add_argument("--ranks", type=whole, default=2)
    parser.add_argument("--tune", type=positive, metavar="SECONDS", help="tune each problem first, at least 5 s")
    parser.add_argument("--effort", help="that of tune; quick has shorter finals")
    parser.add_argument("--minutes", type=positive, default=math.inf, help="no new row later, tuning included")
    parser.add_argument("--tiny", action="store_true", help="sizes that the interpreter can do")
    parser.add_argument("--db", help="database of tuned configs; default: the user's")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the rows there, too")
    given = parser.parse_args()
    known = [phase.name for phase in PHASES[given.client]]
    given.phases = given.phases or known
    if unknown := set(given.phases) - set(known):
        parser.error(f"--phases {' '.join(sorted(unknown))}: {given.client} has {', '.join(known)}")
    theirs = RIVALS if given.client == "mixture" else RIVALS[:1]
    fusing = torch.cuda.is_available() and given.client != "mixture"
    given.ways = given.ways or [*theirs, "styles", *(["fusing"] if fusing else [])]
    if given.ways[0] != PLAIN or len(given.ways) < 2:
        parser.error("--ways: plain comes first, and is what others are compared with")
    if given.tune is not None and given.tune < SHORTEST:
        parser.error(f"--tune {given.tune:g}: a problem needs at least {SHORTEST:g} s")
    if given.client == "mixture" and not expert_parallelism():
        parser.error("--client mixture needs transformers' expert parallelism: pip install 'transformers>=5.23,<6'")
    if not torch.cuda.is_available() and not given.tiny:
        parser.error("no GPU found; --tiny runs toy sizes under Triton's interpreter")
    return given


def tune(given: argparse.Namespace, problems: list[Problem]) -> None:
    """What fails, or is interrupted since its time is over, runs with a default config; the command names it."""
    file, seconds = Path(f"{given.json or given.client}.problems.yaml"), given.minutes * 60 * TUNING
    file.write_text(write_list([Call("", each, 1) for each in problems], seconds=dict.fromkeys(problems, given.tune)))
    words = [sys.executable, "-m", "autotune", "model", str(file)]
    for name in ("db", "effort"):
        words += [f"--{name}", str(getattr(given, name))] if getattr(given, name) else []
    started = subprocess.Popen(words)
    try:
        started.wait(None if math.isinf(seconds) else seconds)
    except subprocess.TimeoutExpired:
        started.send_signal(signal.SIGINT)
        started.wait()


def measured(measurement: ModelRows, calls: dict[tuple[str, int], dict[Problem, int]]) -> Iterator[Row]:
    """The rows as they come, with what the tuned operators promise for their calls."""

    def entry_of(problem: Problem) -> Entry | None:
        found = autotune.lookup(problem.workload, problem, url=measurement.url)
        return found.entry if found.source == "exact" else None

    for found in rows_of(measurement, machine()):
        called = [Call("", problem, count) for problem, count in calls[found["phase"], found["tokens"]].items()]
        promise = Measured(entry_of, machine(), DEFAULT_REGIME, called_in(found, DEFAULT_REGIME)).promised(called)
        missing = [str(call.problem) for call in called if entry_of(call.problem) is None]
        yield {**found, "promise": dataclasses.asdict(promise), "not_tuned": missing}


def main() -> int:
    given = arguments()
    until = time.monotonic() + given.minutes * 60
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    small, large = (TINY_MIXTURE, MIXTURE) if given.client == "mixture" else (TINY, Sizes())
    sizes = small if given.tiny else large
    if given.tokens:
        some = {name: tuple(m for m in getattr(sizes, name) if m in given.tokens) for name in TOKENS}
        sizes = dataclasses.replace(sizes, **some)
    rows: list[Row] = json.loads(given.json.read_text())["rows"] if given.json and given.json.exists() else []
    measurement = ModelRows(
        given.client, sizes, tuple(given.phases), tuple(given.ways), given.ranks,
        (50 << 20) if given.tiny else (8 << 30), given.db,
        frozenset((each["phase"], each["tokens"]) for each in rows),
    )  # fmt: skip
    ours = dataclasses.replace(measurement, ways=("styles",), times=False)
    calls = {(each["phase"], each["tokens"]): each["calls"] for each in rows_of(ours, machine())}
    if given.tune is not None:
        tune(given, list(dict.fromkeys(problem for each in calls.values() for problem in each)))
    print("\n".join([HEADER, *map(line, rows)]), flush=True)
    about = {**where(given.ranks, machine()), **dataclasses.asdict(sizes), "client": given.client}
    for found in measured(measurement, calls):
        rows.append(found)
        print(line(found), flush=True)
        if given.json:
            given.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
        if time.monotonic() > until:
            print("the time is over; the same command goes on")
            break
    if missing := list(dict.fromkeys(problem for each in rows for problem in each.get("not_tuned", ()))):
        print("\nnot tuned:", *missing, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
