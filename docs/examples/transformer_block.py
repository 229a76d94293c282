"""Attention output and MLP of a tensor-parallel Llama-70B: plain torch with NCCL, and our operators in its place.

torchrun --nproc-per-node 4 docs/examples/transformer_block.py
python docs/examples/transformer_block.py --print-problems --world-size 4 | sh     tunes what it needs, once, before
TRITON_INTERPRET=1 torchrun --nproc-per-node 2 docs/examples/transformer_block.py --tiny     without GPUs

Decode: each rank has all rows; the two row-parallel GEMMs end in an all-reduce. Prefill, sequence parallel: each rank
has some rows; they are gathered for the column-parallel GEMM (gate and up in one) and scattered by the row-parallel
ones. Attention itself is left out: its result, a rank's heads, is an input. Both ways take the same weights.

A time is that of all layers: of each repeat the slowest rank counts, of the repeats the median; the ways take turns.
The host starts afresh for each, as it does when a token has to be sampled before the next step.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F

import autotune
from autotune.kernels.launching.collectives import all_gather_single, reduce_scatter_single
from autotune.machine import versions
from autotune.problem import Problem

Tensor = torch.Tensor
Call = Callable[[], Tensor]

TOLERANCE = 2e-2
"""Largest |found - plain| / |plain - input| (Frobenius): both ways round to bf16 at every step through the layers."""

WARM_UP = 3


@dataclass(frozen=True)
class Model:
    """Sizes; the query heads together are as wide as the hidden state."""

    hidden: int = 8192
    ffn: int = 28672
    layers: int = 4
    """Enough layers that their weights do not fit into any L2."""
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Decode: sequences, one token of each."""
    prompts: tuple[int, ...] = (512, 2048, 8192)
    """Prefill: tokens."""
    repeats: int = 30


TINY = Model(hidden=64, ffn=96, layers=2, batches=(1, 3), prompts=(8,), repeats=1)


@dataclass(frozen=True)
class Layer:
    """One rank's slices of a layer's weights, bf16, stored as [inputs, outputs]."""

    attention_out: Tensor
    """[hidden / world_size, hidden]"""
    gate_up: Tensor
    """[hidden, 2 * ffn / world_size], the gate's columns first"""
    down: Tensor
    """[ffn / world_size, hidden]"""


class Ways(Protocol):
    """How the ranks share their work."""

    def all_reduced(self, a: Tensor, b: Tensor) -> Tensor:
        """all_reduce(a @ b)"""

    def scattered(self, a: Tensor, b: Tensor) -> Tensor:
        """reduce_scatter(a @ b), this rank's rows"""

    def gathered(self, a: Tensor, b: Tensor) -> Tensor:
        """all_gather(a) @ b"""


class Plain:
    """Torch and NCCL, one operation after the other."""

    def all_reduced(self, a: Tensor, b: Tensor) -> Tensor:
        c = a @ b
        dist.all_reduce(c)
        return c

    def scattered(self, a: Tensor, b: Tensor) -> Tensor:
        c = a @ b
        mine = c.new_empty(c.shape[0] // dist.get_world_size(), c.shape[1])
        reduce_scatter_single(mine, c)
        return mine

    def gathered(self, a: Tensor, b: Tensor) -> Tensor:
        whole = a.new_empty(a.shape[0] * dist.get_world_size(), a.shape[1])
        all_gather_single(whole, a)
        return whole @ b


class Ours:
    """The same by our operators."""

    def __init__(self, context: autotune.Context) -> None:
        self._context = context

    def all_reduced(self, a: Tensor, b: Tensor) -> Tensor:
        return autotune.gemm_all_reduce(self._context, a, b)

    def scattered(self, a: Tensor, b: Tensor) -> Tensor:
        return autotune.gemm_reduce_scatter(self._context, a, b)

    def gathered(self, a: Tensor, b: Tensor) -> Tensor:
        return autotune.all_gather_gemm(self._context, a, b)


def decode(ways: Ways, layers: list[Layer], x: Tensor, heads: Tensor) -> Tensor:
    """One token for each of x's rows, which all ranks have; ``heads`` [batch, hidden / world_size]."""
    for layer in layers:
        x = x + ways.all_reduced(heads, layer.attention_out)
        x = x + ways.all_reduced(gated(normed(x) @ layer.gate_up), layer.down)
    return x


def prefill(ways: Ways, layers: list[Layer], x: Tensor, heads: Tensor) -> Tensor:
    """A prompt of which this rank has the rows x; ``heads`` [tokens, hidden / world_size]."""
    for layer in layers:
        x = x + ways.scattered(heads, layer.attention_out)
        x = x + ways.scattered(gated(ways.gathered(normed(x), layer.gate_up)), layer.down)
    return x


def normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def problems(model: Model, world_size: int) -> Iterator[tuple[str, tuple[int, ...], dict[str, int]]]:
    """The operators' problems: a workload, its sizes m, and its other dimensions."""
    rows = {"n": model.hidden, "world_size": world_size}
    for k in (model.hidden, model.ffn):
        yield "gemm_all_reduce", model.batches, {**rows, "k": k}
        yield "gemm_reduce_scatter", model.prompts, {**rows, "k": k}
    yield "all_gather_gemm", model.prompts, {"n": 2 * model.ffn, "k": model.hidden, "world_size": world_size}


def commands(model: Model, world_size: int, budget: str) -> Iterator[str]:
    """The command lines that tune all of them."""
    for name, sizes, others in problems(model, world_size):
        options = " ".join(f"--{field.replace('_', '-')} {value}" for field, value in others.items())
        ms = ",".join(str(m) for m in sizes)
        yield f"tune grid {name.replace('_', '-')} --m {ms} {options} --dtype bf16 --budget {budget}"


def sources(context: autotune.Context, model: Model, m: int, decoding: bool) -> str:
    """The sources of the operators' configs; all exact if everything was tuned."""
    types = {
        "gemm_all_reduce": autotune.GemmAllReduce, "gemm_reduce_scatter": autotune.GemmReduceScatter,
        "all_gather_gemm": autotune.AllGatherGemm,
    }  # fmt: skip
    found = []
    for name, _, others in problems(model, dist.get_world_size()):
        if (name == "gemm_all_reduce") == decoding:
            problem: Problem = types[name](m=m, **others)
            found.append(context.choose(problem).source)
    return ", ".join(dict.fromkeys(found))


class Bench:
    """The model on this rank, and a clock that all ranks share."""

    def __init__(self, model: Model, context: autotune.Context) -> None:
        self.model, self._context = model, context
        self._device, self._group = context.heap.device, context.group
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        for shared in (model.hidden, model.ffn, *model.prompts):
            if shared % self._world:
                raise SystemExit(f"{self._world} ranks cannot share {shared} evenly: take 2, 4 or 8")
        self._generator = torch.Generator(self._device).manual_seed(17)
        self._flag = torch.zeros(1, device=self._device)
        self._layers = [self._layer() for _ in range(model.layers)]

    def row(self, phase: str, m: int) -> dict[str, Any]:
        """Microseconds of one forward pass in each way, and how far ours is from plain torch's."""
        decoding = phase == "decode"
        forward = decode if decoding else prefill
        x, heads = self._drawn(m, self.model.hidden), self._drawn(m, self.model.hidden)
        x = x if decoding else x.chunk(self._world)[self._rank].contiguous()
        heads = heads.chunk(self._world, dim=1)[self._rank].contiguous()
        ways: dict[str, Ways] = {"plain": Plain(), "ours": Ours(self._context)}
        calls: dict[str, Call] = {}
        for name, way in ways.items():
            calls[f"{name} eager"] = lambda way=way: forward(way, self._layers, x, heads)  # type: ignore[misc]
        for _ in range(WARM_UP if self._on_gpu else 1):
            results = {name: call() for name, call in calls.items()}
        if self._on_gpu:
            for name in list(ways):
                calls[f"{name} graph"] = captured(calls[f"{name} eager"])
            results = {name: call() for name, call in calls.items()}
        expected = results["plain eager"]
        moved = (expected - x).float().norm()
        error = self._worst([float((found - expected).float().norm() / moved) for found in results.values()])
        if not error <= TOLERANCE:
            raise SystemExit(f"{phase}, {m} tokens: outputs differ by {error:.1e}, allowed is {TOLERANCE:.0e}")
        times = self._times(calls)
        self._context.check()
        plain, ours = (min(time for name, time in times.items() if name.startswith(way)) for way in ways)
        return {
            "phase": phase, "tokens": m, "us": times, "speedup": plain / ours, "error": error,
            "configs": sources(self._context, self.model, m, decoding),
        }  # fmt: skip

    @property
    def _on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def _layer(self) -> Layer:
        """The whole weights are the same on every rank, a slice is kept."""
        hidden, ffn, rank, world = self.model.hidden, self.model.ffn, self._rank, self._world
        gate, up = (self._drawn(hidden, ffn).chunk(world, dim=1)[rank] / hidden**0.5 for _ in range(2))
        return Layer(
            attention_out=self._drawn(hidden, hidden).chunk(world)[rank] / hidden**0.5,
            gate_up=torch.cat([gate, up], dim=1),
            down=self._drawn(ffn, hidden).chunk(world)[rank] / ffn**0.5,
        )

    def _drawn(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device, dtype=torch.bfloat16)

    def _times(self, calls: dict[str, Call]) -> dict[str, float]:
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.model.repeats):
            for name, call in calls.items():
                times[name].append(self._worst([self._timed(call)]))
        return {name: statistics.median(each) for name, each in times.items()}

    def _timed(self, call: Call) -> float:
        """Microseconds on this rank; the ranks begin together."""
        dist.barrier(group=self._group)
        if not self._on_gpu:
            begin = time.perf_counter()
            call()
            return (time.perf_counter() - begin) * 1e6
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.all_reduce(self._flag)  # lines the devices up, better than the hosts are
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3

    def _worst(self, values: list[float]) -> float:
        """The largest of all ranks, NaN if there is one."""
        everyone: list[Any] = [None] * self._world
        dist.all_gather_object(everyone, values, group=self._group)
        return float(torch.tensor(everyone, dtype=torch.float64).max())


def captured(call: Call) -> Call:
    """The call as a CUDA graph; it has been made before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="sizes that the interpreter can do")
    parser.add_argument("--layers", type=int, help=f"default: {Model.layers}")
    parser.add_argument("--heap-gib", type=float, default=4.0, help="symmetric heap of each rank")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows there too")
    parser.add_argument("--print-problems", action="store_true", help="print the commands that tune all, and stop")
    parser.add_argument("--world-size", type=int, default=4, help="for --print-problems")
    parser.add_argument("--budget", default="30s", help="for --print-problems: time for each size")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    model = TINY if given.tiny else Model()
    model = dataclasses.replace(model, layers=given.layers or model.layers)
    if given.print_problems:
        print("\n".join(commands(model, given.world_size, given.budget)))
        return
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not given.tiny:
        raise SystemExit("no GPU here, and the interpreter would take days: give --tiny, with TRITON_INTERPRET=1")
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    with autotune.Context(int((0.05 if given.tiny else given.heap_gib) * (1 << 30))) as context:
        bench, rows = Bench(model, context), []
        for phase, sizes in (("decode", model.batches), ("prefill", model.prompts)):
            for m in sizes:
                rows.append(bench.row(phase, m))
                if dist.get_rank() == 0:
                    show(rows, context, model)
                context.release()
    if dist.get_rank() == 0 and given.json is not None:
        given.json.write_text(json.dumps({**where(context), "layers": model.layers, "rows": rows}, indent=2) + "\n")
    dist.destroy_process_group()


def where(context: autotune.Context) -> dict[str, Any]:
    """The machine that the times were measured on."""
    world_size, device = context.heap.world_size, context.machine.device
    return {"world_size": world_size, "device": device, **versions()}


def show(rows: list[dict[str, Any]], context: autotune.Context, model: Model) -> None:
    """The last row as a line; the heading before the first."""
    row = rows[-1]
    if len(rows) == 1:
        print(f"{context.heap.world_size} x {context.machine.device}; µs of {model.layers} layers\n")
        print(f"| phase | tokens | {' | '.join(row['us'])} | faster over faster | error | configs |")
        print("|---" * (len(row["us"]) + 5) + "|")
    cells = [row["phase"], str(row["tokens"]), *(f"{each:.0f}" for each in row["us"].values())]
    cells += [f"{row['speedup']:.2f}", f"{row['error']:.0e}", row["configs"]]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
