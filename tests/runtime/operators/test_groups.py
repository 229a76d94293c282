"""Contexts of groups that are a part of all ranks, and operators with the signatures of ``torch.ops.symm_mem``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from calls import HEAP, MODES, WORST, Calls, configs, difference, error, listed, normal, said, url
from ranks_of_functions import run_ranks
from torch.distributed._symmetric_memory import (
    _fused_all_gather_scaled_matmul_fallback,
    _fused_scaled_matmul_reduce_scatter_fallback,
)
from torch.distributed.device_mesh import init_device_mesh
from two_ranks import A_GPU_EACH

import autotune
from autotune import symm_mem
from autotune.task import Task

GEMMS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")


@pytest.mark.parametrize(
    "gpu", [pytest.param(False, id="interpreter"), pytest.param(True, id="4 GPUs", marks=pytest.mark.gpu(4))]
)
def test_two_contexts_of_a_mesh_are_right_in_turns(tmp_path: Path, gpu: bool) -> None:
    """What peers read by themselves is the same in all modes; the library's collectives have the group's."""
    answers = run_ranks(__file__, "groups", 4, tmp_path, gpu=gpu, argument=url(tmp_path))
    ways = {"looked up", *({"library"} if "bsp" in MODES["all_gather_gemm"] else ())}
    names = {f"{dim} {name} {way}" for dim in ("data", "tensor") for name in GEMMS for way in ways}
    for rank, found in enumerate(answers):
        assert found.pop("mesh").startswith("InputError")
        budget, ranks = found.pop("tune")
        assert budget.startswith("InvalidBudget") and "2 of the program's 4 ranks" in ranks, "and the context goes on"
        assert found.pop("ranks") == {"data": [rank % 2, rank % 2 + 2], "tensor": [rank // 2 * 2, rank // 2 * 2 + 1]}
        assert found.pop("not in it").startswith("InputError" if rank else "")
        assert found.pop("no such").startswith("InputError")
        assert set(found) == {*names, "symm_mem"}
        assert max(found.values()) < WORST, found


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_torchs_signatures_give_torchs_results_in_fp8(tmp_path: Path, gpu: str) -> None:
    for found in run_ranks(__file__, "as_torch", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert found.pop("opened") == [1, 1, 0]
        assert found.pop("side by side").startswith("RanksDisagree"), "they do on one rank alone"
        refused = found.pop("refused")
        assert all(text.startswith("InvalidProblem") for text in refused.values()), refused
        assert "biases" in refused["lists"] and "[16, 1]" in refused["scales"]
        assert all("not fp8" in refused[name] for name in ("fp8", "result scale", "scattered fp8"))
        operators = "all_gather_gemm", "gemm_reduce_scatter"
        assert found.pop("asked") == [[operator, "fp16", True] for operator in operators]
        assert found.pop("oldest") is True
        assert len(found) == 20 + 7, sorted(found)
        assert max(found.values()) < 2e-2, found


@pytest.mark.parametrize(
    "name",
    [
        "fused_all_gather_matmul", "fused_all_gather_scaled_matmul", "fused_matmul_reduce_scatter",
        "fused_scaled_matmul_reduce_scatter",
    ],
)  # fmt: skip
def test_arguments_are_torchs_in_name_and_order(name: str) -> None:
    import torch.distributed._symmetric_memory  # defines them

    theirs = [argument.name for argument in getattr(torch.ops.symm_mem, name).default._schema.arguments]
    ours = list(inspect.signature(getattr(symm_mem, name)).parameters)
    assert ours == theirs or ours == [*theirs, "return_A"]


DEPTH = 64
COLUMNS = 32


def of_all(tensor: torch.Tensor, group: Any) -> list[torch.Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group=group)
    return parts


def groups(url: str) -> dict[str, Any]:
    """A mesh of two by two: a context for each of its dimensions, both open at once, calls in turns."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("data", "tensor"))
    found: dict[str, Any] = {"mesh": said(lambda: autotune.Context(HEAP, group=mesh, url=url))}
    with (
        autotune.Context(HEAP, group=mesh["data"], url=url) as data,
        autotune.Context(HEAP, group=mesh.get_group("tensor"), url=url) as tensor,
    ):
        contexts = {"data": data, "tensor": tensor}
        found["tune"] = [said(lambda: data.tune_first_calls(each)) for each in ("5 minutes", "1m")]  # noqa: B023
        found["ranks"] = {name: context.ranks for name, context in contexts.items()}
        for library in (False, True):
            for name, context in contexts.items():
                _in_turns(context, f"{name} ", library, found)
        group = mesh.get_group("tensor")
        a, b = normal(30, 8, DEPTH), normal(31, DEPTH, COLUMNS)
        _, (out,) = symm_mem.fused_all_gather_matmul(a, [b], 0, group.group_name, return_A=False)
        found["symm_mem"] = error(out, torch.cat(of_all(a, group)).float() @ b.float())
        for context in contexts.values():
            context.check()
    outside = dist.new_group([0])
    found["not in it"] = said(lambda: autotune.Context(HEAP, group=outside, url=url)) if dist.get_rank() else ""
    found["no such"] = said(lambda: symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, "nobody"))
    return found


def _in_turns(context: autotune.Context, prefix: str, library: bool, found: dict[str, Any]) -> None:
    """False where an operator is right by the config that is looked up, or by the library's collectives."""
    world = context.heap.world_size
    sizes: dict[str, Any] = {"m": 16, "world_size": world}
    problems: list[Any] = [
        autotune.AllGatherGemm(**sizes, k=DEPTH, n=COLUMNS * world),
        autotune.GemmReduceScatter(**sizes, k=DEPTH * world, n=COLUMNS),
        autotune.GemmAllReduce(**sizes, k=DEPTH * world, n=COLUMNS),
    ]
    for problem in problems:
        for config in configs(Task(problem, context.machine)) if library else [None]:
            if config is None or config["mode"] == "bsp":
                calls = Calls(context, problem, config)
                operands = calls.copies(2 * context.ranks[0] + library)  # other ones in each group
                results = listed(calls.function(context, **calls.given(operands)))
                found[f"{prefix}{problem.workload} {'library' if library else 'looked up'}"] = not calls.right(results)


def as_torch(url: str) -> dict[str, Any]:
    """Errors against the fallbacks of torch's own operators in fp8, by operator and dimension; shapes and strides."""
    name = dist.group.WORLD.group_name
    found: dict[str, Any] = {}
    with autotune.Context(HEAP, url=url) as context:
        _fp8(name, found)
        found["refused"] = _refused(name)
        found["asked"] = _asked(name)
        bs = [normal(16 + each, DEPTH, COLUMNS) for each in range(3)]
        bs = autotune.side_by_side(bs) if dist.get_rank() else bs
        found["side by side"] = said(lambda: symm_mem.fused_all_gather_matmul(normal(19, 8, DEPTH), bs, 0, name))
        with autotune.Context(1 << 20, url=url):
            found["oldest"] = symm_mem.context_of(name) is context
    found["opened"] = _opened(url)
    return found


def _fp8(group: Any, found: dict[str, Any]) -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    a = normal(6, 2 * world, 4 * world, DEPTH).to(torch.float8_e4m3fn)
    b = normal(7, COLUMNS, DEPTH).to(torch.float8_e4m3fn).t()
    bias = normal(0, COLUMNS) if rank == 0 else torch.zeros(COLUMNS, device=a.device, dtype=torch.bfloat16)
    dist.broadcast(bias, 0)
    by_rows, by_columns = normal(8, *a.shape[:-1], 1).float().abs() + 0.5, normal(9, 1, COLUMNS).float().abs() + 0.5
    one = torch.tensor(0.5, device=a.device)
    for dim in (0, 1):
        replicated = torch.cat(of_all(by_rows, dist.group.WORLD), dim)
        kinds = {"rows": (by_rows, by_columns), "all rows": (replicated, by_columns), "one": (one, one)}
        for kind in kinds if dim == 0 else ["all rows"]:
            scale_a, scale_b = kinds[kind]
            lists = [scale_b], dim, group, [bias], [None], [torch.bfloat16], [False]
            with _gathered_as_bytes():
                theirs = _fused_all_gather_scaled_matmul_fallback(a, [b], scale_a, *lists)
            for wanted in (True, False):
                ours = symm_mem.fused_all_gather_scaled_matmul(a, [b], scale_a, *lists, return_A=wanted)
                if wanted:
                    found[f"fp8 A {dim} {kind}"] = float(not torch.equal(ours[0].float(), theirs[0].float()))
                found[f"fp8 gather {dim} {kind} {wanted}"] = difference(ours[1][0], theirs[1][0])
    shape = [2 * world, 4 * world, COLUMNS]
    for dim in (0, 1, 2):
        for kind, (scale_a, scale_b) in {"rows": (by_rows, by_columns), "one": (one, one)}.items():
            for given in (a, a.flatten(0, 1))[: 1 + (dim == 1)]:  # as compiled programs reshape it
                scales = scale_a if kind == "one" or given is a else scale_a.flatten(0, 1)
                rest = scales, scale_b, "sum", dim, min(dim, given.dim() - 1), group
                ours = symm_mem.fused_scaled_matmul_reduce_scatter(given, b, *rest, shape, bias, None, torch.bfloat16)
                theirs = _fused_scaled_matmul_reduce_scatter_fallback(
                    given, b, *rest, list(shape), bias, None, torch.bfloat16
                )
                found[f"fp8 scatter {dim} {kind} {given.dim()}"] = difference(ours, theirs)
    rest = by_rows, by_columns, "avg", 0, 0, group
    ours = symm_mem.fused_scaled_matmul_reduce_scatter(a, b, *rest, shape, bias, None, torch.bfloat16)
    right = _fused_scaled_matmul_reduce_scatter_fallback(
        a, b, *rest[:2], "sum", *rest[3:], list(shape), bias, None, torch.bfloat16
    )
    found["fp8 scatter avg"] = difference(ours, right / world)
    for dim in (0, 1):
        lists = [by_columns, by_columns * 2], dim, group, [bias, None], [None] * 2, [torch.bfloat16] * 2, [False] * 2
        with _gathered_as_bytes():
            theirs = _fused_all_gather_scaled_matmul_fallback(a, [b, b], by_rows, *lists)
        ours = symm_mem.fused_all_gather_scaled_matmul(a, [b, b], by_rows, *lists)
        found[f"fp8 A {dim} of two"] = float(not torch.equal(ours[0].float(), theirs[0].float()))
        for number, pair in enumerate(zip(ours[1], theirs[1], strict=True)):
            found[f"fp8 gather {dim} of two {number}"] = difference(*pair)


def _asked(group: Any) -> list[Any]:
    """The problems of calls that want other types of results, and fast sums."""
    a, b = normal(12, 16, DEPTH).to(torch.float8_e4m3fn), normal(13, COLUMNS, DEPTH).to(torch.float8_e4m3fn).t()
    one, kind = torch.ones((), device=a.device), torch.float16
    with autotune.collect() as problems:
        symm_mem.fused_all_gather_scaled_matmul(a, [b], one, [one], 0, group, [None], [None], [kind], [True])
        symm_mem.fused_scaled_matmul_reduce_scatter(a, b, one, one, "sum", 0, 0, group, None, None, None, kind, True)
    return sorted([each.workload, each.out_dtype, each.fast_accum] for each in problems)  # type: ignore[attr-defined]


def _gathered_as_bytes() -> Any:
    """While it lasts, torch gathers fp8, which gloo cannot."""
    gather = torch.ops._c10d_functional.all_gather_into_tensor

    def of_bytes(shard: torch.Tensor, *group: Any) -> torch.Tensor:
        whole = torch.ops._c10d_functional.wait_tensor(gather(shard.view(torch.uint8), *group))
        return whole.view(shard.dtype)

    return mock.patch.object(torch.ops._c10d_functional, "all_gather_into_tensor", of_bytes)


def _refused(group: Any) -> dict[str, str]:
    a, b = normal(12, 16, DEPTH).to(torch.float8_e4m3fn), normal(13, COLUMNS, DEPTH).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=a.device)
    gather, scatter = symm_mem.fused_all_gather_scaled_matmul, symm_mem.fused_scaled_matmul_reduce_scatter
    return {
        "lists": said(lambda: gather(a, [b], one, [one], 0, group, [], [None], [torch.bfloat16], [False])),
        "fp8": said(lambda: gather(a, [b], one, [one], 0, group, [None], [None], [None], [False])),
        "scales": said(
            lambda: gather(a, [b], one.expand(7, 1), [one], 0, group, [None], [None], [torch.bfloat16], [False])
        ),
        "rows": said(lambda: scatter(
            a, b, one.expand(7, 1), one, "sum", 0, 0, group, None, None, None, torch.bfloat16
        )),
        "result scale": said(
            lambda: gather(a, [b], one, [one], 0, group, [None], [one], [torch.bfloat16], [False])
        ),
        "scattered fp8": said(lambda: scatter(a, b, one, one, "sum", 0, 0, group, None)),
        "dim": said(lambda: symm_mem.fused_all_gather_matmul(a, [b], 2, group)),
    }  # fmt: skip


def _opened(url: str) -> list[int]:
    """Contexts that calls open where there is none: one, until they are closed."""
    a, b = normal(14, 8, DEPTH), normal(15, DEPTH, COLUMNS)
    counts = []
    for _ in range(2):
        symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, dist.group.WORLD)
        counts.append(len(symm_mem.fused._OPENED))
    symm_mem.close()
    return [*counts, len(symm_mem.fused._OPENED)]
