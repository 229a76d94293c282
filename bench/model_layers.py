"""Layers of a Llama-70B, or of a mixture, with random weights: parallelism of others, compiled, against ours.

    python bench/model_layers.py --client transformers --phases prefill decode --tune 5 --minutes 4 --json FILE
    python bench/model_layers.py --client pytorch --phases train --tune 5 --minutes 4 --json FILE
    python bench/model_layers.py --client mixture --tune 8 --minutes 8 --json FILE
    python bench/model_layers.py --tiny                          without GPUs: does it work at all?

It first tunes what the phases call, ``--tune`` seconds for each problem, by ``tune model``, then starts a rank on each
GPU. What is in the database or in FILE is not done again: the same command continues where an earlier one stopped.

The ways: "plain" is the client under its own plan; "styles" is autotune.nn.tuned(plan), for transformers
autotune.nn.transformers.parallelize; "fusing" is plain with torch.compile(options=autotune.fusing(context)); those of
the mixture are in mixture_client.py, and its tokens are per rank. All are compiled. "prefill-sp" and PyTorch's "train"
are sequence parallel (all-gather, reduce-scatter), all else is replicated (all-reduce). Decode is a step of a batch
without its KV cache, which is the same in all ways. Prefill and decode are also captured in CUDA graphs, but for what
the host reads counts in; the faster one of either counts. Times are wall clock, of the slowest rank.
Logits and losses are compared with plain's. "of the limits" is what ours saved, over what the operators would save at
their limits (the slower part of each alone), as their tuning measured the parts; "of the winners", over what they saved
there. An error of one rank ends all at once.
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
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from arguments import output_file, positive, whole
from mixture_client import MIXTURE, TINY_MIXTURE, expert_parallelism, mixture
from mixture_client import calls as calls_of_mixture
from model_clients import PHASES, TINY, Phase, Sizes, calls, pytorch, transformers
from outside import start_ranks, where
from torch import nn
from torch.distributed.tensor import DTensor

import autotune
from autotune.model_runs.comparison import PLAIN, RIVALS, WAYS, Comparison, Row, best, called_in, row
from autotune.model_runs.ranks import ending_at_once
from autotune.models.forward import Call
from autotune.models.listed import write_list
from autotune.models.promise import Promise, promised
from autotune.outcome import Regime
from autotune.tuning.effort import SHORTEST

Tensor = torch.Tensor

CLIENTS = {"pytorch": pytorch, "transformers": transformers, "mixture": mixture}

EAGER = {"mixture": ("plain",)}
"""By client: the ways that cannot be captured."""

LOSS_TOLERANCE = 1e-2
"""Largest difference of a training step's loss from plain's, as a share of plain's first loss. With every hundredth
weight moved by a bit, plain is 4e-3 away from itself once it knows its one batch by heart, while its losses, by then
near zero, differ by a fifth.
"""

GRADIENT_TOLERANCE = 5e-2
"""Largest distance of a parameter's first gradient from plain's, over its norm: AdamW, and so the losses, do not see a
gradient that is wrong by a factor. With every hundredth weight moved by a bit, plain is 1e-2 away from itself.
"""

LEARNING_RATE = 1e-5
"""So small that the losses still fall at the last step."""

TARGETS = {"prefill": 1.06, "prefill-sp": 1.06, "decode": 1.08, "train": 1.05}
"""Plain's time over that of the faster one of our ways; no way is to be under 1."""

TOKENS = ("prefill", "decode", "train")
"""The fields of ``Sizes`` that hold numbers of tokens."""

TUNING = 0.55
"""Share of ``--minutes`` after which tuning ends."""

HEADER = """\
| phase | tokens | plain, µs | ours, µs | plain / ours | of the limits | of the winners | each way, µs | error | flags |
|---|---:|---:|---:|---:|---:|---:|---|---:|---|"""


class Bench:
    """A client's models by each way, from the same weights."""

    def __init__(self, given: argparse.Namespace, sizes: Sizes, context: autotune.Context) -> None:
        self.given, self.sizes, self.context = given, sizes, context
        self.comparison = Comparison(context)

    def rows(self, done: set[tuple[str, int]]) -> Iterator[Row]:
        """Of each phase and size that is not done."""
        for name in self.given.phases:
            phase = phase_of(self.given.client, name)
            left = [m for m in phase.tokens(self.sizes) if (name, m) not in done]
            if not left:
                continue
            models = {} if phase.training else {way: self.model(way, phase) for way in self.given.ways}
            for m in left:
                begun = time.monotonic()
                found = self.training(phase, m) if phase.training else self.inference(models, phase, m)
                if not self.given.collect:
                    found["promise"] = dataclasses.asdict(self.promise(phase, m, called_in(found, self.context.regime)))
                yield {"phase": name, "tokens": m, **found, "seconds": time.monotonic() - begun}
            models.clear()
            self.comparison.forget()

    def model(self, way: str, phase: Phase) -> nn.Module:
        """One way's, shared out and compiled: as a whole for training, else layer by layer."""
        with self.comparison.built(torch.bfloat16 if self.comparison.on_gpu else torch.float32):
            build = CLIENTS[self.given.client]
            made = build(self.sizes, phase, self.comparison.mesh, self.context if way == "styles" else None, way)
        # One layer's code serves all of them. A backward from an eager part into a compiled one breaks DTensors.
        layers: Any = [made] if phase.training else made.layers
        self.comparison.compiled(way, *layers)
        return made

    def inference(self, models: Mapping[str, nn.Module], phase: Phase, count: int) -> Row:
        tokens = self._tokens((count, 1) if phase.sizes == "decode" else (1, count), phase.own_tokens)
        if self.given.collect:
            with torch.no_grad():
                for model in models.values():
                    model(tokens)
            return {}
        return self.comparison.forwards(models, tokens, eager=EAGER.get(self.given.client, ()))

    def training(self, phase: Phase, count: int) -> Row:
        """Losses over all steps and the first one's gradients, then the times of some more."""
        tokens = self._tokens((1, count + 1))
        dtensors = self.given.client == "pytorch"  # transformers leaves the norms' weights plain tensors
        steps = {way: Step(self.model(way, phase), tokens, foreach=dtensors) for way in self.given.ways}
        for step in steps.values():
            step.first()
        apart = {way: step.gradients_from(steps[PLAIN]) for way, step in steps.items()}
        for step in steps.values():
            step.gradients.clear()
        if self.given.collect:
            return {}
        gradients = self.comparison.check(apart, GRADIENT_TOLERANCE)
        losses = {way: [step.loss, *(float(step()) for _ in range(1, self.sizes.steps))] for way, step in steps.items()}
        pairs = {way: zip(mine, losses[PLAIN], strict=True) for way, mine in losses.items()}
        errors = {
            way: max(abs(mine - right) for mine, right in pair) / steps[PLAIN].loss for way, pair in pairs.items()
        }
        worst = self.comparison.check(errors, LOSS_TOLERANCE)
        return {**row(self.comparison.clock.busy(steps, 1), worst), "gradients": gradients, "losses": losses}

    def promise(self, phase: Phase, count: int, regime: Regime) -> Promise:
        """The tuned operators' times in a forward or a step that calls them in a regime."""
        asked = wanted(self.given.client, phase, self.sizes, count, self.context.heap.world_size)
        chosen = {each.problem: self.context.choose(each.problem) for each in asked}
        exact = {problem: found.entry if found.source == "exact" else None for problem, found in chosen.items()}
        return promised(asked, exact.__getitem__, regime)

    def _tokens(self, shape: tuple[int, int], own: bool = False) -> Tensor:
        """The same on every rank, or a rank's own."""
        generator = torch.Generator().manual_seed(5 + (dist.get_rank() if own else 0))
        return torch.randint(0, self.sizes.vocabulary, shape, generator=generator).to(self.comparison.device)


class Step:
    """A training step of one model, always with the same tokens: forward, backward and AdamW."""

    def __init__(self, model: nn.Module, tokens: Tensor, foreach: bool) -> None:
        self.model, self.tokens = model, tokens
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=foreach)
        self.loss = math.nan
        self.gradients: dict[str, Tensor] = {}

    def __call__(self, _: int = 0) -> Tensor:
        loss = self._backward()
        self._update()
        return loss

    def first(self) -> None:
        """A step after which ``loss`` and ``gradients``, this rank's share of each, are there."""
        self.loss = float(self._backward())
        self.gradients = {name: own_share(parameter) for name, parameter in self.model.named_parameters()}
        self._update()

    def gradients_from(self, plain: Step) -> float:
        """The largest distance of a parameter's first gradient from plain's, over the norm of that."""
        return max(
            float((mine.float() - right.float()).norm() / right.float().norm())
            for mine, right in ((self.gradients[name], right) for name, right in plain.gradients.items())
        )

    def _backward(self) -> Tensor:
        logits = self.model(self.tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    def _update(self) -> None:
        self.optimiser.step()
        self.optimiser.zero_grad()


def own_share(parameter: nn.Parameter) -> Tensor:
    """This rank's share of the parameter's gradient, laid out as the parameter is."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
        gradient = gradient.redistribute(placements=parameter.placements).to_local()
    return gradient.clone()


def phase_of(client: str, name: str) -> Phase:
    return next(phase for phase in PHASES[client] if phase.name == name)


def line(found: Row) -> str:
    """A row of the table: the fastest of our ways against the fastest of the others."""
    means, ratios, fastest, promise = found["us"], found["ratios"], found["fastest"], Promise(**found["promise"])
    way, ratio = best(found)
    rival = means[found["rival"]]
    saved = rival - means[fastest[way]]
    flags = [f"{name} is slower than the others" for name, each in ratios.items() if each["value"] + each["error"] < 1]
    if found.get("not_captured"):
        flags.append(f"eager alone, not captured ({found['not_captured'][:60]})")
    if promise.untuned:
        flags.append(f"{promise.untuned} calls not tuned")
    if ratio.value < TARGETS[found["phase"]]:
        flags.append(f"under {TARGETS[found['phase']]}")
    cells = [
        found["phase"], str(found["tokens"]), f"{rival:.0f}", f"{means[fastest[way]]:.0f} ({way})",
        str(ratio), _share(saved, promise.most), _share(saved, promise.gain),
        ", ".join(f"{name} {mean:.0f}" for name, mean in means.items()), f"{found['error']:.0e}", ", ".join(flags),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _share(saved: float, promised: float) -> str:
    return f"{saved / promised:.2f} of {promised:.0f} µs" if promised > 0 else ""


def untuned(given: argparse.Namespace, sizes: Sizes, context: autotune.Context) -> list[str]:
    """The problems of these phases for which the database has no entry."""
    asked = all_wanted(given, sizes, context.heap.world_size)
    return [f"{each.problem}" for each in asked if context.choose(each.problem).source != "exact"]


def wanted(client: str, phase: Phase, sizes: Sizes, count: int, ranks: int) -> list[Call]:
    """The operators of one forward, or of a training step."""
    dtype = "bf16" if torch.cuda.is_available() else "fp32"
    if client == "mixture":
        return list(calls_of_mixture(sizes, count, ranks, dtype))
    return list(calls(phase, sizes, count, ranks, dtype))


def all_wanted(given: argparse.Namespace, sizes: Sizes, ranks: int) -> list[Call]:
    """The calls of all phases, each problem once."""
    phases = [phase_of(given.client, name) for name in given.phases]
    asked = [
        each for phase in phases for m in phase.tokens(sizes) for each in wanted(given.client, phase, sizes, m, ranks)
    ]
    return list({each.problem: each for each in asked}.values())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", choices=CLIENTS, default="pytorch")
    parser.add_argument("--phases", nargs="+", metavar="PHASE", help="default: all of the client's")
    parser.add_argument("--ways", nargs="+", choices=(*RIVALS, *WAYS[1:]), help="default: all that run here")
    parser.add_argument("--tokens", nargs="+", type=whole, metavar="M", help="only these numbers of tokens")
    parser.add_argument("--ranks", type=whole, default=2)
    parser.add_argument("--tune", type=positive, metavar="SECONDS", help="tune each problem first, at least 5 s")
    parser.add_argument("--trials", type=whole, help="instead of seconds, for each problem")
    parser.add_argument("--effort", help="that of tune; quick has shorter finals")
    parser.add_argument(
        "--minutes", type=positive, default=math.inf, help="no new row later than that, tuning included"
    )
    parser.add_argument("--tiny", action="store_true", help="sizes that the interpreter can do")
    parser.add_argument("--layers", type=whole, help="default: 4, of the mixture 2")
    parser.add_argument("--heap-gib", type=positive, default=8.0, help="symmetric heap of each rank")
    parser.add_argument("--db", help="database of tuned configs; default: the user's")
    parser.add_argument(
        "--collect", type=output_file, metavar="FILE", help="write what is called there, and measure nothing"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--until", type=float, default=math.inf, help=argparse.SUPPRESS)
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


def lead(given: argparse.Namespace, sizes: Sizes) -> int:
    """Tune, then start the ranks with the same arguments; the exit code."""
    until = time.time() + given.minutes * 60
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    if given.tune is not None or given.trials is not None:
        asked = all_wanted(given, sizes, given.ranks)
        file = Path(f"{given.json or given.client}.problems.yaml")
        seconds = {each.problem: given.tune for each in asked} if given.tune is not None else None
        file.write_text(write_list(asked, seconds=seconds))
        words = [sys.executable, "-m", "autotune", "model", str(file)]
        words += ["--db", given.db] if given.db else []
        words += ["--trials", str(given.trials)] if given.trials is not None else []
        words += ["--effort", given.effort] if given.effort else []
        tune(words, environment, given.minutes * 60 * TUNING)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(given.ranks)]
    return subprocess.run([*launcher, *sys.argv, "--until", str(until)], env=environment).returncode


def tune(words: list[str], environment: Mapping[str, str], seconds: float) -> None:
    """What fails, or is interrupted since its time is over, runs with a default config; the command names it."""
    started = subprocess.Popen(words, env=environment)
    try:
        started.wait(None if math.isinf(seconds) else seconds)
    except subprocess.TimeoutExpired:
        started.send_signal(signal.SIGINT)
        started.wait()


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
    for found in Bench(given, sizes, context).rows({(each["phase"], each["tokens"]) for each in rows}):
        late = [time.time() > until]
        dist.broadcast_object_list(late, 0, group=context.group)
        if not given.collect:
            rows.append(found)
            if first:
                print(line(found), flush=True)
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
    with ending_at_once():
        rank(given, sizes)
    return 0


def rank(given: argparse.Namespace, sizes: Sizes) -> None:
    """One rank's part."""
    start_ranks()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 512
    with autotune.Context(int((0.05 if given.tiny else given.heap_gib) * (1 << 30)), url=given.db) as context:
        with autotune.collect() if given.collect else nullcontext(Counter()) as called:
            measure(given, sizes, context)
        if dist.get_rank() == 0 and given.collect:
            called.write(given.collect)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
