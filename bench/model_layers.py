"""Layers of a Llama-70B, or of a mixture, with random weights: parallelism of others, compiled, against ours.

    python bench/model_layers.py --client transformers --phases prefill decode --tune 8 --minutes 8 --json FILE
    python bench/model_layers.py --client pytorch --phases train --tune 8 --minutes 8 --json FILE
    python bench/model_layers.py --client mixture --tune 8 --minutes 8 --json FILE
    python bench/model_layers.py --tiny                          without GPUs: does it work at all?

It first tunes what the phases call, ``--tune`` seconds for each problem, by ``tune model``, then starts a rank on each
GPU. What is in the database or in FILE is not done again: the same command continues where an earlier one stopped.

The ways: "plain" is the client under its own plan; "styles" is autotune.nn.tuned(plan), for transformers
autotune.nn.transformers.parallelize; "fusing" is plain with torch.compile(options=autotune.fusing(context)); those of
the mixture are in mixture_client.py, and its tokens are per rank. All are compiled. "prefill-sp" and PyTorch's "train"
are sequence parallel (all-gather, reduce-scatter), all else is replicated (all-reduce). Decode is a step of a batch
without its KV cache, which is the same in all ways. Prefill and decode are also captured in CUDA graphs, but for what
the host reads counts in; the faster one of either counts. Times are wall clock, of the slowest rank, by the stopwatch
of outside.py. Logits and losses are compared with plain's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mixture_client import MIXTURE, TINY_MIXTURE, mixture
from mixture_client import problems as problems_of_mixture
from model_clients import PHASES, TINY, Phase, Sizes, problems, pytorch, transformers
from outside import captured, start_ranks, where
from outside_clock import TOY, Clock, Plan, Ratio
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import autotune
from autotune.models.forward import Call
from autotune.models.listed import write_list

Tensor = torch.Tensor

CLIENTS = {"pytorch": pytorch, "transformers": transformers, "mixture": mixture}

RIVALS = ("plain", "gathered")
"""Ways that are not ours; the fastest of them is compared with."""

EAGER = {"mixture": ("plain",)}
"""By client: the ways that cannot be captured."""

TOLERANCE = 3e-2
"""Largest |logits - plain's| / |plain's| (Frobenius): every way rounds to bf16 at each step through the layers."""

LOSS_TOLERANCE = 2e-2
"""Largest difference of a training step's loss from plain's, as a share."""

TARGETS = {"prefill": 1.06, "prefill-sp": 1.06, "decode": 1.08, "train": 1.05}
"""Plain's time over that of the faster one of our ways; no way is to be under 1."""

CLOCK = Plan(rounds=4, seconds=0.05, warm_up=0.15)

TOKENS = ("prefill", "decode", "train")
"""The fields of ``Sizes`` that hold numbers of tokens."""

HEADER = """\
| phase | tokens | plain, µs | ours, µs | plain / ours | each way, µs | error | flags |
|---|---:|---:|---:|---:|---|---:|---|"""


class Bench:
    """A client's models by each way, from the same weights."""

    def __init__(self, given: argparse.Namespace, sizes: Sizes, context: autotune.Context) -> None:
        self.given, self.sizes, self.context = given, sizes, context
        self.device = context.heap.device
        self.on_gpu = self.device.type == "cuda"
        self.mesh = init_device_mesh(self.device.type, (context.heap.world_size,))
        self._clock = Clock(self.device, context.group, CLOCK if self.on_gpu else TOY)

    def rows(self, done: set[tuple[str, int]]) -> Iterator[dict[str, Any]]:
        """Of each phase and size that is not done."""
        for name in self.given.phases:
            phase = phase_of(self.given.client, name)
            left = [m for m in phase.tokens(self.sizes) if (name, m) not in done]
            if not left:
                continue
            if phase.training:
                for m in left:
                    yield {"phase": name, "tokens": m, **self.training(phase, m)}
                    self._forget()
                continue
            models = {way: self.model(way, phase) for way in self.given.ways}
            for m in left:
                shape = (m, 1) if phase.sizes == "decode" else (1, m)
                yield {"phase": name, "tokens": m, **self.inference(models, self._tokens(shape, phase.own_tokens))}
            del models
            self._forget()

    def model(self, way: str, phase: Phase) -> nn.Module:
        """One way's, shared out and compiled: as a whole for training, else layer by layer."""
        torch.manual_seed(17)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16 if self.on_gpu else torch.float32)
        try:
            with self.device:
                build = CLIENTS[self.given.client]
                made = build(self.sizes, phase, self.mesh, self.context if way == "styles" else None, way)
        finally:
            torch.set_default_dtype(before)
        how: dict[str, Any] = {"backend": "inductor" if self.on_gpu else "aot_eager"}
        if way == "fusing":
            how = {"options": autotune.fusing(self.context)}
        # One layer's code serves all of them. A backward from an eager part into a compiled one breaks DTensors.
        layers: Any = [made] if phase.training else made.layers
        for each in layers:
            each.compile(dynamic=False, **how)
        return made

    def inference(self, models: Mapping[str, nn.Module], tokens: Tensor) -> dict[str, Any]:
        with torch.no_grad(), ExitStack() as graphs:
            calls: dict[str, Callable[[int], Any]] = {
                f"{way} eager": lambda _, model=model: model(tokens)  # type: ignore[misc]
                for way, model in models.items()
            }
            found = {name: call(0).clone() for name, call in calls.items() for _ in range(3 if self.on_gpu else 1)}
            if self.given.collect:
                return {}
            failed = ""
            if self.on_gpu:
                some = [way for way in models if way not in EAGER.get(self.given.client, ())]
                replays, failed = self._captured({way: calls[f"{way} eager"] for way in some}, graphs)
                for name, (replay, results) in replays.items():
                    calls[name] = replay
                    replay(0)
                    found[name] = results[0].clone()
            right = found["plain eager"].float()
            errors = {name: float((logits - right).norm() / right.norm()) for name, logits in found.items()}
            self._check(errors, TOLERANCE)
            return {**self._row(errors, self._clock.busy(calls, 1)), "not_captured": failed}

    def _captured(
        self, calls: Mapping[str, Callable[[int], Any]], graphs: ExitStack
    ) -> tuple[dict[str, tuple[Callable[[int], Any], list[Any]]], str]:  # fmt: skip
        """Each way's graph; none, and the reason, where one fails on any rank: then eager calls alone are compared."""
        found = {}
        for way, call in calls.items():
            failed = ""
            try:
                found[f"{way} graph"] = graphs.enter_context(captured(call, 1))
            except RuntimeError as error:
                failed = f"{way}: {str(error).strip().splitlines()[0]}"
            everyone: list[Any] = [None] * self.mesh.size()
            dist.all_gather_object(everyone, failed, group=self.context.group)
            if any(everyone):
                return {}, next(filter(None, everyone))
        return found, ""

    def training(self, phase: Phase, count: int) -> dict[str, Any]:
        """A step is forward, backward and AdamW; losses over all steps, then the times of some more."""
        tokens, losses, calls = self._tokens((1, count + 1)), {}, {}
        for way in self.given.ways:
            model = self.model(way, phase)
            dtensors = self.given.client == "pytorch"  # transformers leaves the norms' weights plain tensors
            optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=dtensors)

            def step(_: int = 0, model: nn.Module = model, optimiser: Any = optimiser) -> Tensor:
                loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
                loss.backward()
                optimiser.step()
                optimiser.zero_grad()
                return loss.detach()

            losses[way] = [float(step()) for _ in range(1 if self.given.collect else self.sizes.steps)]
            calls[way] = step
        if self.given.collect:
            return {}
        pairs = {way: zip(mine, losses["plain"], strict=True) for way, mine in losses.items()}
        errors = {way: max(abs(mine / right - 1) for mine, right in pair) for way, pair in pairs.items()}
        self._check(errors, LOSS_TOLERANCE)
        return {**self._row(errors, self._clock.busy(calls, 1)), "losses": losses}

    def _check(self, errors: dict[str, float], allowed: float) -> None:
        """Exit on every rank where any rank's results are not plain's."""
        everyone: list[Any] = [None] * self.mesh.size()
        dist.all_gather_object(everyone, errors, group=self.context.group)
        self.context.check()
        worst = {name: max((each[name] for each in everyone), key=_nan_first) for name in errors}
        errors.update(worst)
        if not all(error <= allowed for error in worst.values()):
            raise SystemExit(f"results differ from plain's by {worst}, allowed is {allowed:.0e}")

    def _row(self, errors: dict[str, float], times: dict[str, list[float]]) -> dict[str, Any]:
        """Of either side the fastest call, by the geometric mean of its rounds."""
        means = {name: math.exp(math.fsum(map(math.log, each)) / len(each)) for name, each in times.items()}
        fastest = {
            way: min((name for name in times if name.split()[0] == way), key=means.__getitem__)
            for way in self.given.ways
        }
        rival = min((fastest[way] for way in RIVALS if way in fastest), key=means.__getitem__)
        ratios = {way: Ratio.of_rounds(times[rival], times[name]) for way, name in fastest.items()}
        return {
            "us": means, "fastest": fastest, "rival": rival, "error": max(errors.values(), key=_nan_first),
            "ratios": {way: dataclasses.asdict(ratio) for way, ratio in ratios.items() if way not in RIVALS},
        }  # fmt: skip

    def _tokens(self, shape: tuple[int, int], own: bool = False) -> Tensor:
        """The same on every rank, or a rank's own."""
        generator = torch.Generator().manual_seed(5 + (dist.get_rank() if own else 0))
        return torch.randint(0, self.sizes.vocabulary, shape, generator=generator).to(self.device)

    def _forget(self) -> None:
        torch.compiler.reset()
        self.context.release()
        if self.on_gpu:
            torch.cuda.empty_cache()


def _nan_first(value: float) -> tuple[bool, float]:
    return math.isnan(value), value


def phase_of(client: str, name: str) -> Phase:
    return next(phase for phase in PHASES[client] if phase.name == name)


def line(row: Mapping[str, Any]) -> str:
    """A row of the table: the fastest of our ways against the fastest of the others."""
    means, ratios, fastest = row["us"], row["ratios"], row["fastest"]
    best = max(ratios, key=lambda way: ratios[way]["value"])
    ratio, rival = Ratio(**ratios[best]), row.get("rival", fastest["plain"])
    flags = [f"{way} is slower than the others" for way, each in ratios.items() if each["value"] + each["error"] < 1]
    if row.get("not_captured"):
        flags.append(f"eager alone, not captured ({row['not_captured'][:60]})")
    if ratio.value < TARGETS[row["phase"]]:
        flags.append(f"under {TARGETS[row['phase']]}")
    cells = [
        row["phase"], str(row["tokens"]), f"{means[rival]:.0f}", f"{means[fastest[best]]:.0f} ({best})",
        str(ratio), ", ".join(f"{name} {mean:.0f}" for name, mean in means.items()), f"{row['error']:.0e}",
        ", ".join(flags),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def untuned(given: argparse.Namespace, sizes: Sizes, context: autotune.Context) -> list[str]:
    """The problems of these phases for which the database has no entry."""
    asked = wanted(given, sizes, context.heap.world_size)
    return [str(problem) for problem in asked if context.choose(problem).source != "exact"]


def wanted(given: argparse.Namespace, sizes: Sizes, ranks: int) -> list[Any]:
    """The problems of all phases, each once."""
    dtype = "bf16" if torch.cuda.is_available() else "fp32"
    phases = [phase_of(given.client, name) for name in given.phases]
    if given.client == "mixture":
        counts = dict.fromkeys(m for phase in phases for m in phase.tokens(sizes))
        return [each for m in counts for each in problems_of_mixture(sizes, m, ranks, dtype)]
    return list(dict.fromkeys(each for phase in phases for each in problems(phase, sizes, ranks, dtype)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", choices=CLIENTS, default="pytorch")
    parser.add_argument("--phases", nargs="+", metavar="PHASE", help="default: all of the client's")
    parser.add_argument("--ways", nargs="+", choices=(*RIVALS, "styles", "fusing"), help="default: all that run here")
    parser.add_argument("--tokens", nargs="+", type=int, metavar="M", help="only these numbers of tokens")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tune", type=float, metavar="SECONDS", help="tune each problem first, at least 5 s")
    parser.add_argument("--trials", type=int, help="instead of seconds, for each problem")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no new row later than that")
    parser.add_argument("--tiny", action="store_true", help="sizes that the interpreter can do")
    parser.add_argument("--layers", type=int, help="default: 4, of the mixture 2")
    parser.add_argument("--heap-gib", type=float, default=8.0, help="symmetric heap of each rank")
    parser.add_argument("--db", help="database of tuned configs; default: the user's")
    parser.add_argument("--collect", type=Path, metavar="FILE", help="write what is called there, and measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--until", type=float, default=math.inf, help=argparse.SUPPRESS)
    given = parser.parse_args()
    known = [phase.name for phase in PHASES[given.client]]
    given.phases = given.phases or known
    if unknown := set(given.phases) - set(known):
        parser.error(f"--phases {' '.join(sorted(unknown))}: {given.client} has {', '.join(known)}")
    theirs = RIVALS if given.client == "mixture" else RIVALS[:1]
    fusing = torch.cuda.is_available() and given.client != "mixture"
    given.ways = given.ways or [*theirs, "styles", *(["fusing"] if fusing else [])]
    if given.ways[0] != "plain" or len(given.ways) < 2:
        parser.error("--ways: plain comes first, and is what others are compared with")
    if not torch.cuda.is_available() and not given.tiny:
        parser.error("no GPU found; --tiny runs toy sizes under Triton's interpreter")
    return given


def lead(given: argparse.Namespace, sizes: Sizes) -> int:
    """Tune, then start the ranks with the same arguments; the exit code."""
    until = time.time() + given.minutes * 60
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    if given.tune is not None or given.trials is not None:
        asked = wanted(given, sizes, given.ranks)
        file = Path(f"{given.json or given.client}.problems.yaml")
        seconds = dict.fromkeys(asked, given.tune) if given.tune is not None else None
        file.write_text(write_list([Call("", problem, 1) for problem in asked], seconds=seconds))
        words = [sys.executable, "-m", "autotune", "model", str(file)]
        words += ["--db", given.db] if given.db else []
        words += ["--trials", str(given.trials)] if given.trials is not None else []
        subprocess.run(words, env=environment)  # what fails is named there, and runs with a default config
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(given.ranks)]
    return subprocess.run([*launcher, *sys.argv, "--until", str(until)], env=environment).returncode


def measure(given: argparse.Namespace, sizes: Sizes, context: autotune.Context) -> None:
    """Print and keep the rows, those of an earlier run among them."""
    before = json.loads(given.json.read_text())["rows"] if given.json and given.json.exists() else []
    shared = [before, given.until]
    dist.broadcast_object_list(shared, 0, group=context.group)
    rows, until = shared
    first = dist.get_rank() == 0
    if first and not given.collect:
        print("\n".join([HEADER, *map(line, rows)]), flush=True)
    machine = {**where(context), **dataclasses.asdict(sizes), "client": given.client}
    for row in Bench(given, sizes, context).rows({(row["phase"], row["tokens"]) for row in rows}):
        late = [time.time() > until]
        dist.broadcast_object_list(late, 0, group=context.group)
        if not given.collect:
            rows.append(row)
            if first:
                print(line(row), flush=True)
                if given.json:
                    given.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")
        if late[0]:
            if first:
                print("the time is over; the same command goes on")
            break
    if not given.collect and (missing := untuned(given, sizes, context)) and first:
        print("\nnot tuned:", *missing, sep="\n  ")


def main() -> int:
    given = arguments()
    small, large = (TINY_MIXTURE, MIXTURE) if given.client == "mixture" else (TINY, Sizes())
    sizes = small if given.tiny else large
    sizes = dataclasses.replace(sizes, layers=given.layers or sizes.layers)
    if given.tokens:
        some = {name: tuple(m for m in getattr(sizes, name) if m in given.tokens) for name in TOKENS}
        sizes = dataclasses.replace(sizes, **some)
    if "LOCAL_RANK" not in os.environ:
        return lead(given, sizes)
    start_ranks()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 512
    with autotune.Context(int((0.05 if given.tiny else given.heap_gib) * (1 << 30)), url=given.db) as context:
        with autotune.collect() if given.collect else nullcontext(Counter()) as called:
            measure(given, sizes, context)
        if dist.get_rank() == 0 and given.collect:
            called.write(given.collect)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
