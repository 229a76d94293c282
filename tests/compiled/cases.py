"""Functions with collectives and GEMMs, in the ways in which programs write them, with what is to become of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import Linear, Module, Sequential
from torch.nn.functional import linear

K, N = 64, 32
"""Sizes of a rank's weights; each sum is over a depth of K a rank."""


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    """Of the arguments."""
    operator: str
    """In the fused graph; empty where nothing is replaced."""
    told: str = "2.00 times as fast as the library at m=16"
    """A part of the reason."""
    replicated: bool = False
    """What is added to a sum is said to be the same on every rank."""


def gather(x: torch.Tensor, dim: int) -> torch.Tensor:
    return functional.all_gather_tensor(x, dim, dist.group.WORLD)


def scatter(x: torch.Tensor, dim: int, how: str = "sum") -> torch.Tensor:
    return functional.reduce_scatter_tensor(x, how, dim, dist.group.WORLD)


def reduce(x: torch.Tensor, how: str = "sum") -> torch.Tensor:
    return functional.all_reduce(x, how, dist.group.WORLD)


def _shared(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    whole = gather(x, 0)
    return whole @ one + whole @ other


def _mixed(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = gather(x, 0)
    return whole @ one + whole @ other, whole @ wide


def _kept(x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = x @ b
    return reduce(product), product


def _given_back(x: torch.Tensor, w: torch.Tensor, narrow: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = gather(x, 1)
    return linear(whole, w), linear(whole, narrow), whole * 2


def _in_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    product = linear(x, w)
    return torch.ops.aten.copy(product, reduce(product)) * 2


GATHERS = {
    "gather": Case(lambda x, b: gather(x, 0) @ b, ((8, K), (K, N)), "all_gather_gemm"),
    "gather linear with a bias": Case(
        lambda x, w, c: linear(gather(x, 0), w, c), ((8, K), (N, K), (N,)), "all_gather_gemm"
    ),
    "gather sequences of one": Case(lambda x, w: linear(gather(x, 1), w), ((1, 8, K), (N, K)), "all_gather_gemm"),
    "gather sequences of several": Case(lambda x, w: linear(gather(x, 1), w), ((2, 4, K), (N, K)), "all_gather_gemm"),
    "gather sequences first": Case(lambda x, w: linear(gather(x, 0), w), ((4, 2, K), (N, K)), "all_gather_gemm"),
    "gather along k": Case(lambda x, b: gather(x, 1) @ b, ((16, K // 2), (K, N)), "all_gather_gemm"),
    "gather wide": Case(
        lambda x, w: linear(gather(x, 1), w), ((2, 4, N), (K, N)), "", "would copy 64 columns, the collective copies 32"
    ),
    "gather for two": Case(_shared, ((8, K), (K, N), (K, N)), "all_gather_gemm", "1.60 times as fast"),
    "gather for two, briefly": Case(
        _shared, ((8, 2 * K), (2 * K, N), (2 * K, N)), "", "0.80 times as fast as the library"
    ),
    "gather for two, one untuned": Case(
        _mixed, ((8, K), (K, N), (K, N), (K, 3 * N)), "", "nothing tuned for this problem"
    ),
    "gather and keep": Case(lambda x, b: (y := gather(x, 0), y @ b), ((8, K), (K, N)), "", "also used by the graph's"),
    "gather and give back": Case(
        _given_back, ((1, 8, K), (2 * N, K), (N, K)), "all_gather_gemm_gathered", "gathered=true"
    ),
    "gather and give back a matrix": Case(
        lambda x, b: (y := gather(x, 0), y @ b), ((8, K), (K, 2 * N)), "all_gather_gemm_gathered"
    ),
    "gather, use and multiply": Case(
        lambda x, b: (y := gather(x, 0), (z := y * 2), y @ (z[:8, :8] @ b)),
        ((8, 8), (8, 2 * N)),
        "",
        "also used by mul",
    ),
    "gather b": Case(lambda x, b: x @ gather(b, 0), ((8, K), (K // 2, N)), "", "the GEMM's B, not its A"),
    "gather alone": Case(lambda x: gather(x, 0) * 2, ((8, K),), "", "no GEMM takes what is gathered"),
    "gather untuned": Case(lambda x, b: gather(x, 0) @ b, ((128, K), (K, N)), "", "nothing tuned for this problem"),
    "gather tuned in vain": Case(lambda x, b: gather(x, 0) @ b, ((8, N), (N, N)), "", "the library's way is the fast"),
}
SUMS = {
    "scatter": Case(lambda x, b: scatter(x @ b, 0), ((16, K), (K, N)), "gemm_reduce_scatter"),
    "scatter sequences of one": Case(
        lambda x, w: scatter(linear(x, w), 1), ((1, 16, K), (2 * N, K)), "gemm_reduce_scatter"
    ),
    "scatter sequences of several": Case(
        lambda x, w: scatter(linear(x, w), 1), ((2, 8, K), (2 * K, K)), "gemm_reduce_scatter"
    ),
    "scatter an average": Case(
        lambda x, w: scatter(linear(x, w), 0, "avg"), ((8, 2, K), (N, K)), "gemm_reduce_scatter"
    ),
    "scatter columns": Case(lambda x, b: scatter(x @ b, 1), ((16, K), (K, N)), "", "share the columns of the sum"),
    "reduce": Case(lambda x, b: reduce(x @ b), ((16, K), (K, N)), "gemm_all_reduce"),
    "reduce sequences, a bias behind": Case(
        lambda x, w, c: reduce(linear(x, w)) + c, ((2, 8, K), (N, K), (N,)), "gemm_all_reduce"
    ),
    "scatter and add": Case(
        lambda x, b, r: r + scatter(x @ b, 0), ((16, K), (K, N), (8, N)), "gemm_reduce_scatter", "2.50 times as fast"
    ),
    "scatter sequences and add": Case(
        lambda x, w, r: scatter(linear(x, w), 1) + r,
        ((1, 16, K), (N, K), (1, 8, N)),
        "gemm_reduce_scatter",
        "2.50 times as fast",
    ),
    "scatter and add another shape": Case(
        lambda x, b, r: scatter(x @ b, 0) + r, ((16, K), (K, N), (N,)), "gemm_reduce_scatter"
    ),
    "reduce in place": Case(_in_place, ((2, 8, K), (N, K)), "gemm_all_reduce"),
    "reduce and add": Case(lambda x, b, r: reduce(x @ b) + r, ((16, K), (K, N), (16, N)), "gemm_all_reduce"),
    "reduce and add the same": Case(
        lambda x, b: reduce(x @ b) + torch.full((16, N), 0.5),
        ((16, K), (K, N)),
        "gemm_all_reduce",
        "2.50 times as fast",
        replicated=True,
    ),
    "reduce a maximum": Case(lambda x, b: reduce(x @ b, "max"), ((16, K), (K, N)), "", "the ranks reduce by max"),
    "reduce and keep": Case(_kept, ((16, K), (K, N)), "", "also used by the graph's result"),
    "reduce with a bias each": Case(
        lambda x, w, c: reduce(linear(x, w, c)), ((16, K), (N, K), (N,)), "", "a bias of its own before the sum"
    ),
    "reduce what is no product": Case(lambda x, b: reduce((x @ b).relu()), ((16, K), (K, N)), "", "comes from relu"),
    "reduce slower": Case(lambda x, b: reduce(x @ b), ((16, N), (N, N)), "", "0.80 times as fast as the library"),
}
CASES = {**GATHERS, **SUMS}


def drawn(case: Case) -> list[torch.Tensor]:
    """Arguments that differ from rank to rank."""
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    return [torch.randn(shape, generator=generator) for shape in case.shapes]


class Layer(Module):
    """An MLP as DTensor runs it with sequence parallelism; without, its sum is on every rank."""

    def __init__(self, *, sequence_parallel: bool, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.mlp = Sequential(Linear(2 * K, 2 * N, bias=bias), torch.nn.SiLU(), Linear(2 * N, 2 * K, bias=bias))
        self.sequence_parallel = sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x * 1.5) + 1

    def parallel(self) -> Layer:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        up, down = ColwiseParallel(), RowwiseParallel()
        if self.sequence_parallel:
            up, down = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
        parallelize_module(self, mesh, {"mlp.0": up, "mlp.2": down})
        return self
