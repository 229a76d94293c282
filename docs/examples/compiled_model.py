"""A decoder's layer under PyTorch's own tensor parallelism, compiled with our pass; and what the pass does with it.

    tune model config.json --tp 2 --tokens 512 --separate                # once
    torchrun --nproc-per-node 2 docs/examples/compiled_model.py config.json --tokens 512

The model knows nothing of us; one line compiles it with the pass. Without GPUs everything runs under Triton's
interpreter (TRITON_INTERPRET=1), where nothing is faster than the library.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import autotune


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.heads(part(x)) for part in (self.q, self.k, self.v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(out.transpose(1, 2).flatten(2))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, intermediate: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = Attention(hidden, heads, kv_heads)
        self.mlp = nn.ModuleDict({
            "gate": nn.Linear(hidden, intermediate, bias=False),
            "up": nn.Linear(hidden, intermediate, bias=False),
            "down": nn.Linear(intermediate, hidden, bias=False),
        })  # fmt: skip
        self.gathered = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        y = self.gathered(self.mlp_norm(x))
        return x + self.mlp["down"](nn.functional.silu(self.mlp["gate"](y)) * self.mlp["up"](y))


def parallel(layer: Layer, mesh: Any) -> None:
    """Sequence parallel: the ranks share the tokens out between attention and MLP."""
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plan = {
        "attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel(), "attention": whole, "gathered": whole,
        "attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(), "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }  # fmt: skip
    parallelize_module(layer, mesh, plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config.json of a Llama")
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    sizes = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    with torch.device(device), torch.no_grad(), autotune.Context() as context:
        model = Layer(*(config[name] for name in sizes)).to(torch.bfloat16)
        parallel(model, init_device_mesh(device.type, (ranks,)))
        x = torch.randn(1, options.tokens // ranks, config["hidden_size"], dtype=torch.bfloat16)
        plain = torch.compile(model)(x)
        torch.compiler.reset()
        tuned = torch.compile(model, options=autotune.fusing(context))(x)
        context.check()
        torch.compiler.reset()
        explained = autotune.explain(context, model, x)
        difference = ((tuned - plain).norm() / plain.norm()).item()
        if rank == 0:
            print(f"{explained}\ndifference of the outputs, compiled without and with us: {difference:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
