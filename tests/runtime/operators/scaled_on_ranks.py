"""Functions that the tests of operators on fp8 run on every rank."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from calls import HEAP, configs, said, schema_arguments

import autotune
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.workloads import workload
from autotune.workloads.gemm import FACTORS, SCALE_FACTORS

FP8 = {"dtype": "fp8", "b_order": "nk"}


def problems() -> list[Any]:
    """Each kind of scales, each operator, each result's type; and fp32 of operands without scales."""
    ranks = dist.get_world_size()
    size = {"m": 16 * ranks, "n": 32 * ranks, "k": 32 * ranks, "world_size": ranks, **FP8}
    deep = {**size, "k": 128 * ranks}  # whole blocks, several of them
    return [
        autotune.AllGatherGemm(**deep, scales="row", bias=True),
        autotune.GemmReduceScatter(**deep, scales="block", out_dtype="fp32"),
        autotune.GemmAllReduce(**size, scales="tensor", out_dtype="fp16", bias=True),
        autotune.AllGatherGemm(**deep, scales="block", layout="k"),
        autotune.GemmAllReduce(**{**size, "dtype": "fp8_e5m2"}, scales="row"),
        autotune.AllGatherGemm(**size | {"dtype": "bf16"}, out_dtype="fp32", bias=True),
        autotune.GemmReduceScatter(**size | {"dtype": "fp16"}, out_dtype="fp32", bias=True),
        autotune.GemmAllReduce(**size | {"dtype": "bf16"}, out_dtype="fp32"),
    ]


def call(context: autotune.Context, problem: Any, operands: tuple[Any, ...], **more: Any) -> torch.Tensor:
    """The operator of a problem."""
    a, b, bias, scale_a, scale_b = operands[:5]
    if getattr(problem, "layout", "rows") == "k":
        more["gather_dim"] = -1
    asked = None if problem.out_dtype == "auto" else TORCH_DTYPES[problem.out_dtype]
    operator = getattr(autotune, problem.workload)
    out: torch.Tensor = operator(context, a, b, bias, scale_a=scale_a, scale_b=scale_b, out_dtype=asked, **more)
    return out


def everything(arguments: tuple[str, bool]) -> dict[str, Any]:
    """Every answer of this module, in one context; or a sample."""
    url, sample = arguments
    with autotune.Context(HEAP, url=url) as context:
        found = {
            "right": right(context, sample), "in_place": in_place(context), "refused": refused(context),
            "compiled": compiled(context, sample),
        }  # fmt: skip
        context.check()
    return found


def operation_of(context: autotune.Context, problem: Any) -> tuple[Any, tuple[Any, ...]]:
    """The tuner's operation with inputs drawn, and these as a caller has them."""
    found = workload(problem.workload)
    operation: Any = found.operation(problem, context.heap, context.machine, context.spin_limit)
    operation.refresh(3)
    tensors = operation._tensors
    operands = [getattr(tensors, name) for name in found.kernels.operands]
    return operation, tuple(None if each is None else each.clone() for each in operands)


def right(context: autotune.Context, sample: bool) -> dict[str, bool]:
    """By problem and mode: a given result as near to the reference as the workload says; by the looked-up config a new
    one, too. A sample has the second problem of a kind by that config alone.
    """
    answers = {}
    for number, problem in enumerate(problems()):
        found = workload(problem.workload)
        operation, operands = operation_of(context, problem)
        new = call(context, problem, operands)
        for config in (None, *([] if sample and number in (3, 4) else configs(problem, context.machine))):
            checked = config or found.default_config(problem, context.machine)
            allowed = found.tolerance_of(problem, checked, context.machine)
            given = torch.full_like(new, float("nan"))
            assert call(context, problem, operands, config=config, out=given) is given
            errors = [operation.error_of([each], 0) for each in ([new, given] if config is None else [given])]
            near = all(e.overall <= allowed.overall and e.element <= allowed.element for e in errors)
            way = "looked up" if config is None else config["mode"]
            name = f"{problem.workload} {problem.dtype} {problem.scales} {way}"
            answers[name] = near and given.dtype == TORCH_DTYPES[problem.result_dtype]
        context.release()
    return answers


def in_place(context: autotune.Context) -> dict[str, bool]:
    """The same with A in place, in the modes whose peers read it: its scales are copied at each call."""
    answers = {}
    problem = dataclasses.replace(problems()[0], in_place=True)
    found = workload(problem.workload)
    for config in configs(problem, context.machine):
        operation, (a, *others) = operation_of(context, problem)
        shard = autotune.all_gather_shard(context, problem, config=config)
        shard.copy_(a)
        for number, factor in enumerate((1.0, FACTORS[1] * SCALE_FACTORS[1])):
            others[2] *= factor  # A's scales alone
            out = call(context, problem, (shard, *others), config=config, in_place=True)
            allowed = found.tolerance_of(problem, config, context.machine)
            answers[f"{config['mode']} {factor}"] = operation.error_of([out], number).overall <= allowed.overall
        context.release()
    return answers


def refused(context: autotune.Context) -> dict[str, str]:
    """What wrong scales and types are told, on every rank."""
    problem = problems()[0]
    _, (a, b, bias, scale_a, scale_b) = operation_of(context, problem)
    rows, wide = scale_a.shape[0], torch.empty(2 * scale_a.shape[0], 2)[::2, :1]

    def gather(*operands: Any, **more: Any) -> str:
        names = ("a", "b", "bias", "scale_a", "scale_b")
        given = dict(zip(names, (a, b, bias, scale_a, scale_b), strict=True)) | more
        return said(lambda: autotune.all_gather_gemm(context, **given))

    return {
        "none": gather(scale_a=None, scale_b=None),
        "one": gather(scale_b=None),
        "shape": gather(scale_a=scale_a[:-1]),
        "vector": gather(scale_a=scale_a.view(-1)),
        "swapped": gather(scale_a=scale_b, scale_b=scale_a),
        "mixed": gather(scale_a=torch.ones(1)),
        "type": gather(scale_a=scale_a.double()),
        "strides": gather(scale_a=wide[:rows]),
        "device": gather(scale_a=scale_a.to("meta")),
        "of b": gather(b=b.to(torch.bfloat16)),
        "of bias": gather(bias=bias.to(torch.float16)),
        "order": gather(b=b.contiguous()),
        "result": gather(out_dtype=torch.float64),
        "of bf16": gather(a=a.bfloat16(), b=b.bfloat16()),
        "out": gather(out=torch.empty(4, 4)),
        "right": gather(),
    }


def compiled(context: autotune.Context, sample: bool) -> dict[str, Any]:
    """Torch's own checks of the operators on fp8, and whether a compiled function gives what an eager one does."""
    found: dict[str, Any] = {}
    here = problems()
    for problem in here[0:3:2] if sample else (*here[:3], here[5]):
        _, operands = operation_of(context, problem)

        def doubled(*operands: Any, problem: Any = problem) -> torch.Tensor:
            return call(context, problem, operands) * 2

        eager = doubled(*operands)
        inside = torch.compile(doubled, backend="aot_eager", fullgraph=True)(*operands)
        found[f"{problem.workload} {problem.dtype} compiled"] = (
            torch.equal(eager, inside) and eager.dtype == inside.dtype
        )
        operator = getattr(torch.ops.iris_autotune, problem.workload)
        with torch.no_grad():
            checked = torch.library.opcheck(
                operator.default,
                schema_arguments(context, problem, operands),
                test_utils=("test_faketensor", "test_autograd_registration"),  # the others compute with fp8
            )
        found[f"{problem.workload} {problem.dtype} opcheck"] = set(checked.values()) == {"SUCCESS"}
    return found
