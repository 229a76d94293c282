"""Layers as they are made and called: what they take over from others, and what styles hand on."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from shares import difference, part, said
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as theirs
from torch.distributed.tensor.parallel import parallelize_module

import autotune
from autotune.nn import ColumnParallelLinear, RowParallelLinear

Tensor = torch.Tensor


def made(context: autotune.Context) -> dict[str, Any]:
    """Of layers made from others: types, gradients, sizes, biases; of those that are drawn: their parameters."""
    torch.manual_seed(7)
    device, ranks = context.heap.device, dist.get_world_size()
    given = nn.Linear(16, 8 * ranks, device=device, dtype=torch.bfloat16)
    given.weight.requires_grad_(False)
    found: dict[str, Any] = {"taken over": [], "sizes": [], "without a bias": []}
    for kind in (ColumnParallelLinear, RowParallelLinear):
        for make in (kind.from_linear, kind.from_shard):
            layer = make(given, context)
            kept = [layer.weight.requires_grad, layer.bias.requires_grad]
            found["taken over"].append([*kept, str(layer.weight.dtype), str(layer.bias.dtype)])
            found["sizes"].append([layer.in_features // ranks, layer.out_features // ranks])
            found["without a bias"].append(make(nn.Linear(16, 16, bias=False, device=device), context).bias is None)
    column, row = (kind(context, 64, 64) for kind in (ColumnParallelLinear, RowParallelLinear))
    found["drawn"] = [float(each.detach().abs().max()) for each in (column.weight, column.bias, row.weight, row.bias)]  # type: ignore[union-attr]
    plain, vector = nn.Linear(16, 8 * ranks, device=device), torch.randn(16, device=device)
    scattering = RowParallelLinear.from_linear(plain, context, sequence_dim=0)
    found["vector"] = difference(scattering(part(vector, 0)), part(plain(vector), 0))
    x = torch.randn(4, 16, device=device)
    gradients = []
    for each in (plain, ColumnParallelLinear.from_linear(plain, context)):
        mine = x.clone().requires_grad_()
        with torch.autocast(device.type, torch.bfloat16):
            result = each(mine)
        found["its type"] = str(result.dtype)
        result.float().square().sum().backward()
        gradients.append(mine.grad)
    found["autocast"] = difference(gradients[1], gradients[0])
    return found


def keeping(context: autotune.Context) -> list[bool]:
    """True for each way to ask for it that keeps the gathered A for the backward."""
    device = context.heap.device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    linear, found = nn.Linear(16, 16, device=device), []
    style = theirs.ColwiseParallel(input_layouts=Shard(0))
    for keep in (False, True):
        layer = ColumnParallelLinear.from_linear(linear, context, sequence_dim=0, keep_gathered=keep)
        ours = autotune.nn.ColwiseParallel(context, input_layouts=Shard(0), keep_gathered=keep)
        styles = [ours, autotune.nn.tuned(style, context, keep_gathered=keep)]
        styles.append(autotune.nn.tuned({"": style}, context, keep_gathered=keep)[""])
        styled = [parallelize_module(copy.deepcopy(linear), mesh, each) for each in styles]
        calls = [(each, torch.randn(2, 16, device=device)) for each in (layer, *styled)]
        for called, x in [*calls, (layer, torch.randn(16 // dist.get_world_size(), device=device))]:
            with autotune.collect() as problems:
                called(x)
            (problem,) = problems
            assert isinstance(problem, autotune.AllGatherGemm)
            found.append(problem.gathered)
    return found


class Doubled(nn.Module):
    """Two layers, of an input and of another one that is made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        first = self.one(x)
        if self.fails:
            raise ValueError("in the midst")
        out: Tensor = first + self.other(x * 2)
        return out


def handed_on(context: autotune.Context) -> dict[str, Any]:
    """Differences from torch's styles, of uneven rows, whole DTensors and shared gathers; the kinds of results."""
    torch.manual_seed(8)
    device = context.heap.device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    linear, x = nn.Linear(16, 16, device=device), torch.randn(3, 16, device=device)
    found: dict[str, Any] = {}

    def both(kind: str, given: Tensor, plain: nn.Module = linear, **options: Any) -> list[Tensor]:
        styles = getattr(autotune.nn, kind)(context, **options), getattr(theirs, kind)(**options)
        results = [parallelize_module(copy.deepcopy(plain), mesh, style)(given) for style in styles]
        found.setdefault("kinds", []).append([_kind(each) for each in results])
        return results

    uneven = distribute_tensor(x, mesh, [Shard(0)])
    found["uneven input"] = difference(*both("ColwiseParallel", uneven, use_local_output=False))
    found["uneven output"] = difference(
        *both("RowwiseParallel", part(x, 1), output_layouts=Shard(0), use_local_output=False)
    )
    for local in (False, True):
        for wanted in (Replicate(), Shard(0), Shard(1)):
            options = {"output_layouts": wanted, "use_local_output": local}
            found[f"columns {wanted} {local}"] = difference(*both("ColwiseParallel", x[:2], **options))
            found[f"rows {wanted} {local}"] = difference(*both("RowwiseParallel", part(x[:2], 1), **options))
    whole, gradients = distribute_tensor(x, mesh, [Replicate()]).requires_grad_(), []
    for result in both("ColwiseParallel", whole):
        gradients += torch.autograd.grad(result.sin().sum(), whole)
    found["gradient of a whole"] = difference(*gradients)
    prepared = theirs.PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),))
    plan: dict[str, theirs.ParallelStyle] = {
        "": prepared, "one": theirs.ColwiseParallel(), "other": theirs.ColwiseParallel(),
    }  # fmt: skip
    plain, mine = Doubled().to(device), part(torch.randn(4, 16, device=device), 0)
    models = [
        parallelize_module(copy.deepcopy(plain), mesh, each)
        for each in (autotune.nn.tuned(plan, context, share_gather=True), plan)
    ]
    found["of two inputs"] = difference(*(model(mine) for model in models))
    alone = autotune.nn.tuned({"": prepared, "0": theirs.ColwiseParallel()}, context, share_gather=True)
    with autotune.collect() as called:
        parallelize_module(nn.Sequential(nn.Linear(16, 8)).to(device), mesh, alone)(mine)
    found["alone"] = [problem.gathered for problem in called if isinstance(problem, autotune.AllGatherGemm)]
    models[0].fails = True  # type: ignore[assignment]
    try:
        models[0](mine)
    except ValueError:
        found["kept"] = models[0].one.gathered._input is not None  # type: ignore[union-attr]
    found["other order"] = said(
        lambda: autotune.nn.ColwiseParallel(context)._apply(linear, DeviceMesh(device.type, [1, 0]))
    )
    return found


def _kind(result: Tensor) -> list[str]:
    return [str(each) for each in result.placements] if isinstance(result, DTensor) else ["local"]
