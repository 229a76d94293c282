"""Functions that the tests of modules and styles run on every rank."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from calls import said
from shares import HEAP, difference, part
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as theirs
from torch.distributed.tensor.parallel import parallelize_module

import autotune
from autotune.model_runs.layers import Layers, Mlp, plan
from autotune.models.architecture import Architecture, Biases
from autotune.nn import ColumnParallelLinear, RowParallelLinear

Tensor = torch.Tensor
BATCH, TOKENS, HIDDEN = 2, 8, 32
DECODER = Architecture("llama", 1, HIDDEN, 4, 4, 8, 48, 24, Biases(mlp=True), None)


def everything(arguments: tuple[str, bool]) -> dict[str, Any]:
    """All of it, on the same ranks and in the same context; or a sample, which compiles the block's MLP alone, and has
    half of the pairs of layouts.
    """
    url, sample = arguments
    with autotune.Context(HEAP, url=url) as context:
        return {"modules": modules(context), "styles": styles(context, sample), "corners": corners(context, sample),
            "under way": under_way(context),
            "made": made(context), "keeping": keeping(context), "handed on": handed_on(context)}  # fmt: skip


def modules(context: autotune.Context) -> dict[str, float]:
    """Differences of an MLP of our modules from the whole one: results, gradients of the input and of all weights."""
    torch.manual_seed(1)
    device = context.heap.device
    plain = Mlp(DECODER, separate=True).to(device)
    x = torch.randn(BATCH, TOKENS, HIDDEN, device=device, requires_grad=True)
    weights = torch.randn(BATCH, TOKENS, HIDDEN, device=device)
    right = plain(x)
    (right * weights).sum().backward()
    found = {}
    for dim in (None, 0, 1):
        options = {"sequence_dim": dim}
        ours = Mlp(DECODER, separate=True).to(device)
        ours.gate = autotune.nn.ColumnParallelLinear.from_linear(plain.gate, context, **options)  # type: ignore[assignment]
        shard = nn.Linear(HIDDEN, 48 // dist.get_world_size()).to(device)
        shard.load_state_dict({name: part(each, 0).detach() for name, each in plain.up.state_dict().items()})
        ours.up = autotune.nn.ColumnParallelLinear.from_shard(shard, context, keep_gathered=True, **options)  # type: ignore[assignment]
        ours.down = autotune.nn.RowParallelLinear.from_linear(plain.down, context, **options)  # type: ignore[assignment]
        assert list(ours.state_dict()) == list(plain.state_dict())
        mine = x.detach().clone().requires_grad_() if dim is None else part(x, dim)
        result = ours(mine)
        (result * (weights if dim is None else part(weights, dim).detach())).sum().backward()
        expected = {name: each.grad for name, each in plain.named_parameters()}
        for name, each in ours.named_parameters():
            sharded = {"down.weight": 1, "down.bias": None}.get(name, 0)
            wanted = expected[name] if sharded is None else part(expected[name], sharded)
            found[f"{dim} {name}"] = difference(each.grad, wanted)
        found[f"{dim} result"] = difference(result, right if dim is None else part(right, dim))
        found[f"{dim} x"] = difference(mine.grad, x.grad if dim is None else part(x.grad, dim))
        with torch.no_grad():
            found[f"{dim} without gradients"] = difference(copy.deepcopy(ours)(mine), result)
    return found


class Decoder(nn.Module):
    """A layer between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(24, HIDDEN), nn.Linear(HIDDEN, 24, bias=False)
        self.decoder, self.norm = Layers(DECODER, dist.get_world_size(), separate=True), nn.RMSNorm(HIDDEN)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.decoder(self.embedding(tokens))))
        return out


def plans() -> dict[str, dict[str, theirs.ParallelStyle]]:
    """Torch's own: with replicated activations, and sequence parallel as in its tutorial."""
    col, row = theirs.ColwiseParallel, theirs.RowwiseParallel
    replicated, sharded = (plan(True, in_sequence, "decoder.layers.*.") for in_sequence in (False, True))
    return {
        "replicated": {
            **replicated, "embedding": row(input_layouts=Replicate()), "head": col(output_layouts=Replicate()),
        },
        "sequence parallel": {
            **sharded, "embedding": row(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": theirs.SequenceParallel(), "head": col(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    }  # fmt: skip


def styles(context: autotune.Context, sample: bool) -> dict[str, float]:
    """Differences of a block by our styles from torch's: results and gradients, eager and compiled."""
    device = context.heap.device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(2)
    plain = Decoder().to(device)
    tokens = torch.randint(0, 24, (BATCH, TOKENS), device=device)
    found = {}

    def compile_it(model: Any) -> None:
        (model.decoder.layers[0].mlp if sample else model).compile(
            backend="inductor" if device.type == "cuda" else "aot_eager"
        )

    for name, given in plans().items():
        right = parallelize_module(copy.deepcopy(plain), mesh, given)
        wanted = right(tokens)
        F.cross_entropy(wanted.flatten(0, 1), tokens.flatten()).backward()
        in_sequence = name == "sequence parallel"
        for share in (False, True)[: 1 + in_sequence]:
            ours = parallelize_module(copy.deepcopy(plain), mesh, autotune.nn.tuned(given, context, share_gather=share))
            assert {n: (type(p), p.placements) for n, p in ours.named_parameters() if isinstance(p, DTensor)} == {
                n: (type(p), p.placements) for n, p in right.named_parameters() if isinstance(p, DTensor)
            }
            for way in ("eager", "compiled")[: 1 + (in_sequence and (share or not sample))]:
                if way == "compiled":
                    compile_it(ours)
                ours.zero_grad()
                result = ours(tokens)
                key = f"{name} {way} {share}"
                found[f"{key} logits"] = difference(result, wanted)
                F.cross_entropy(result.flatten(0, 1), tokens.flatten()).backward()
                for parameter, other in zip(ours.named_parameters(), right.parameters(), strict=True):
                    part = f"{key} {parameter[0].split('.')[0]}"
                    found[part] = max(found.get(part, 0.0), difference(parameter[1].grad, other.grad))
    shared = autotune.nn.tuned(plans()["sequence parallel"], context, share_gather=True)
    ours = parallelize_module(copy.deepcopy(plain), mesh, shared)
    with torch.no_grad(), autotune.collect() as called:
        for way in ("eager", "compiled"):
            if way == "compiled":
                compile_it(ours)
            for again in (False, True):
                found[f"shared gather {way} {again}"] = difference(ours(tokens), wanted)
    gathers = [(each.gathered, count) for each, count in called.items() if isinstance(each, autotune.AllGatherGemm)]
    assert sorted(gathers) == [(False, 4), (True, 4), (True, 4)], "the head; q, k, v; gate and up"
    assert all(each.gathered._input is None for each in ours.modules() if getattr(each, "gathered", None)), "kept"
    return found


def corners(context: autotune.Context, sample: bool) -> dict[str, Any]:
    """Layouts that are seldom asked for, layers that are left to torch, and errors."""
    device, ranks = context.heap.device, dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,))
    torch.manual_seed(3)
    found: dict[str, Any] = {}
    layouts = (Replicate(), Shard(0), Shard(1), Shard(2))
    x = torch.randn(2, 4, 16, device=device)
    for kind in ("ColwiseParallel", "RowwiseParallel"):
        for first, given in enumerate(layouts):
            for wanted in layouts[first % 2 :: 2] if sample else layouts:
                for size in (16, 15):  # the latter is left to torch
                    if size == 15 and not given == wanted == Replicate():
                        continue
                    linear = nn.Linear(*((16, size) if kind == "ColwiseParallel" else (size, 16))).to(device)
                    options = {"input_layouts": given, "output_layouts": wanted, "use_local_output": size == 15}
                    mine = x[..., : linear.in_features]
                    if isinstance(given, Shard):
                        mine = mine.tensor_split(ranks, given.dim)[dist.get_rank()]
                    results, layers = [], []
                    for style in (getattr(theirs, kind)(**options), getattr(autotune.nn, kind)(context, **options)):
                        layers.append(parallelize_module(copy.deepcopy(linear), mesh, style))
                        results.append(layers[-1](mine))
                        (results[-1] if size == 15 else results[-1].to_local()).sin().sum().backward()
                    found[f"{kind} {given} {wanted} {size}"] = difference(results[1], results[0])
                    bias, ours = (layer.bias.grad.to_local() for layer in layers)
                    found[f"{kind} {given} {wanted} {size} bias"] = difference(ours, bias)
    found["wrapped"] = difference(*wrapped(context, mesh))
    found["shared gather without gradients first"] = difference(*partly_without_gradients(context, mesh))
    linear, vector = nn.Linear(16, 16).to(device), torch.randn(16, device=device, requires_grad=True)
    ours = autotune.nn.ColumnParallelLinear.from_linear(linear, context)
    of_vector = [torch.autograd.grad(each(input=vector).sin().sum(), vector)[0] for each in (ours, linear)]
    found["vector"] = difference(*of_vector)
    for kind, given, wanted in (("ColwiseParallel", Shard(0), Shard(-1)), ("RowwiseParallel", Shard(-1), Replicate())):
        of_vector, mine = [], vector.detach().chunk(ranks)[dist.get_rank()].requires_grad_()
        for style in (getattr(theirs, kind)(**(layouts := {"input_layouts": given, "output_layouts": wanted})),
                      getattr(autotune.nn, kind)(context, **layouts)):  # fmt: skip
            result = parallelize_module(copy.deepcopy(linear), mesh, style)(mine)
            of_vector.append(torch.cat([result, *torch.autograd.grad(result.sin().sum(), mine)]))
        found[f"{kind} of a vector"] = difference(*of_vector)
    weightless = autotune.nn.RowParallelLinear(context, 16 * ranks, 8, device="meta")
    found["no weights yet"] = said(lambda: weightless(input=x))
    scaled = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
    found["computed weight"] = said(lambda: autotune.nn.RowParallelLinear.from_shard(scaled, context))
    scaled = nn.Linear(16, 16)
    scaled.scale = nn.Parameter(torch.ones(()))
    found["more parameters"] = said(lambda: autotune.nn.RowParallelLinear.from_linear(scaled, context))
    found["uneven"] = said(lambda: autotune.nn.ColumnParallelLinear(context, 16, 15))
    flat = init_device_mesh(device.type, (1, ranks))
    style = autotune.nn.ColwiseParallel(context)
    found["mesh"] = said(lambda: style._apply(nn.Linear(16, 16), flat))
    layer = parallelize_module(nn.Linear(16, 16).to(device), mesh, style)
    found["input's mesh"] = said(lambda: layer(DTensor.from_local(x, flat, (Shard(0), Shard(1)), run_check=False)))
    return found


def wrapped(context: autotune.Context, mesh: DeviceMesh) -> list[Tensor]:
    """Results of a linear layer whose forward an adapter replaced, by our style and by torch's."""
    results, whole = [], nn.Linear(16, 16).to(context.heap.device)
    for style in (autotune.nn.ColwiseParallel(context), theirs.ColwiseParallel()):
        linear = copy.deepcopy(whole)
        before = linear.forward
        linear.forward = lambda x, before=before: before(x) * 2  # type: ignore[method-assign, misc]
        results.append(parallelize_module(linear, mesh, style)(torch.ones(4, 16, device=context.heap.device)))
    return results


class Chosen(nn.Module):
    """A layer's result by the signs of another one's, which has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.value = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            signs = self.choice(x).sign()
        out: Tensor = self.value(x) * signs
        return out


def partly_without_gradients(context: autotune.Context, mesh: DeviceMesh) -> list[Tensor]:
    """The input's gradients, where the first of two layers that share a gather has none: by our styles, by torch's."""
    torch.manual_seed(4)
    plain, found = Chosen().to(context.heap.device), list[Tensor]()
    plan: dict[str, theirs.ParallelStyle] = {
        "": theirs.PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),)),
        "choice": theirs.ColwiseParallel(), "value": theirs.ColwiseParallel(),
    }  # fmt: skip
    whole = torch.randn(8, 16, device=context.heap.device)
    for chosen in (autotune.nn.tuned(plan, context, share_gather=True), plan):
        x = part(whole, 0)
        parallelize_module(copy.deepcopy(plain), mesh, chosen)(x).sin().sum().backward()
        found.append(x.grad)
    return found


def under_way(context: autotune.Context) -> dict[str, float]:
    """Differences of a layer behind torch's embedding, whose result ranks exchange: without and with gradients."""
    mesh, found, results = init_device_mesh(context.heap.device.type, (dist.get_world_size(),)), {}, []
    tokens = torch.arange(2 * TOKENS, device=context.heap.device).view(1, -1)
    plan: dict[str, theirs.ParallelStyle] = {
        "0": theirs.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "1": theirs.ColwiseParallel(input_layouts=Shard(1)),
    }
    for chosen in (plan, autotune.nn.tuned(plan, context)):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Embedding(64, HIDDEN), nn.Linear(HIDDEN, 48)).to(context.heap.device)
        parallelize_module(model, mesh, chosen)
        with torch.no_grad():
            result = model(tokens)
        model(tokens).sin().sum().backward()
        results.append([result, *(each.grad.to_local() for each in model.parameters() if each.grad is not None)])
    for number, pair in enumerate(zip(*results, strict=True)):
        found[str(number)] = difference(*pair)
    return found


def made(context: autotune.Context) -> dict[str, Any]:
    """Types, gradients, sizes and biases of layers made from others; parameters of those that are drawn."""
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
