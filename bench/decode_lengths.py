"""Flash decode for batches of any lengths: GB/s of KV read on each GPU, with the exchange, by one config.

    torchrun --nproc-per-node 2 bench/decode_lengths.py
    … --config programs_per_head=66,num_stages=4 --config reducer=last    changes of the tuned config, or the default's
    … --config plain --forms "pages of 16"                                only some of it; plain: no change

Our operator is captured in a CUDA graph once per form and config, and replayed with one batch of lengths after another;
each result is compared with the reference. *of even* is over the rate where all sequences are as long as they may be.
FlashInfer's batch decode, where it is installed, is the attention alone, on one GPU.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tables
import torch
import torch.distributed as dist
from arguments import demand_gpus, new_parser, some_of
from outside import start_ranks
from outside_cases import FAR
from rival_flashinfer import decode as flashinfer_decode

import autotune
from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.flash_decode.reference import attention, joined
from autotune.model_runs.clock import TOY, Clock, Plan, captured
from autotune.task import Task
from autotune.workloads import workload

FORMS: dict[str, dict[str, Any]] = {
    "pages of 16": {"page_size": 16},
    "pages of 1": {"page_size": 1},
    "pages of 64": {"page_size": 64},
    "fp8": {"page_size": 16, "kv_dtype": "fp8", "kv_scales": "head"},
    "result=heads": {"page_size": 16, "result": "heads"},
}

SIZES = {"batch": 16, "kv_len": 32768, "q_heads": 64, "kv_heads": 8, "head_dim": 128}
TINY = {"batch": 3, "kv_len": 256, "q_heads": 4, "kv_heads": 2, "head_dim": 64}

LARGE = 64 << 20
"""Bytes of KV from which on a batch should be read at nearly the rate of even lengths."""

HEADER = tables.head(["form", "config", "lengths", "MB", "µs", "GB/s", "of even", "FlashInfer, GB/s", "error"], "lll")


def batches(batch: int, longest: int) -> dict[str, list[int]]:
    drawn = random.Random(0)
    one_long = {rest: [longest] + [rest] * (batch - 1) for rest in (longest // 16, longest // 256)}
    return {
        f"all {longest}": [longest] * batch,
        f"all {longest // 4}": [longest // 4] * batch,
        "half empty": [longest, 0] * (batch // 2) + [longest] * (batch % 2),
        "geometric, 0.75": [int(longest * 0.75**place) for place in range(batch)],
        **{f"one {longest}, rest {rest}": lengths for rest, lengths in one_long.items()},
        "in even steps": [longest * (place + 1) // batch for place in range(batch)],
        "random": [drawn.randint(1, longest) for _ in range(batch)],
        "all 777": [min(777, longest)] * batch,
        f"one {longest}, rest empty": [longest] + [0] * (batch - 1),
    }


class Form:
    def __init__(self, context: autotune.Context, problem: FlashDecode, plan: Plan) -> None:
        self.context, self.problem = context, problem
        self._clock = Clock(context.heap.device, context.group, plan)
        task = Task(problem, context.machine)
        self.tensors = workload("flash_decode").operation(task, context.heap, context.spin_limit)._tensors

    def ours(self, config: autotune.Config) -> torch.Tensor:
        each = self.tensors
        return autotune.flash_decode(
            self.context, each.q, each.k_cache, each.v_cache, each.block_table, each.lengths, k_scale=each.k_scale,
            v_scale=each.v_scale, result=self.problem.result, config=config,
        )  # fmt: skip

    def time(self, call: Callable[[int], object]) -> float:
        return statistics.median(self._clock.busy({"": call}, 1)[""])

    def set_lengths(self, lengths: list[int]) -> None:
        self.tensors.lengths.copy_(torch.tensor(lengths, dtype=torch.int32))

    def bytes_of(self, lengths: list[int]) -> int:
        return 2 * sum(lengths) * self.problem.kv_heads * self.problem.head_dim * self.problem.cache_element_size

    def right(self) -> torch.Tensor:
        """The result of the present lengths, of all heads or this rank's. Collective."""
        out, lse = attention(self.problem, self.tensors, self.tensors.q.unsqueeze(0))
        part = torch.cat([out, lse.unsqueeze(-1)], dim=-1)[0].cpu()
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part, group=self.context.group)
        out, lse = parts[0][..., :-1], parts[0][..., -1]
        for each in parts[1:]:
            out, lse = joined(out, lse, each[..., :-1], each[..., -1])
        owned = self.problem.owned_heads
        return out.narrow(1, dist.get_rank() * owned, owned) if owned else out

    def error(self, result: torch.Tensor, right: torch.Tensor) -> float:
        """|found - right| / |right|, the largest of all ranks, NaN included; of an empty result its own size."""
        found = result.float().cpu()
        distance = (found - right).norm() / right.norm().clamp(min=1e-20)
        empty = right.flatten(1).norm(dim=1) == 0
        worst = torch.nan_to_num(torch.maximum(distance, found[empty].abs().sum()), nan=float("inf"))
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=self.context.group)
        return float(worst)


def measure(form: Form, name: str, changes: list[str], rival: bool) -> None:
    """All batches with each config in turn, printed as they come."""
    problem, first = form.problem, dist.get_rank() == 0
    chosen = form.context.choose(problem)
    task = Task(problem, form.context.machine)
    lengths_of = batches(problem.batch, problem.kv_len)
    rights, rivals = {}, {}
    for label, lengths in lengths_of.items():
        form.set_lengths(lengths)
        rights[label] = form.right()
        rivals[label] = rival_rate(form, lengths) if rival else None
    for change in changes:
        config = changed(chosen.config, change)
        if (refused := workload("flash_decode").space.violation(config, task)) is not None:
            print(f"{name}, {change}: {refused}" if first else "", end="\n" * first, flush=True)
            continue
        if first:
            print(f"{name}, {change} ({chosen.source}): {config}", flush=True)
        form.set_lengths(lengths_of[next(iter(lengths_of))])
        with replayed(form, config) as (replay, result):
            even = None
            for label, lengths in lengths_of.items():
                form.set_lengths(lengths)
                replay(0)
                error = form.error(result(), rights[label])
                taken = form.time(replay)
                error = max(error, form.error(result(), rights[label]))
                form.context.check()
                rate = form.bytes_of(lengths) / taken / 1e3
                even = even or rate
                theirs = f"{rivals[label]:.0f}" if rivals[label] else ""
                slow = rate < 0.9 * even and form.bytes_of(lengths) >= LARGE
                cells = [name, change, label, f"{form.bytes_of(lengths) / 1e6:.1f}", f"{taken:.1f}", f"{rate:.0f}",
                         f"{rate / even:.3f}{' slow' * slow}", theirs, f"{error:.0e}"]  # fmt: skip
                if first:
                    print(tables.row(cells), flush=True)
                if not error <= FAR[problem.dtype] * 2:
                    raise SystemExit(f"{name}, {change}, {label}: wrong by {error:.1e}")


@contextmanager
def replayed(
    form: Form, config: autotune.Config
) -> Iterator[tuple[Callable[[int], object], Callable[[], torch.Tensor]]]:
    """Our operator in a CUDA graph, and its result; without a GPU a call."""
    if form.context.heap.device.type == "cuda":
        with captured(lambda _: form.ours(config), 1) as (replay, results):
            yield replay, lambda: results[0]
            results.clear()
    else:
        yield lambda _: form.ours(config), lambda: form.ours(config)


def rival_rate(form: Form, lengths: list[int]) -> float | None:
    """FlashInfer's GB/s in a CUDA graph; None where it is not installed, or does not take these."""
    try:
        call = flashinfer_decode(form.tensors, lengths)
        with captured(lambda _: call(), 1) as (replay, _):
            return form.bytes_of(lengths) / form.time(replay) / 1e3
    except Exception as error:  # noqa: BLE001  a rival's, whatever it is
        if dist.get_rank() == 0:
            print(f"FlashInfer: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return None


def changed(config: autotune.Config, change: str) -> autotune.Config:
    if change == "plain":
        return config
    pairs = (pair.split("=") for pair in change.split(","))
    return config.replace(**{name: int(value) if value.isdecimal() else value for name, value in pairs})


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--config", action="append", metavar="NAME=VALUE,…", help="again for more; default: plain")
    parser.add_argument("--forms", type=some_of(FORMS), default=[*FORMS], help=f"default: {','.join(FORMS)}")
    parser.add_argument("--db", help="database of tuned configs; default: the user's")
    parser.add_argument("--toy", action="store_true", help="tiny problems, few calls: does it work at all?")
    given = parser.parse_args()
    demand_gpus(parser, given.toy)
    start_ranks()
    plan, sizes = (TOY, TINY) if given.toy else (Plan(rounds=3), SIZES)
    base = FlashDecode(**sizes, world_size=dist.get_world_size())
    with autotune.Context((64 if given.toy else 1024) << 20, url=given.db) as context:
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks, {context.machine.device}\n\n{HEADER}", flush=True)
        for name in given.forms:
            form = Form(context, dataclasses.replace(base, **FORMS[name]), plan)
            measure(form, name, given.config or ["plain"], rival=not given.toy)
            del form
            context.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
