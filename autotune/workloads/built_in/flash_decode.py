"""Flash decode as a workload: one step of attention over a KV cache that is sharded by sequence."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from autotune.config import Config
from autotune.dtypes import FP8
from autotune.errors import InvalidProblem
from autotune.heap.status import status_shape
from autotune.kernels.flash_decode.launch import KERNELS, library_exchange
from autotune.kernels.flash_decode.lengths import lengths_of
from autotune.kernels.flash_decode.problem import DTYPES, FlashDecode, check_rope
from autotune.kernels.flash_decode.reference import attention, joined
from autotune.kernels.flash_decode.space import SPACE, default_config, first_configs, of_mode
from autotune.kernels.flash_decode.tensors import Scratch, Tensors
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.knobs import MEMORY
from autotune.kernels.launching.plan import in_order
from autotune.kernels.launching.scratch import zeros
from autotune.kernels.launching.tensors import element_type
from autotune.machine import Machine
from autotune.task import Task
from autotune.workloads.comparison import distance, drawn, drawn_scales
from autotune.workloads.input_sets import SETS
from autotune.workloads.interface import Run
from autotune.workloads.launched import DrawnOperation, LaunchedWorkload, Operands
from autotune.workloads.roofline import flash_decode_latency
from autotune.workloads.rows import Batch
from autotune.workloads.tolerance import Error, Tolerance

TOLERANCES = {
    # Rounding of softmax weights, of what travels (wire=rounded) and of the output, 2**-9 each in bf16, 2**-12 in fp16.
    "bf16": Tolerance(overall=1.2e-2, element=0.1),
    "fp16": Tolerance(overall=1e-3, element=0.0125),
}

INTERPRETED = {**TOLERANCES, "bf16": Tolerance(overall=1.2e-2, element=0.2)}
"""The interpreter truncates to bf16: three times 2**-7, in one direction, of elements up to eight times the root of the
mean square.
"""

DIMENSIONS = {"q": 3, "k_cache": 4, "v_cache": 4, "block_table": 2, "lengths": 1}

FILLED_AT_ONCE = 1 << 26
"""Elements of a cache that are drawn at once."""

SHARPNESS = 4.0
"""Standard deviation of the queries, hence of the logits: parts then differ widely in their log-sum-exps."""


class FlashDecodeOperation(DrawnOperation[FlashDecode, Tensors, Scratch]):
    """The tensors of one rank, and the config prepared last.

    Its sets are several queries to one cache, with other lengths: they change all that ranks exchange. Those of the
    last are the problem's.
    """

    count = SETS

    def __init__(self, *arguments: Any) -> None:
        """Allocates the operands in ordinary memory and draws them, for capturing a graph runs it before any check."""
        super().__init__(*arguments)
        self.refresh(seed=0)

    def refresh(self, seed: int) -> None:
        """Draw the queries, the same on every rank, and this rank's cache in place; gather the references on the host.

        Collective: a cache may have tens of gigabytes, too much to draw every rank's on each.
        """
        tensors, device = self._tensors, self._heap.device
        generator = torch.Generator(device=device).manual_seed(seed * 1000 + 1 + self._heap.rank)
        shape = (SETS, *tensors.q.shape)
        self._queries = (drawn(shape, torch.float32, device, seed * 1000) * SHARPNESS).to(tensors.q.dtype)
        for cache in dict.fromkeys(tensors.caches):
            _fill(cache, generator)
        for begin, zero in ((0, 0.0), (8, -0.0)):  # so that whole words of what ranks exchange are zero
            tensors.caches[1][..., 0, begin : begin + 8].copy_(torch.tensor(zero, device=device))
        for offset, scale in enumerate((tensors.k_scale, tensors.v_scale)):
            if scale is not None:
                seed_here = seed * 1000 + 250 + 2 * self._heap.rank + offset
                scale.copy_(drawn_scales(tuple(scale.shape), device, seed_here))
        pages = torch.randperm(tensors.block_table.numel(), generator=generator, device=device)
        tensors.block_table.copy_(pages.view(tensors.block_table.shape))
        self._lengths = [each.to(device, torch.int32) for each in self._drawn_lengths(seed)]
        self._references = self._gathered_references()
        self.put(SETS - 1)
        self.poison()

    def put(self, number: int) -> None:
        self._tensors.q.copy_(self._queries[number])
        self._tensors.lengths.copy_(self._lengths[number])
        self._number = number

    def take_rows(self, whole: Batch, first: int) -> None:
        """Each sequence's pages lie elsewhere in this cache."""
        tensors, own = self._tensors, self._tensors.block_table.clone()
        super().take_rows(whole, first)
        taken = tensors.block_table.flatten().long()
        tensors.block_table.copy_(own)
        for name, cache in (("k_cache", tensors.k_cache), ("v_cache", tensors.v_cache)):
            if cache is not None:
                cache.view(torch.uint8)[own.flatten().long()] = whole.tensors[name].view(torch.uint8)[taken]

    def _of_batch(self, whole: Batch, name: str, like: torch.Tensor, first: int) -> torch.Tensor:
        """Pages are taken by the block table."""
        return like if name.endswith("_cache") else super()._of_batch(whole, name, like, first)

    def _drawn_lengths(self, seed: int) -> list[torch.Tensor]:
        """Each set's lengths, in an order that is drawn for this rank: geometric ones, of which one sequence is empty
        everywhere unless it is the only one, and every other one on one rank; those of one long sequence, of which one
        of several ranks has nothing; the problem's, the same for every seed, so that trials compare.
        """
        problem, rank, world = self._problem, self._heap.rank, self._problem.world_size
        generator = torch.Generator().manual_seed(seed * 1000 + 500 + rank)
        kinds = ("geometric", -(-problem.kv_len // 2)), ("one-long", problem.kv_len), (problem.lengths, problem.kv_len)
        holes, elsewhere, timed = (
            torch.tensor(lengths_of(kind, problem.batch, longest))[torch.randperm(problem.batch, generator=generator)]
            for kind, longest in kinds
        )
        sequences = torch.arange(problem.batch)
        if world > 1:
            holes[(sequences % 2 == 1) & ((sequences // 2 + seed) % world == rank)] = 0
            elsewhere *= int(seed % world != rank)
        if problem.batch > 1:
            holes[2 * seed % (problem.batch + problem.batch % 2)] = 0  # none of those that a rank lacks anyway
        return [holes, elsewhere, timed]

    def _gathered_references(self) -> torch.Tensor:
        of_sets = [
            attention(self._problem, replace(self._tensors, lengths=lengths), queries.unsqueeze(0))
            for queries, lengths in zip(self._queries, self._lengths, strict=True)
        ]
        part = torch.cat([torch.cat([out, lse.unsqueeze(-1)], dim=-1) for out, lse in of_sets]).cpu()
        parts = [torch.empty_like(part) for _ in range(self._heap.world_size)]
        dist.all_gather(parts, part, group=self._heap.group)
        out, lse = functools.reduce(
            lambda one, other: joined(*one, *other), ((each[..., :-1], each[..., -1]) for each in parts)
        )
        return out.to(self._heap.device)

    def error_of(self, outputs: Sequence[torch.Tensor], number: int) -> Error:
        """Distance from this rank's part of the reference, computed in fp32."""
        reference, owned = self._references[number], self._problem.owned_heads
        return distance(outputs[0], reference.narrow(1, self._heap.rank * owned, owned) if owned else reference)

    def parts(self) -> dict[str, Run]:
        """The attention alone, the library's exchange of its partial results alone, their combination alone."""
        own, task = functools.partial(zeros, self._heap.device), Task(self._problem, self._machine)
        # Separate launches that each make sense alone, the reduction included.
        knobs = KERNELS.knobs.of(bulk_synchronous(task).replace(reducer="kernel"))
        scratch = KERNELS.scratch(task, knobs, own, own)
        *local, combine = KERNELS.plan(
            Call(
                self._problem, knobs, self._machine, self._tensors, scratch, self._heap.bases, self._heap.rank,
                own(status_shape(self._problem.world_size), torch.int64), self._spin_limit,
            )
        )  # fmt: skip
        exchange = "all_to_all" if self._problem.owned_heads else "all_gather"
        return {
            "attention": in_order(local),
            exchange: functools.partial(library_exchange, self._problem, scratch),
            "combine": combine.run,
        }


def _fill(cache: torch.Tensor, generator: torch.Generator) -> None:
    """Normally distributed numbers; fp8's, which torch does not draw, page by page to take little memory."""
    if cache.element_size() > 1:
        cache.normal_(generator=generator)
        return
    flat = cache.view(-1)
    for begin in range(0, flat.numel(), FILLED_AT_ONCE):
        part = flat[begin : begin + FILLED_AT_ONCE]
        part.copy_(torch.randn(part.shape, generator=generator, device=part.device))


def bulk_synchronous(task: Task[FlashDecode]) -> Config:
    """The default's local kernels around the library's all-gather, called eagerly."""
    return of_mode("bsp", default_config(task), "eager")


def _kind_of_scales(k_scale: torch.Tensor | None, v_scale: torch.Tensor | None, kv_heads: int) -> str:
    """The problem's word for a cache's scales. Raises InvalidProblem where there is none."""
    if k_scale is None and v_scale is None:
        return "none"
    if k_scale is not None and v_scale is not None and k_scale.dtype == v_scale.dtype == torch.float32:
        shapes = {tuple(scale.shape) or (1,) for scale in (k_scale, v_scale)}
        for kind, shape in (("tensor", (1,)), ("head", (kv_heads,))):
            if shapes == {shape} and k_scale.is_contiguous() and v_scale.is_contiguous():
                return kind
    got = ", ".join(
        f"{name} {None if scale is None else (list(scale.shape), scale.dtype)}"
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale))
    )
    raise InvalidProblem(f"{got}: expected both, contiguous, torch.float32, [1] or [{kv_heads}]")


def _check_latent(v_cache: torch.Tensor | None, v_scale: torch.Tensor | None, rope: Any) -> None:
    """Raise InvalidProblem unless there is a cache of values, or a latent one whose keys have some elements more."""
    check_rope(rope)
    if rope and (v_cache is not None or v_scale is not None):
        given = "v_scale" if v_cache is None else "v_cache"
        raise InvalidProblem(
            f"rope={rope} and a {given}: the values of a latent cache are the beginnings of its keys; pass {given}=None"
        )
    if not rope and v_cache is None:
        raise InvalidProblem(
            "v_cache=None: only a latent cache has none; pass rope=, the elements of its keys behind the values"
        )


class FlashDecodeWorkload(LaunchedWorkload):
    by_rates = True
    problem_type = FlashDecode
    operation_type = FlashDecodeOperation
    space = SPACE
    kernels = KERNELS
    options = ("soft_cap", "result", "rope", "scale")
    row_by_row = True
    overlapping = ("fused",)
    boundaries = 3

    def default_problem(self, machine: Machine, world_size: int) -> FlashDecode:
        """The paper's heads at 32K tokens on each GPU; a toy of the same form under the interpreter."""
        sizes: dict[str, Any] = {"q_heads": 96, "kv_heads": 12, "head_dim": 128, "kv_len": 32768}
        if machine.is_interpreter:
            sizes = {"q_heads": 4, "kv_heads": 2, "head_dim": 64, "kv_len": 64}
        return FlashDecode(batch=1, **sizes, world_size=world_size, **FlashDecode.of_default)

    def default_config(self, task: Task[FlashDecode]) -> Config:
        return default_config(task)

    def first_configs(self, task: Task[FlashDecode]) -> list[Config]:
        return first_configs(task)

    def baselines(self, task: Task[FlashDecode]) -> dict[str, Config]:
        """The default's local kernels and the library's all-gather: eager, and as a CUDA graph where there are any."""
        return self.eager_and_graph({"bsp": bulk_synchronous(task)}, task)

    def rungs(self, task: Task[FlashDecode], config: Config) -> Mapping[str, Config | str]:
        """B: launches for attention, reduction, exchange, combination. All send data, then a signal, to every rank."""
        reducer = self.kernels.knobs.of(config).reducer
        reducer = "trailing" if reducer == "kernel" else reducer
        fused = config.replace(exchange="one_shot", protocol="signal", combine_site="same_launch", reducer=reducer)
        fused = fused.replace(program_order="tokens") if reducer == "last" else fused
        shared = {d.name: fused[d.name] for d in SPACE.dimensions_of("iris_all_gather") if d.name in fused}
        return {
            "B": Config({**shared, "mode": "iris_all_gather", "launch": "eager", "reducer": "kernel"}),
            "D": fused.replace(handover=MEMORY),
            "F": fused,
        }

    def predict(self, task: Task[FlashDecode], config: Config) -> float | None:
        return flash_decode_latency(task, KERNELS.knobs.of(config))

    def tolerance_of(self, task: Task[FlashDecode], config: Config) -> Tolerance:
        return (INTERPRETED if task.machine.is_interpreter else TOLERANCES)[task.problem.dtype]

    def problem_of(self, world_size: int, operands: Operands, options: Sequence[Any]) -> FlashDecode:
        """From q, one cache and the block table, which the others have to fit: its row is the longest sequence."""
        soft_cap, result, rope, scale = options
        *operands, k_scale, v_scale = operands
        named = dict(zip(DIMENSIONS, operands, strict=True))
        _check_latent(named["v_cache"], v_scale, rope)
        for name, tensor in named.items():
            if tensor is None:
                continue
            if tensor.dim() != DIMENSIONS[name] or not tensor.is_contiguous():
                raise InvalidProblem(
                    f"{name} is {list(tensor.shape)}, strides {tensor.stride()}: {DIMENSIONS[name]} dimensions, "
                    "contiguous, expected"
                )
        q, keys, values, table, lengths = named.values()
        cached = "auto"
        if keys.element_size() > 1:
            dtype = element_type({"q": q, "k_cache": keys, "v_cache": values}, DTYPES)
        else:
            dtype, cached = element_type({"q": q}, DTYPES), element_type({"k_cache": keys, "v_cache": values}, FP8)
        batch, q_heads, key_dim = q.shape
        _, page_size, kv_heads, _ = keys.shape
        fits = (
            (values is None or values.shape == keys.shape) and keys.shape[3] == key_dim
            and table.dtype == lengths.dtype == torch.int32 and table.shape[0] == batch and lengths.shape == (batch,)
        )  # fmt: skip
        if not fits:
            also = "" if values is None else f", v_cache {list(values.shape)}"
            raise InvalidProblem(
                f"q is {list(q.shape)}, k_cache {list(keys.shape)}{also}, block_table "
                f"{list(table.shape)} {table.dtype}, lengths {list(lengths.shape)} {lengths.dtype}: expected "
                f"{'a cache' if values is None else 'both caches'} [pages, page_size, kv_heads, {key_dim}], "
                f"block_table [{batch}, pages of a sequence] and lengths [{batch}], both int32"
            )
        scales = _kind_of_scales(k_scale, k_scale if rope else v_scale, kv_heads)
        return FlashDecode(
            batch=batch, q_heads=q_heads, kv_heads=kv_heads, head_dim=key_dim - rope, rope=rope,
            kv_len=table.shape[1] * page_size, page_size=page_size, soft_cap=soft_cap, scale=scale, dtype=dtype,
            world_size=world_size, kv_dtype=cached, kv_scales=scales, result=result,
        )  # fmt: skip

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        batch, q_heads, key_dim = operands[0].shape
        _, result, rope, _ = options
        return batch, q_heads // world_size if result == "heads" else q_heads, key_dim - rope


WORKLOAD = FlashDecodeWorkload()
