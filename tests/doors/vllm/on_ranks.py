"""vLLM's groups on two gloo ranks, without an engine: the plugin's operators and layer against plain collectives."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from models import HEAD, HEADS, HIDDEN, WIDTH
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import get_tp_group
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

Tensor = torch.Tensor
EPS = 1e-6
K, DEEP = HEADS * HEAD // 2, WIDTH // 2


def drawn(*shape: int, seed: int = 0, each: bool = True) -> Tensor:
    """Another tensor on each rank, or one for all."""
    generator = torch.Generator().manual_seed(seed + (1000 * get_tp_group().rank_in_group if each else 0))
    return torch.randn(shape, generator=generator)


def normed(total: Tensor, weight: Tensor) -> Tensor:
    return total * torch.rsqrt(total.square().mean(1, keepdim=True) + EPS) * weight


def summed(x: Tensor) -> Tensor:
    total = x.clone()
    torch.distributed.all_reduce(total)
    return total


def cases(m: int) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """Operators, by name, with m tokens: the call and what is expected."""
    ours, tp = torch.ops.iris_autotune_vllm, get_tp_group()
    group, rank = tp.unique_name, tp.rank_in_group
    a, b = drawn(m, K), drawn(HIDDEN, K, seed=1).t()
    residual, weight = drawn(m, HIDDEN, seed=2, each=False), 1 + drawn(HIDDEN, seed=3, each=False) / 8
    total = summed(a @ b)
    yield "gemm_all_reduce", lambda: ours.gemm_all_reduce(a, b, group), (total,)
    x = drawn(m, HIDDEN, seed=4)
    for added in (residual, None):
        whole = summed(x) if added is None else summed(x) + added
        wanted = normed(whole, weight), whole
        yield "all_reduce_norm", lambda added=added: ours.all_reduce_norm(x, added, weight, EPS, group), wanted
    a, b = drawn(m, DEEP), drawn(HIDDEN, DEEP, seed=1).t()
    total = summed(a @ b) + residual
    wanted = normed(total, weight), total
    yield "gemm_all_reduce_norm", lambda: ours.gemm_all_reduce_norm(a, b, residual, weight, EPS, group), wanted
    whole, narrow = drawn(2 * m, K, seed=5), drawn(HIDDEN, K, seed=1).t()
    rows = summed(whole @ narrow)[rank * m : (rank + 1) * m]
    yield "gemm_reduce_scatter", lambda: ours.gemm_reduce_scatter(whole, narrow, group), (rows,)
    shard, wide = drawn(m, HIDDEN, seed=6), drawn(HIDDEN, HIDDEN, seed=7).t()
    parts = [torch.empty_like(shard) for _ in range(tp.world_size)]
    torch.distributed.all_gather(parts, shard)
    yield "all_gather_gemm", lambda: ours.all_gather_gemm(shard, wide, group), (torch.cat(parts) @ wide,)


def operators(m: int) -> dict[str, float]:
    """The largest error of each."""
    errors = dict[str, float]()
    for name, call, wanted in cases(m):
        made = call()
        pairs = zip(made if isinstance(made, tuple) else (made,), wanted, strict=True)
        error = max(float((one - other).abs().max()) for one, other in pairs)
        errors[name] = max(error, errors.get(name, 0.0))
    return errors


def misplaced() -> float:
    """A first operand at an odd address on one rank alone, once the others have called the same form."""
    ours, tp = torch.ops.iris_autotune_vllm, get_tp_group()
    a, b = drawn(16, K), drawn(HIDDEN, K, seed=1).t()
    if tp.rank_in_group == 1:
        a = torch.cat([torch.zeros(1), a.flatten()])[1:].view(16, K)
    return float((ours.gemm_all_reduce(a, b, tp.unique_name) - summed(a @ b)).abs().max())


def layers() -> dict[str, Any]:
    """A layer with a bias, which vLLM's first rank adds before the sum; and one that reduces nothing."""
    from iris_autotune_vllm import layers

    layers.register()
    layers.register()  # as vLLM may
    from vllm.model_executor.layers.linear import RowParallelLinear

    errors = dict[str, Any]()
    for name, options in {"bias": {"bias": True}, "apart": {"bias": False, "reduce_results": False}}.items():
        layer = RowParallelLinear(2 * K, HIDDEN, params_dtype=torch.float32, return_bias=False, **options)
        layer.weight.data.copy_(drawn(HIDDEN, K, seed=8))
        if layer.bias is not None:
            layer.bias.data.copy_(drawn(HIDDEN, seed=9, each=False))
        layer.quant_method.process_weights_after_loading(layer)
        x = drawn(16, K, seed=10)
        wanted = x @ layer.weight.t()
        if layer.reduce_results:
            wanted = summed(wanted) + layer.bias
        errors[name] = float((layer(x) - wanted).detach().abs().max())
    return {"errors": errors, "class": type(layer).__name__, "biased": sorted(layers.BIASED)}


def reduce(x: Tensor) -> Tensor:
    return torch.ops.vllm.all_reduce(x, get_tp_group().unique_name)


def graphs() -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """What vLLM's models have, as functions of tensors, and what looks like it."""
    vllm, ir, group = torch.ops.vllm, torch.ops.vllm_ir, get_tp_group().unique_name
    a, deep, x = drawn(16, K), drawn(16, DEEP), drawn(16, HIDDEN, seed=4)
    w, down, wide = drawn(HIDDEN, K, seed=1), drawn(HIDDEN, DEEP, seed=1), drawn(HIDDEN, HIDDEN, seed=7)
    residual, weight = drawn(16, HIDDEN, seed=2, each=False), 1 + drawn(HIDDEN, seed=3, each=False) / 8

    def norm(total: Tensor, residual: Tensor, weight: Tensor) -> Any:
        return ir.fused_add_rms_norm(total, residual, weight, EPS)

    def first_norm(x: Tensor, weight: Tensor) -> Any:
        total = reduce(x)
        return ir.rms_norm(total, weight, EPS), total * 2

    def sharded_sequence(x: Tensor, wide: Tensor, w: Tensor) -> Any:
        hidden = vllm.all_gather(x, 0, 2, group) @ wide.t()
        return vllm.reduce_scatter(hidden[:, :K].contiguous() @ w.t(), 0, 2, group)

    def used_twice(a: Tensor, w: Tensor) -> Any:
        product = a @ w.t()
        return reduce(product) + product

    def gathered_twice(x: Tensor, wide: Tensor) -> Any:
        whole = vllm.all_gather(x, 0, 2, group)
        return whole @ wide.t(), whole + 1

    return {
        "gemm": (lambda a, w: reduce(a @ w.t()), (a, w)),
        "gemm, norm": (lambda a, w, r, n: norm(reduce(a @ w.t()), r, n), (deep, down, residual, weight)),
        "experts, norm": (lambda x, r, n: norm(reduce(x * 2), r, n), (x, residual, weight)),
        "first norm": (first_norm, (x, weight)),
        "sharded sequence": (sharded_sequence, (x, wide, w)),
        "product used twice": (used_twice, (a, w)),
        "sum as residual": (lambda x, r, n: norm(r, reduce(x * 2), n), (x, residual, weight)),
        "part of a row": (lambda x, r, n: ir.fused_add_rms_norm(reduce(x), r, n, EPS, 64), (x, residual, weight)),
        "gathered twice": (gathered_twice, (x, wide)),
        "along columns": (lambda x: vllm.all_gather(x, 1, 2, group) + 1, (x,)),
    }


def traced(function: Callable[..., Any], given: tuple[Tensor, ...]) -> torch.fx.GraphModule:
    """As vLLM compiles: the number of tokens is a symbol, other sizes are numbers."""

    def form(x: Tensor) -> Any:
        sizes = [DimDynamic.DUCK if size == 16 else DimDynamic.STATIC for size in x.shape]
        return StatelessSymbolicContext(dynamic_sizes=sizes)

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    module: torch.fx.GraphModule = make_fx(function)(*(mode.from_tensor(x, symbolic_context=form(x)) for x in given))
    return module


def rewritten() -> dict[str, Any]:
    """By graph: the operators that the pass puts there, and the error of what it has made."""
    from iris_autotune_vllm import PASS, layers
    from torch.utils._pytree import tree_leaves
    from vllm.compilation.passes.inductor_pass import pass_context
    from vllm.config.utils import Range

    def run(function: Callable[..., Any], given: tuple[Tensor, ...], first: int, last: int) -> tuple[list[str], float]:
        wanted = tree_leaves(function(*given))
        module = traced(function, given)
        with pass_context(Range(first, last)):
            PASS(module.graph)
        module.graph.lint()
        module.recompile()
        called = [str(node.target) for node in module.graph.nodes if "iris_autotune" in str(node.target)]
        made = tree_leaves(module(*given))
        error = max(float((one - other).abs().max()) for one, other in zip(made, wanted, strict=True))
        return [name.split(".")[1] for name in called], error

    found = {name: run(*graph, 3, 64) for name, graph in graphs().items()}
    found["one token"] = run(*graphs()["gemm, norm"], 1, 2)
    found["beyond the table"] = run(*graphs()["gemm"], 4096, 8192)
    layers.BIASED.add((K, HIDDEN))
    found["bias of the first rank"] = run(*graphs()["gemm"], 3, 64)
    return found


def main() -> None:
    rank = int(os.environ["RANK"])
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(2, rank, "env://", rank, backend="gloo")
        initialize_model_parallel(2, backend="gloo")
        from compiled_cpu import change_operators
        from iris_autotune_vllm import CALLS, PASS

        import autotune

        change_operators()
        small = None  # held, or nobody would find it
        if "HEAP" in os.environ:
            small = autotune.Context(int(os.environ["HEAP"]), group=get_tp_group().device_group)
        before = PASS.uuid()
        with torch.inference_mode():
            told: dict[str, Any] = {
                str(m): operators(m) for m in (16, 2048)
            }  # the larger one is beyond all that is tuned
            told |= {"calls": dict(CALLS), "misplaced": misplaced(), "graphs": rewritten()}
            before_layers = CALLS.total()
            told |= {"layers": layers(), "calls of layers": CALLS.total() - before_layers}
    told["uuids"] = [before, PASS.uuid()]
    print("RESULT", rank, json.dumps(told), flush=True)
    torch.distributed.barrier()
    from autotune import symm_mem

    symm_mem.close()
    if small is not None:
        small.close()


if __name__ == "__main__":
    sys.exit(main())
