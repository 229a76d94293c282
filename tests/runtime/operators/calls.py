"""Calls for the operators' tests: problems of several kinds per operator, their operands, the expected results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import autotune
from autotune.db import CacheKey, Store, Winner
from autotune.errors import AutotuneError
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.outcome import Latency
from autotune.problem import Problem
from autotune.runtime.host_overhead import arguments_of, public_of
from autotune.task import Task
from autotune.workloads import provenance_of, workload

ON_RANKS = str(Path(__file__).parent / "on_ranks.py")
MODES = {
    "all_gather_gemm": {"bsp", "custom_collective", "pull", "pull_staged", "push", "copy_engine"},
    "gemm_reduce_scatter": {"bsp", "custom_collective", "pull", "push", "one_shot", "copy_engine"},
    "gemm_all_reduce": {"bsp", "custom_collective", "one_shot", "two_shot"},
    "flash_decode": {"bsp", "iris_all_gather", "fine_grained_wait", "fused"},
}

if os.environ.get("RANKS_PER_GPU", "1") != "1":
    MODES = {name: modes - {"bsp"} for name, modes in MODES.items()}

WORST = 1.2e-2
"""Relative error of a right result: bf16, whose products are rounded once a rank, and again where they are summed."""

Operands = tuple[torch.Tensor | None, ...]


HEAP = 1 << 29 if torch.cuda.is_available() else 32 << 20
"""Bytes: room for every problem in every mode."""


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'none.db'}"


def are_right(worlds: list[dict[str, float]], modes: dict[str, set[str]]) -> None:
    """By the looked-up config of each operator in ``modes``, and in each of the modes there."""
    expected = {f"{name} {mode}" for name, own in modes.items() for mode in {"looked up", *own}}
    for worst in worlds:
        assert set(worst) == expected
        assert max(worst.values()) < WORST, worst


def store_winner(url: str, task: Task[Any], config: autotune.Config) -> None:
    """As if it had been tuned."""
    with Store.open(url) as store:
        provenance = provenance_of(workload(task.problem.workload))
        study = store.study(CacheKey.of(task), provenance, seed=0, space_size=1)
        store.finish(study.id, Winner(config, Latency(1.0, 1.0, 1.0, 0.0, 1)))


def wrong_of(found: Any, least: int) -> Any:
    """Answers that are neither small errors nor True; all of them, if they are fewer than ``least``."""
    named = found if isinstance(found, dict) else dict(enumerate(found))
    wrong = {way: each for way, each in named.items() if each is False or not (each is True or 0 <= each < WORST)}
    return wrong or (None if len(named) >= least else found)


def found_out_and_mended(others: list[dict[str, str]], last: dict[str, str]) -> None:
    """Results of ``missed`` on the ranks that made the call, and on the one that did not."""
    for said in (*others, last):
        for what in ("check", "next call", "first call of another operator"):
            assert said[what].startswith("GangError"), what
        assert said["later check"] == "no error"
        assert said["right"] == "True"


def lied_to_nobody(ranks: list[dict[str, str]]) -> None:
    """Results of ``missed_in``, on all ranks."""
    for said in ranks:
        assert said["rest"] == "no error" or said["rest"].startswith("GangError")
        assert said["numbers"] == "False"
        for what in ("next call", "check"):
            assert said[what].startswith("GangError"), what
        assert said["right"] == "True"


def problems(device: torch.device) -> list[Problem]:
    """Every operator; larger on GPUs, where nothing overlaps in small ones."""
    ranks = dist.get_world_size()
    size, heads = (16, 2) if device.type == "cuda" else (1, 1)
    gemm = {"m": 16 * ranks * size, "k": 32 * ranks * size, "world_size": ranks}
    return [
        autotune.AllGatherGemm(**gemm, n=32 * ranks * size, bias=True),
        autotune.GemmReduceScatter(**gemm, n=32 * size, bias=True),
        autotune.FlashDecode(
            batch=2, q_heads=2 * heads, kv_heads=heads, head_dim=64, kv_len=32 * size, page_size=16, world_size=ranks
        ),
        autotune.GemmAllReduce(**gemm, n=32 * size, b_order="nk", deterministic=True),
        autotune.AllGatherGemm(**gemm, n=32 * ranks * size, layout="k", b_order="nk"),
        autotune.GemmAllReduce(**{**gemm, "m": 8}, n=64 * size, bias=True),
        autotune.GemmReduceScatter(**{**gemm, "m": 8 * ranks}, n=64 * size),
    ]


def configs(task: Task[Problem], but: str = "warp_specialized") -> list[autotune.Config]:
    """The first config of each mode ``but`` one; ranks that share a GPU have no library's collectives."""
    plugin = workload(task.problem.workload)
    sharing = not task.machine.is_interpreter and dist.get_world_size() > torch.cuda.device_count()
    baselines = {} if sharing else plugin.baselines(task)
    found = [*plugin.first_configs(task), *baselines.values()]
    left_out = {but, "bsp"} if sharing else {but}
    found = [config for config in found if config["mode"] not in left_out]
    return list({config["mode"]: config for config in reversed(found)}.values())


OPTIONS = {
    "all_gather_gemm": ("in_place",), "gemm_reduce_scatter": (), "gemm_all_reduce": ("deterministic",),
    "flash_decode": ("soft_cap", "result"),
}  # fmt: skip
"""By name, and not from the workload: a call is compiled, too, and a look into the registry would break its graph."""


def call(context: autotune.Context, problem: Any, operands: Operands, **more: Any) -> torch.Tensor:
    along_k = {"gather_dim": -1} if getattr(problem, "layout", "rows") == "k" else {}
    options = {name: getattr(problem, name) for name in OPTIONS[problem.workload]} | along_k
    out: torch.Tensor = getattr(autotune, problem.workload)(context, *operands, **options, **more)
    return out


def drawn(problem: Any, seed: int, device: torch.device) -> tuple[Operands, torch.Tensor]:
    """This rank's operands, and the reference for its result; every rank draws everybody's, to need no exchange."""
    generator = torch.Generator().manual_seed(seed)
    draw = {"all_gather_gemm": _gather, "gemm_reduce_scatter": _reduce, "gemm_all_reduce": _reduce}
    operands, reference = draw.get(problem.workload, _decode)(problem, generator)
    return tuple(None if tensor is None else tensor.to(device) for tensor in operands), reference.to(device)


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative; infinite where a NaN came out."""
    return float(((out.float() - reference).norm() / reference.norm()).nan_to_num(nan=float("inf")))


def difference(made: Any, wanted: Any) -> float:
    """The largest relative difference of one result or several; infinite where shapes, types or strides differ."""
    if made is None or wanted is None:
        return 0.0 if made is wanted else float("inf")
    if isinstance(wanted, (list, tuple)):
        return max(difference(*pair) for pair in zip(made, wanted, strict=True))
    if (made.shape, made.dtype, made.stride()) != (wanted.shape, wanted.dtype, wanted.stride()):
        return float("inf")
    return float((made.float() - wanted.float()).abs().max() / wanted.float().abs().max().clamp(min=1e-6))


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16, same: bool = False) -> torch.Tensor:
    """Other numbers on each rank, or the same on all."""
    generator = torch.Generator().manual_seed(1000 * seed + (0 if same else dist.get_rank()))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.randn(shape, generator=generator).to(device, dtype)


def listed(results: Any) -> list[torch.Tensor]:
    """One result or several, in whatever they come."""
    if isinstance(results, torch.Tensor):
        return [results]
    return [each for part in results if part is not None for each in listed(part)]


class Calls:
    """Calls of a problem's public function on the operands of the tuner's operation, by which they are judged."""

    def __init__(self, context: autotune.Context, problem: Any, config: autotune.Config | None = None) -> None:
        self.context, self.problem, self.config, self.plugin = context, problem, config, workload(problem.workload)
        self.operation: Any = self.plugin.operation(Task(problem, context.machine), context.heap, context.spin_limit)

    def refresh(self, seed: int) -> None:
        self.operation.refresh(seed)

    def copies(self, seed: int) -> dict[str, torch.Tensor | None]:
        """Other inputs, where the caller has them, and A where a call in place takes it."""
        self.refresh(seed)
        dist.barrier()  # some rank may draw what another one's operands are
        own = {name: None if x is None else x.clone() for name, x in self.operation.operands.items()}
        if getattr(self.problem, "in_place", False) and "a" in own:
            own["a"] = autotune.all_gather_shard(self.context, self.problem, config=self.config).copy_(own["a"])
        return own

    def given(self, operands: Any) -> dict[str, Any]:
        config = {} if self.config is None else {"config": self.config}
        return arguments_of(self.plugin, self.problem, operands) | config  # type: ignore[arg-type]

    @property
    def function(self) -> Any:
        return public_of(self.plugin, self.problem)

    def __call__(self) -> None:
        made = listed(self.function(self.context, **self.given(self.operation.operands)))
        for place, result in zip(self.operation.outputs(), made, strict=True):
            place.copy_(result)

    def right(self, results: list[torch.Tensor] | None = None) -> bool:
        """As near to the reference as the workload says."""
        operation, task = self.operation, Task(self.problem, self.context.machine)
        error = operation.error() if results is None else operation.error_of(results, operation._number)
        config = self.config or self.context.choose(self.problem, workload=self.plugin).config
        allowed = self.plugin.tolerance_of(task, config)
        return bool(error.overall <= allowed.overall and error.element <= allowed.element)


def said(attempt: Any) -> str:
    """The error of a call, by name and message."""
    try:
        attempt()
    except AutotuneError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _normal(generator: torch.Generator, problem: Any, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(TORCH_DTYPES[problem.dtype])


def _b(generator: torch.Generator, problem: Any, depth: int, columns: int) -> torch.Tensor:
    if problem.b_order == "nk":
        return _normal(generator, problem, columns, depth).t()
    return _normal(generator, problem, depth, columns)


def _gather(problem: autotune.AllGatherGemm, generator: torch.Generator) -> tuple[Operands, torch.Tensor]:
    rank = dist.get_rank()
    shards = [_normal(generator, problem, *problem.shard) for _ in range(problem.world_size)]
    bs = [_b(generator, problem, problem.k, problem.n_local) for _ in range(problem.world_size)]
    bias = _normal(generator, problem, problem.n_local) if problem.bias else None
    whole = torch.cat(shards, dim=0 if problem.rows_layout else 1)
    reference = whole.float() @ bs[rank].float() + (0 if bias is None else bias.float())
    return (shards[rank], bs[rank], bias), reference


def _reduce(problem: Any, generator: torch.Generator) -> tuple[Operands, torch.Tensor]:
    rank, depth = dist.get_rank(), problem.k_local
    pairs = [
        (_normal(generator, problem, problem.m, depth), _b(generator, problem, depth, problem.n))
        for _ in range(problem.world_size)
    ]
    bias = _normal(generator, problem, problem.n) if problem.bias else None
    whole = sum(a.float() @ b.float() for a, b in pairs) + (0 if bias is None else bias.float())
    if problem.workload == "gemm_reduce_scatter":
        whole = whole[rank * problem.rows : (rank + 1) * problem.rows]
    return (*pairs[rank], bias), whole


def _decode(problem: autotune.FlashDecode, generator: torch.Generator) -> tuple[Operands, torch.Tensor]:
    """Sequences of different lengths, each empty on one rank or another where there are several."""
    ranks, batch, heads = problem.world_size, problem.batch, problem.kv_heads
    q = _normal(generator, problem, batch, problem.q_heads, problem.head_dim)
    caches = [[_normal(generator, problem, *problem.cache_shape) for _ in "kv"] for _ in range(ranks)]
    tables = [torch.randperm(batch * problem.pages, generator=generator).int().view(batch, -1) for _ in range(ranks)]
    lengths = torch.randint(1, problem.kv_len + 1, (ranks, batch), generator=generator).int()
    if ranks > 1:
        lengths[torch.arange(batch) % ranks, torch.arange(batch)] = 0
    reference = torch.empty(q.shape)
    for sequence in range(batch):
        keys, values = (
            torch.cat([
                caches[rank][which][tables[rank][sequence]].view(-1, heads, problem.head_dim)[: lengths[rank, sequence]]
                for rank in range(ranks)
            ]).float().repeat_interleave(problem.group, dim=1)
            for which in range(2)
        )  # fmt: skip
        logits = torch.einsum("hd,thd->ht", q[sequence].float(), keys) * problem.head_dim**-0.5
        reference[sequence] = torch.einsum("ht,thd->hd", logits.softmax(dim=1), values)
    rank = dist.get_rank()
    if problem.result == "heads":
        reference = reference.chunk(ranks, dim=1)[rank]
    return (q, *caches[rank], tables[rank], lengths[rank]), reference
