"""``symm_mem.install``: torch's named operators run ours, alike on all ranks, and give torch's results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as theirs
from calls import difference, normal, url
from ranks_of_functions import run_ranks
from two_ranks import A_GPU_EACH, sampled

import autotune
from autotune import symm_mem


@pytest.mark.parametrize("ranks", sampled(A_GPU_EACH))
def test_torchs_operators_run_ours(tmp_path: Path, ranks: tuple[str, bool]) -> None:
    """Counted: a call that torch's own answers has the same results."""
    gpu, sample = ranks
    for found in run_ranks(__file__, "installed", 2, tmp_path, gpu=gpu, argument=(url(tmp_path), sample)):
        assert found.pop("uninstalled", "NotImplementedError") == "NotImplementedError", "torch has none for a CPU"
        assert found.pop("no gradient")
        own = {form: found.pop(form)[1] for form in list(found) if form.startswith("own")}
        assert own and not any(own.values()), own
        assert len(found) == 5 * 6 * (1 if sample else 4) + 2 * 10 + 2
        wrong = {form: each for form, each in found.items() if each[0] > (2e-2 if "bfloat16" in form else 1e-5)}
        assert not wrong
        assert {form: calls for form, (_, calls) in found.items() if calls != 1} == {}


@pytest.mark.slow
@pytest.mark.skipif(" " in sys.prefix, reason="torch (2.13) links no kernels where its path has a space")
@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_inductors_micro_pipeline_runs_ours(tmp_path: Path, gpu: str) -> None:
    for found in run_ranks(__file__, "pipelined", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert {name: calls for name, (_, calls) in found.items()} == {"gather": 1, "scatter": 1, "both": 2}
        assert max(wrong for wrong, _ in found.values()) < 1e-5


@pytest.mark.parametrize("gpu", A_GPU_EACH)
def test_torchtitans_layers_run_ours_forwards_and_backwards(tmp_path: Path, gpu: str) -> None:
    pytest.importorskip("torchtitan")
    for found in run_ranks(__file__, "torchtitan", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert len(found) == 8
        calls = {(form.split()[0], taken) for form, (_, taken) in found.items()}
        assert calls == {("gather", 3), ("scatter", 2)}, "the gradients of a scatter's operands share one gather"
        wrong = {form: each for form, each in found.items() if each[0] > (2e-2 if "bfloat16" in form else 1e-5)}
        assert not wrong


HEAP = 32 << 20
OPS = torch.ops.symm_mem


def installed(arguments: tuple[str, bool]) -> dict[str, Any]:
    """Errors, by torch's fallbacks, and calls of ours, of each form; a sample has each gather once, of one or the other
    type, and returns A or does not.
    """
    url, sample = arguments
    name = dist.group.WORLD.group_name
    other = dist.new_group([0, 1])
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    found: dict[str, Any] = {}

    def told(form: str, ours: Any, wanted: Any) -> None:
        with autotune.collect() as problems:
            made = ours()
        found[form] = (difference(made, wanted()), sum(problems.values()))

    def gather(form: str, a: torch.Tensor, bs: list[torch.Tensor], dim: int, group: str = name, **more: Any) -> None:
        told(
            form,
            lambda: OPS.fused_all_gather_matmul(a, bs, dim, group, **more),
            lambda: theirs._fused_all_gather_matmul_fallback(a, bs, dim, group, **{"return_A": True, **more}),
        )

    with autotune.Context(HEAP, url=url) as context, symm_mem.install(context):
        for number, dtype in enumerate((torch.float32, torch.bfloat16)):
            for dim, shape in ((0, (32, 64)), (1, (32, 64)), (0, (16, 4, 64)), (1, (4, 16, 64)), (2, (2, 8, 64))):
                depth = 64 * (2 if dim == len(shape) - 1 else 1)
                a, w = normal(1, *shape, dtype=dtype), normal(2, 32, depth, dtype=dtype)
                rows = normal(4, 65, depth, dtype=dtype)
                lying = {
                    "kn": [w.t().contiguous()], "nk": [w.t()], "two": [w.t(), normal(3, 64, depth, dtype=dtype).t()],
                    "side by side": [rows[:32].t(), rows[32:64].t()], "view": [rows[1:33].t()],
                    "every other column": [normal(5, depth, 64, dtype=dtype)[:, ::2]],
                }  # fmt: skip
                for turn, (kind, bs) in enumerate(lying.items()):
                    if sample and turn % 2 != number:
                        continue
                    ways: list[dict[str, Any]] = [{}, {"return_A": False}]
                    for more in ways[(turn // 2 + dim) % 2 :: 2] if sample else ways:
                        gather(f"gather {dtype} {dim} {shape} {kind} {more}", a, bs, dim, **more)
            for op in ("sum", "avg"):
                for dim, shape in ((0, (32, 64)), (1, (32, 64)), (0, (4, 2, 64)), (1, (4, 16, 64)), (2, (2, 4, 64))):
                    a, w = normal(5, *shape, dtype=dtype), normal(6, 32, 64, dtype=dtype)
                    told(
                        f"scatter {dtype} {op} {dim} {shape}",
                        lambda a=a, w=w, op=op, dim=dim: OPS.fused_matmul_reduce_scatter(a, w.t(), op, dim, name),
                        lambda a=a, w=w, op=op, dim=dim: theirs._fused_matmul_reduce_scatter_fallback(
                            a, w.t(), op, dim, name
                        ),
                    )
        a, w = normal(7, 30, 64, dtype=torch.float32), normal(8, 32, 64, dtype=torch.float32)
        gather("another group of the same ranks", a, [w.t()], 0, other.group_name)
        # An address that kernels do not take, on one rank alone, at a call that the ranks no longer agree on.
        odd = torch.empty(32 * 64 + 1, device=w.device)[1:].view(32, 64).copy_(w)
        gather("an odd address on one rank", a, [(odd if dist.get_rank() else w).t()], 0)
        gradient = OPS.fused_all_gather_matmul(a, [w.t().clone().requires_grad_()], 0, name)[1][0]
        found["no gradient"] = not gradient.requires_grad or gradient.grad_fn is not None
        # Torch's own does the rest.
        gather("own: a group without a context", a, [w.t()], 0, alone.group_name)
        if w.device.type == "cpu":
            gather("own: fp64", a.double(), [w.t().double()], 0)
        context.check()
    if w.device.type == "cpu":
        found["uninstalled"] = refused(lambda: OPS.fused_all_gather_matmul(a, [w.t()], 0, name))
    return found


def pipelined(url: str) -> dict[str, Any]:
    """Errors of graphs in which inductor's micro-pipeline puts torch's operators, and the calls that ours took."""
    import torch._inductor.config as inductor
    import torch.distributed._functional_collectives as collectives

    group = dist.group.WORLD
    theirs.enable_symm_mem_for_group(group.group_name)
    dist.is_nccl_available = lambda: True  # without it, as in a build for CPUs, the pipeline does nothing

    def gather(a: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.relu(collectives.all_gather_tensor(a, 0, group) @ w.t())

    def scatter(a: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.relu(collectives.reduce_scatter_tensor(a @ w.t(), "sum", 0, group))

    def both(a: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(collectives.all_gather_tensor(a, 0, group) @ w.t())
        return collectives.reduce_scatter_tensor(hidden @ v.t(), "sum", 0, group)

    sizes, found = ((32, 64), (48, 64), (64, 48)), {}
    given = [normal(31 + number, *size, dtype=torch.float32) for number, size in enumerate(sizes)]
    with autotune.Context(HEAP, url=url) as context, symm_mem.install(context):
        for function in (gather, scatter, both):
            torch._dynamo.reset()
            wanted = function(*given)
            with inductor.patch(_micro_pipeline_tp=True, force_disable_caches=True), autotune.collect() as problems:
                made = torch.compile(function, fullgraph=True)(*given)
            found[function.__name__] = (difference(made, wanted), sum(problems.values()))
        context.check()
    return found


def torchtitan(url: str) -> dict[str, Any]:
    """Errors of torchtitan's layers, by torch's own operators, and the calls that ours took."""
    from torchtitan.distributed.linear import AllGatherLinear, AllGatherLinearMulti, LinearReduceScatter

    group = dist.group.WORLD
    missing = torch.library.Library("aten", "IMPL")
    if not torch.cuda.is_available():  # a backward of theirs multiplies with out_dtype, for which a CPU has no kernel
        missing.impl("mm.dtype", lambda a, b, out_dtype: (a.float() @ b.float()).to(out_dtype), "CPU")

    def step(kind: str, dtype: torch.dtype, biased: bool) -> list[torch.Tensor]:
        sizes = ((32, 64), (48, 64), (48, 64), (48,))
        x, w, v, bias = (
            normal(11 + number, *size, dtype=dtype, same=kind == "scatter" and len(size) == 1).requires_grad_()
            for number, size in enumerate(sizes)
        )
        given = bias if biased else None
        if kind == "gather":
            y = AllGatherLinear.apply(x, w, given, group, group.group_name)
        elif kind == "gather for two":
            y = torch.cat(AllGatherLinearMulti.apply(x, w, v, group, group.group_name), 1)
        else:
            y = LinearReduceScatter.apply(x, w, given, group, group.group_name)
        (y.float() * normal(15, *y.shape, dtype=torch.float32)).sum().backward()
        return [y.detach(), *(each.grad for each in (x, w, v, bias) if each.grad is not None)]

    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        for kind, biased in (("gather", False), ("gather", True), ("gather for two", False), ("scatter", True)):
            theirs_own = torch.library.Library("symm_mem", "IMPL")
            if not torch.cuda.is_available():
                for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
                    theirs_own.impl(name, getattr(theirs, f"_{name}_fallback"), "CPU")
            wanted = step(kind, dtype, biased)
            theirs_own._destroy()
            with autotune.Context(HEAP, url=url) as context, symm_mem.install(context), autotune.collect() as problems:
                made = step(kind, dtype, biased)
                context.check()
            found[f"{kind} {biased} {dtype}"] = (difference(made, wanted), sum(problems.values()))
    return found


def refused(call: Any) -> str:
    try:
        call()
    except NotImplementedError as error:
        return type(error).__name__
    return ""
