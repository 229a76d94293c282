"""Layers of a Llama-70B with random weights: tensor parallelism of torch, compiled, against the same by our styles.

torchrun --nproc-per-node 2 bench/model_layers.py                      prefill, decode and training steps
torchrun --nproc-per-node 2 bench/model_layers.py --collect FILE       its problems, a list for "tune fleet"; no times
torchrun --nproc-per-node 2 bench/model_layers.py --transformers       a Llama of Hugging Face transformers instead
TRITON_INTERPRET=1 torchrun --nproc-per-node 2 bench/model_layers.py --tiny    without GPUs: does it work at all

The ways: "plain" is the plan of ``parallelize_module``; "styles" is autotune.nn.tuned(plan); "fusing" is plain with
torch.compile(options=autotune.fusing(context)). All are compiled. Prefill and decode are replicated (all-reduce), and
prefill is sequence parallel, too (all-gather, reduce-scatter), as training is. Each way is also captured in a graph
for prefill and decode; the faster one of either counts. Decode is a step of a batch without its KV cache, which is the
same in all ways. A time is that of all layers: of each repeat the slowest rank counts, of the repeats the median; the
ways take turns. Logits and losses are compared with plain's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import autotune
from autotune.machine import versions

Tensor = torch.Tensor
Call = Callable[[], Any]

TOLERANCE = 3e-2
"""Largest |logits - plain's| / |plain's| (Frobenius): every way rounds to bf16 at each step through the layers."""

PHASES = ("prefill", "decode", "train")

LOSS_TOLERANCE = 2e-2
"""Largest difference of a training step's loss from plain's, as a share."""


@dataclass(frozen=True)
class Sizes:
    """Those of Llama-70B, but for the vocabulary, which layers do not see."""

    hidden: int = 8192
    ffn: int = 28672
    heads: int = 64
    kv_heads: int = 8
    vocabulary: int = 4096
    layers: int = 4
    prefill: tuple[int, ...] = (512, 2048, 8192)
    decode: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    train: int = 4096
    steps: int = 20
    repeats: int = 20


TINY = Sizes(
    hidden=32, ffn=48, heads=4, kv_heads=2, vocabulary=24, layers=1, prefill=(8,), decode=(2,), train=8, steps=2,
    repeats=1,
)  # fmt: skip


class Attention(nn.Module):
    """Without rotary positions, which take no part in communication."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_dim = sizes.hidden // sizes.heads
        self.wq = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.wk, self.wv = (nn.Linear(sizes.hidden, sizes.kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.wo = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (w(x).view(batch, tokens, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.wo(heads.transpose(1, 2).reshape(batch, tokens, -1))
        return out


class Mlp(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(sizes.hidden, sizes.ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.ffn, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(sizes.hidden), nn.RMSNorm(sizes.hidden)
        self.attention, self.mlp = Attention(sizes), Mlp(sizes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Llama(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def plan(sequence_parallel: bool) -> dict[str, ParallelStyle]:
    """As in PyTorch's tutorial on tensor parallelism."""
    columns = ("attention.wq", "attention.wk", "attention.wv", "mlp.gate", "mlp.up")
    made: dict[str, ParallelStyle] = {f"layers.*.{name}": ColwiseParallel() for name in columns}
    layout = Shard(1) if sequence_parallel else Replicate()
    for name in ("attention.wo", "mlp.down"):
        made[f"layers.*.{name}"] = RowwiseParallel(output_layouts=layout)
    made["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=layout)
    made["head"] = ColwiseParallel(input_layouts=layout, output_layouts=Replicate())
    if sequence_parallel:
        for name in ("attention", "mlp"):
            gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            made[f"layers.*.{name}"] = gathered
        for name in ("layers.*.attention_norm", "layers.*.mlp_norm", "norm"):
            made[name] = SequenceParallel()
    return made


class Bench:
    """Models by each way, from the same weights, and a clock that all ranks share."""

    def __init__(self, sizes: Sizes, context: autotune.Context, mesh: DeviceMesh, given: argparse.Namespace) -> None:
        self.sizes, self.context, self.mesh, self.given = sizes, context, mesh, given
        self.device = context.heap.device
        self.on_gpu = self.device.type == "cuda"
        self.ways = ["plain", "styles", "fusing"] if self.on_gpu else ["plain", "styles"]
        self._flag = torch.zeros(1, device=self.device)

    def model(self, way: str, sequence_parallel: bool) -> nn.Module:
        """One way's, shared out and compiled."""
        torch.manual_seed(17)
        dtype = torch.bfloat16 if self.on_gpu else torch.float32
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with self.device:
                made = self._transformers(way) if self.given.transformers else self._plain(way, sequence_parallel)
        finally:
            torch.set_default_dtype(before)
        if way == "fusing":
            return torch.compile(made, dynamic=False, options=autotune.fusing(self.context))
        return torch.compile(made, dynamic=False, backend="inductor" if self.on_gpu else "aot_eager")

    def _plain(self, way: str, sequence_parallel: bool) -> nn.Module:
        chosen: Mapping[str, ParallelStyle] = plan(sequence_parallel)
        if way == "styles":
            ours = autotune.nn.tuned(chosen, self.context)
            if sequence_parallel and not self.given.gather_each:
                # Keys and values are too narrow to hide a gather each: the three share one.
                ours["layers.*.attention"] = chosen["layers.*.attention"]
            chosen = ours
        return parallelize_module(Llama(self.sizes), self.mesh, chosen)

    def _transformers(self, way: str) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.distributed.configuration_utils import DistributedConfig
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism

        class Logits(nn.Module):
            def __init__(self, model: nn.Module) -> None:
                super().__init__()
                self.model = model

            def forward(self, tokens: Tensor) -> Tensor:
                logits: Tensor = self.model(tokens, use_cache=False).logits
                return logits

        sizes = self.sizes
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=sizes.hidden, intermediate_size=sizes.ffn, num_hidden_layers=sizes.layers,
                num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads, vocab_size=sizes.vocabulary,
            )
        )  # fmt: skip
        if way == "styles":
            return Logits(autotune.nn.transformers.parallelize(model, self.mesh, self.context))
        theirs, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=self.mesh.size()))
        return Logits(apply_tensor_parallelism(model, self.mesh, theirs))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Of each phase and size."""
        phases = self.given.only
        for phase, sequence_parallel in (("prefill", False), ("prefill, sequence parallel", True), ("decode", False)):
            if phase.split(",")[0] not in phases or (sequence_parallel and self.given.transformers):
                continue
            models = {way: self.model(way, sequence_parallel) for way in self.ways}
            for count in self.sizes.decode if phase == "decode" else self.sizes.prefill:
                shape = (count, 1) if phase == "decode" else (1, count)
                yield {"phase": phase, "tokens": count, **self.inference(models, shape)}
            del models
            torch.compiler.reset()
        if "train" in phases:
            yield {"phase": "training step", "tokens": self.sizes.train, **self.training()}

    def inference(self, models: Mapping[str, nn.Module], shape: tuple[int, int]) -> dict[str, Any]:
        tokens = self._tokens(shape)
        calls: dict[str, Call] = {}
        with torch.no_grad():
            for way, model in models.items():
                calls[f"{way} eager"] = lambda model=model: model(tokens)  # type: ignore[misc]
            found = {name: call().clone() for name, call in calls.items() for _ in range(3 if self.on_gpu else 1)}
            if self.given.collect:
                return {}
            if self.on_gpu:
                for way in models:
                    calls[f"{way} graph"] = captured(calls[f"{way} eager"])
                found |= {name: call().clone() for name, call in calls.items() if name.endswith("graph")}
            right = found["plain eager"]
            errors = {name: float((logits - right).norm() / right.norm()) for name, logits in found.items()}
            return self._row(errors, TOLERANCE, self._times(calls))

    def training(self) -> dict[str, Any]:
        """A step is forward, backward and AdamW; losses over all steps, then the times of some more."""
        tokens, losses, calls = self._tokens((1, self.sizes.train + 1)), {}, {}
        for way in self.ways:
            model = self.model(way, sequence_parallel=not self.given.transformers)
            optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

            def step(model: nn.Module = model, optimiser: Any = optimiser) -> Tensor:
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
        return {**self._row(errors, LOSS_TOLERANCE, self._times(calls)), "losses": losses}

    def _row(self, errors: dict[str, float], allowed: float, times: dict[str, float]) -> dict[str, Any]:
        worst = self._worst(list(errors.values()))
        if not worst <= allowed:
            raise SystemExit(f"results differ from plain's by {worst:.1e}, allowed is {allowed:.0e}: {errors}")
        fastest = {way: min(t for name, t in times.items() if name.split()[0] == way) for way in self.ways}
        ratios = {way: fastest["plain"] / fastest[way] for way in self.ways[1:]}
        return {"us": times, "speedup": ratios, "error": worst}

    def _tokens(self, shape: tuple[int, int]) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        return torch.randint(0, self.sizes.vocabulary, shape, generator=generator).to(self.device)

    def _times(self, calls: Mapping[str, Call]) -> dict[str, float]:
        """Microseconds: of each repeat the slowest rank, of the repeats the median."""
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.sizes.repeats):
            for name, call in calls.items():
                times[name].append(self._worst([self._timed(call)]))
        return {name: statistics.median(each) for name, each in times.items()}

    def _timed(self, call: Call) -> float:
        dist.barrier(group=self.context.group)
        if not self.on_gpu:
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
        everyone: list[Any] = [None] * self.mesh.size()
        dist.all_gather_object(everyone, values, group=self.context.group)
        return float(torch.tensor(everyone, dtype=torch.float64).max())


def captured(call: Call) -> Call:
    """The call as a CUDA graph; it has been made before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def show(row: dict[str, Any], first: bool) -> None:
    if first:
        print("| phase | tokens | µs | plain's time / ours | error |\n|---|---|---|---|---|")
    times = ", ".join(f"{name} {value:.0f}" for name, value in row["us"].items())
    ratios = ", ".join(f"{name} {value:.2f}" for name, value in row["speedup"].items())
    print(f"| {row['phase']} | {row['tokens']} | {times} | {ratios} | {row['error']:.0e} |", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="sizes that the interpreter can do")
    parser.add_argument("--layers", type=int, help=f"default: {Sizes.layers}")
    parser.add_argument("--only", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--gather-each", action="store_true", help="query, key and value each gather their input")
    parser.add_argument("--transformers", action="store_true", help="a Llama of Hugging Face transformers; replicated")
    parser.add_argument("--heap-gib", type=float, default=8.0, help="symmetric heap of each rank")
    parser.add_argument("--collect", type=Path, metavar="FILE", help="write the problems there, and measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    sizes = TINY if given.tiny else Sizes()
    sizes = dataclasses.replace(sizes, layers=given.layers or sizes.layers)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    torch._dynamo.config.recompile_limit = 64
    rows = []
    with autotune.Context(int((0.05 if given.tiny else given.heap_gib) * (1 << 30))) as context:
        mesh = init_device_mesh("cuda" if on_gpu else "cpu", (dist.get_world_size(),))
        with autotune.collect() if given.collect else nullcontext(Counter()) as problems:
            for row in Bench(sizes, context, mesh, given).rows():
                if not given.collect and dist.get_rank() == 0:
                    show(row, first=not rows)
                rows.append(row)
        context.check()
        if dist.get_rank() == 0 and given.collect:
            problems.write(given.collect)
        if dist.get_rank() == 0 and given.json:
            where = {"device": context.machine.device, "world_size": dist.get_world_size(), **versions()}
            given.json.write_text(json.dumps({**where, **dataclasses.asdict(sizes), "rows": rows}, indent=2) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
