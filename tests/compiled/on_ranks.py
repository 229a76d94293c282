"""Functions that the tests of the pass run on every rank."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch
from cases import CASES, DECODER, K, N, drawn, gather, reduce
from shares import difference
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._inductor.decomposition import select_decomp_table
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import Linear, Module, Sequential

import autotune
from autotune.compiled.decisions import Table
from autotune.compiled.fusing import Fusing, backend
from autotune.errors import InputError, RanksDisagree
from autotune.kernels.gemm.library import dequantised
from autotune.model_runs.layers import Layers, plan
from autotune.tuning import effort

HEAP = 32 << 20


def everything(arguments: tuple[str, bool]) -> dict[str, Any]:
    """All of it; a sample has one each of functions with symbolic sizes and of layers."""
    url, sample = arguments
    some = slice(1 if sample else None)
    torch._dynamo.config.recompile_limit = 64
    if torch.distributed.get_rank():
        url = f"{url}.of-another-rank"  # it has nothing tuned; the first rank's counts
    with autotune.Context(HEAP, url=url) as context:
        return {
            "cases": {name: fused(context, name) for name in CASES},
            "said": said(context),
            "disagreed": disagreed(context),
            "grown": {name: grown(context, name) for name in GROWN[some]},
            "free": {name: free(context, name) for name in FREE[some]},
            "layers": {kind: layer(context, kind) for kind in LAYERS[some]},
            "decoders": {sharded: decoder(context, sharded == "sharded") for sharded in ("sharded", "replicated")},
            "trained": trained(context),
        }


@functools.cache
def table_of(context: autotune.Context, replicated: bool | None) -> Table:
    """Read once: that takes longer than the pass."""
    return Table(context, replicated=replicated)


class Look:
    """The pass, and the graphs before and after it."""

    def __init__(self, context: autotune.Context, replicated: bool | None = None) -> None:
        self.fusing = Fusing(table_of(context, replicated))
        self.graphs: list[tuple[str, str]] = []

    def __call__(self, graph: Graph) -> None:
        before = str(graph)
        self.fusing(graph)
        graph.lint()
        self.graphs.append((before, str(graph)))

    @property
    def told(self) -> dict[str, Any]:
        after = "".join(after for _, after in self.graphs)
        return {
            "lines": list(self.fusing.lines),
            "graphs": len(self.graphs),
            "unchanged": all(before == after for before, after in self.graphs),
            "collectives": after.count("torch.ops._c10d_functional.") - after.count("wait_tensor.default"),
            "operators": [part.split(".")[0] for part in after.split("torch.ops.iris_autotune.")[1:]],
        }


def error(made: Any, wanted: Any) -> float:
    """The largest of all results, relative."""
    pairs = zip(made, wanted, strict=True) if isinstance(wanted, tuple) else [(made, wanted)]
    return max(difference(*pair) for pair in pairs)


BLOCKWISE = torch.ops.aten._scaled_mm.default


def scaled_by_blocks(a: torch.Tensor, b: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *_: Any) -> torch.Tensor:
    return (dequantised(a, one) @ dequantised(b, other)).to(torch.bfloat16)


def fused(context: autotune.Context, name: str) -> dict[str, Any]:
    """A case traced by itself, which takes a tenth of a compiler's time."""
    case = CASES[name]
    look = Look(context, case.replicated)
    arguments = drawn(case)
    with torch.no_grad():
        decompositions = select_decomp_table() if case.decomposed else None
        traced = make_fx(case.function, decomposition_table=decompositions, tracing_mode="fake")(*arguments)
        traced.graph.eliminate_dead_code()
        look(traced.graph)
        for node in traced.graph.nodes:  # of blocks CPUs have none
            node.target = scaled_by_blocks if node.target is BLOCKWISE and "blocks" in name else node.target
        traced.recompile()
        return {"error": error(traced(*arguments), case.function(*arguments)), **look.told}


def said(context: autotune.Context) -> list[str]:
    """Of a sum and what is added to it, by name: what is explained where that may differ, and where it may not."""
    case = CASES["reduce and add"]
    x, b, r = drawn(case)
    with torch.no_grad():
        return [str(autotune.explain(context, case.function, x, b, r=r, replicated=each)) for each in (False, True)]


def disagreed(context: autotune.Context) -> str:
    """The error where ranks add different tensors, from which they have computed the parts of their sum."""
    _, b, w = drawn(CASES["reduce and add what it comes from"])
    x = torch.full((32, len(b)), float(torch.distributed.get_rank()))  # a form of call that no case has
    look = Look(context)
    with torch.no_grad():
        traced = make_fx(lambda x: reduce((x @ b) @ w) + x, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
        look(traced.graph)
        traced.recompile()
        try:
            traced(x)
        except RanksDisagree as error:
            return str(error)
    return f"none from {look.told['operators']}"


GROWN = ("gather", "gather and quantise rows")


def grown(context: autotune.Context, name: str) -> dict[str, Any]:
    """A function whose rows are a symbol: within a tuned range, then far beyond it."""
    case, look = CASES[name], Look(context)
    torch._dynamo.reset()
    compiled = torch.compile(case.function, backend=backend(look))
    errors, graphs = [], []
    others = drawn(case)[1:]
    for rows in (6, 7, 10, 12, 200):
        x = torch.randn(rows, 64)
        torch._dynamo.mark_dynamic(x, 0)
        errors.append(error(compiled(x, *others), case.function(x, *others)))
        graphs.append(len(look.graphs))
    return {
        "errors": errors,
        "graphs": graphs,
        **{name: value for name, value in look.told.items() if name != "graphs"},
    }


FREE = ("reduce and add", "reduce, add and norm")
"""Cases that are called with sequences of any number and length, too."""


def free(context: autotune.Context, name: str) -> dict[str, Any]:
    """A case whose first tensors have two dimensions of rows, both of them symbols."""
    case, look = CASES[name], Look(context, replicated=True)
    torch._dynamo.reset()
    arguments = [each.unflatten(0, (2, 8)) if each.shape[0] == 16 else each for each in drawn(case)]
    for each in arguments:
        for place in range(each.dim() - 1 if each.dim() > 2 else 0):
            torch._dynamo.mark_dynamic(each, place)
    with torch.no_grad():
        made = torch.compile(case.function, backend=backend(look))(*arguments)
        return {"error": error(made, case.function(*arguments)), **look.told}


LAYERS = ("sequence parallel with biases", "sequence parallel", "tensor parallel", "tensor parallel with biases")


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
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        up, down = ColwiseParallel(), RowwiseParallel()
        if self.sequence_parallel:
            up, down = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(output_layouts=Shard(1))
        parallelize_module(self, mesh, {"mlp.0": up, "mlp.2": down})
        return self


def layer(context: autotune.Context, kind: str) -> dict[str, Any]:
    """A layer under DTensor's own styles, against the same without."""
    from torch.distributed.tensor import DTensor

    sequence_parallel, bias = "sequence" in kind, "biases" in kind
    look = Look(context)
    torch._dynamo.reset()
    x = torch.randn((1, 16, 128), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = Layer(sequence_parallel=sequence_parallel, bias=bias)(x)
        model = Layer(sequence_parallel=sequence_parallel, bias=bias).parallel()
        rank = torch.distributed.get_rank()
        mine = x.chunk(2, dim=1)[rank] if sequence_parallel else x
        made = torch.compile(model, backend=backend(look))(mine)
        explained = str(autotune.explain(context, model, mine))
    made = made.to_local() if isinstance(made, DTensor) else made
    part = wanted.chunk(2, dim=1)[rank] if sequence_parallel else wanted
    return {"error": error(made, part), "explained": explained, **look.told}


def explained(url: str) -> list[Any]:
    """Collectives found in a model, more often than a code may be compiled; compiled in place; in broken graphs."""
    times = 2

    class Whole(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(gather(x, 0))

    class Broken(Whole):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._dynamo.graph_break()
            return super().forward(x)

    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = times - 1  # eight by default
    with autotune.Context(HEAP, url=url) as context, torch.no_grad():
        x, models = torch.randn(8, 64), (Whole(64, 32), Broken(64, 32))
        found: list[Any] = [len(autotune.explain(context, models[0], x).lines) for _ in range(times)]
        found.append(len(_debug_get_cache_entry_list(Whole.forward.__code__)))
        for model in models:
            model.compile(backend="aot_eager")
            model(x)
            found += [len(autotune.explain(context, model, x).lines) for _ in range(times)]
        return found


def later(file: str) -> list[Any]:
    """Explanations before and after a database is there; distinct compilers' keys; errors of a closed context."""
    case, found, said = CASES["gather"], list[Any](), list[str]()
    with autotune.Context(HEAP, url=f"sqlite:///{file}.later") as context, torch.no_grad():
        for _ in range(2):
            found.append([line.replaced for line in autotune.explain(context, case.function, *drawn(case)).lines])
            said.append(autotune.fusing(context)["post_grad_custom_pre_pass"].uuid())
            if torch.distributed.get_rank() == 0 and Path(file).exists():
                Path(file).rename(f"{file}.later")
        context.machine = dataclasses.replace(context.machine, interconnect="pcie")
        said.append(autotune.fusing(context)["post_grad_custom_pre_pass"].uuid())
    for ask in (lambda: autotune.fusing(context), lambda: autotune.explain(context, case.function, *drawn(case))):
        try:
            ask()
        except InputError as error:
            found.append(str(error))
    return [*found[:2], len(set(said)), *found[2:]]


def decoder(context: autotune.Context, sharded: bool) -> dict[str, Any]:
    """Layers with norms and gates under PyTorch's plan, compiled with the pass, against the same without."""
    look = Look(context)
    torch._dynamo.reset()
    torch.manual_seed(4)
    model = Layers(dataclasses.replace(DECODER, layers=1 if sharded else 2), 2, separate=False)
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan(separate=False, sequence_parallel=sharded))
    x = torch.randn((1, 16, DECODER.hidden), generator=torch.Generator().manual_seed(3))
    x = x.chunk(2, dim=1)[torch.distributed.get_rank()].contiguous() if sharded else x
    with torch.no_grad():
        wanted = model(x)
        return {"error": error(torch.compile(model, backend=backend(look))(x), wanted), **look.told}


def trained(context: autotune.Context) -> dict[str, Any]:
    """Gradients through a compiled layer, with the pass in its forward and its backward."""
    look = Look(context)
    torch._dynamo.reset()
    x = torch.randn((1, 16, 128), generator=torch.Generator().manual_seed(3))
    gradients = []
    for compiled in (False, True):
        model = Layer(sequence_parallel=False, bias=False).parallel()
        forward = torch.compile(model, backend=backend(look)) if compiled else model
        forward(x).square().sum().backward()
        gradients.append(tuple(each.grad.to_local() for each in model.parameters()))
    return {"error": error(gradients[1], gradients[0]), **look.told}


def first_calls(url: str) -> list[dict[str, Any]]:
    """Runs of a program: each tunes what it calls first, eagerly or in a graph, with a budget of one search; the last
    tunes nothing.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    arguments, function = [each.to(device) for each in drawn(CASES["reduce"])], CASES["reduce"].function
    runs = []
    if device.type == "cpu":
        effort.MOST_TRIALS = 2  # of a search within seconds
    for tune, sizes in (("5s", (32, 256)), ("5s", (32,)), (None, ())):
        with autotune.Context(HEAP * 4, url=url) as context, torch.no_grad():
            torch._dynamo.reset()
            made = autotune.fusing(context, tune=tune)["post_grad_custom_pre_pass"]
            sources = []
            for n in sizes:  # they are not within a factor of two, nor of the graph's depth
                autotune.gemm_all_reduce(context, *(torch.randn(size, device=device) for size in ((16, 32), (32, n))))
                problem = autotune.GemmAllReduce(m=16, n=n, k=64, world_size=2, dtype="fp32")
                sources.append(context.choose(problem).source)
            compiled = torch.compile(function, backend=backend(made), dynamic=False)
            difference = error(compiled(*arguments), function(*arguments))
            lines = [str(line) for line in made.lines]
            runs.append({"sources": sources, "lines": lines, "cached": made.uuid() is not None, "error": difference})
            context.check()
    return runs


PLAIN = ("gather linear with a bias", "scatter sequences of several", "reduce", "gather untuned")
EXTENDED = (
    "reduce, add and norm", "gather rows and swiglu", "gather fp8 with scales by rows", "reduce fp8",
    "gather and quantise rows", "reduce, norm and quantise rows",
)  # fmt: skip
"""None gathers along another dimension than the first: there torch 2.11's dynamo breaks the graph."""


@torch._inductor.config.patch(force_disable_caches=True)  # a graph out of a cache is not looked at again
def inductor(url: str) -> dict[str, Any]:
    """The options of ``fusing``, with the code that inductor generates; and what ``collect`` hears of plain cases."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    more = [*EXTENDED, *(name for name in CASES if "blocks" in name and device.type == "cuda")]
    with autotune.Context(HEAP * 4, url=url) as context, torch.no_grad():
        with autotune.collect() as problems:
            found = {name: by_inductor(context, name, device) for name in PLAIN}
        found |= {name: by_inductor(context, name, device) for name in more}
        context.check()
    return {"found": found, "list": problems.text()}


def by_inductor(context: autotune.Context, name: str, device: torch.device) -> dict[str, Any]:
    """The difference from the unfused function, and what became of each collective."""
    arguments = [each.to(device) for each in drawn(CASES[name])]
    torch._dynamo.reset()
    options = autotune.fusing(context, replicated=CASES[name].replicated)
    compiled = torch.compile(CASES[name].function, options=options, dynamic=False)
    difference = error(compiled(*arguments), CASES[name].function(*arguments))
    return {"error": difference, "lines": [str(line) for line in options["post_grad_custom_pre_pass"].lines]}
