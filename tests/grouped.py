"""Grouped GEMMs of all kinds, run where this process runs kernels, or compiled for a machine that is not here."""

from __future__ import annotations

from typing import Any

import torch

from autotune.heap.interpreter import mend_interpreter
from autotune.kernels.gemm.library import dequantised
from autotune.kernels.gemm.problem import scale_shapes
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES
from autotune.kernels.moe.grouped_launch import GroupedOperands, grouped_gemm
from autotune.kernels.moe.grouped_space import GroupedTile
from autotune.machine import machine

TILE = GroupedTile(
    mode="none", block_m=16, block_n=32, block_k=32, group_m=2, num_warps=4, num_stages=2, loads="pointer",
    swap_ab=False, programs_per_unit=1,
)  # fmt: skip
COUNTS: dict[str, list[int]] = {
    "even": [8, 8, 8], "some empty": [0, 17, 0, 1, 0], "one takes all": [0, 40, 0], "none": [0, 0], "one": [1],
    "long": [3, 201],
}  # fmt: skip
SPARE = 5
"""Rows beyond the last expert's."""


def wrong(case: dict[str, Any]) -> float:
    """The largest error of an element over the root of the mean square; infinite where rows were stored that do not
    exist.
    """
    here = machine()
    device = torch.device("cpu" if here.is_interpreter else "cuda")
    counts, n, k = COUNTS[case["counts"]], case.get("n", 72), case.get("k", 80)
    dtype, epilogue = case.get("dtype", "bf16"), case.get("epilogue", "none")
    halves = epilogue != "none" and case.get("halves", True)
    knobs = TILE.__class__(**{**vars(TILE), **case.get("knobs", {})})
    generator = torch.Generator().manual_seed(1)
    rows, fp8 = sum(counts) + SPARE, dtype == "fp8"
    kind, result = OPERAND_DTYPES[dtype], TORCH_DTYPES["bf16" if fp8 else dtype]
    gather = torch.randperm(2 * rows, generator=generator)[:rows].to(torch.int32) if case.get("gather") else None
    per = 2
    a = torch.randn((rows, k), generator=generator).to(kind)
    b = torch.randn((len(counts), n, k), generator=generator).to(kind).transpose(1, 2)
    b = b.contiguous() if case.get("b_order", "kn") == "kn" else b
    scales = case.get("scales", "row") if fp8 else "none"
    scale_a = scale_b = None
    if fp8:
        of_a, (along_k, along_n) = scale_shapes(scales, (rows, k), (k, n))
        scale_a = torch.rand(of_a, generator=generator) + 0.5
        scale_b = (torch.rand((len(counts), along_n, along_k), generator=generator) + 0.5).transpose(1, 2)
    offsets = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    c = torch.full((rows, n // 2 if epilogue != "none" else n), 7.0, dtype=result)

    def there(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else tensor.to(device)

    operands = GroupedOperands(
        there(a), there(b), there(offsets), rows, there(gather), per, there(scale_a), there(scale_b), scales,
        epilogue=epilogue, halves=halves,
    )  # fmt: skip
    c = c.to(device)
    units = 3 if here.is_interpreter else here.compute_units
    grouped_gemm(knobs, operands, c, units).run()
    c, worst = c.cpu(), 0.0
    for expert, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        chosen = torch.arange(int(begin), int(end))
        chosen = chosen if gather is None else gather[begin:end].long() // per
        of_a, of_b = a[chosen].double(), b[expert].double()
        if scale_a is not None and scale_b is not None:
            of_a, of_b = (
                dequantised(a[chosen], scale_a[chosen]).double(),
                dequantised(b[expert], scale_b[expert]).double(),
            )
        product = of_a @ of_b
        if epilogue != "none":
            gate, up = product.chunk(2, 1) if halves else (product[:, ::2], product[:, 1::2])
            product = torch.nn.functional.silu(gate) * up
        if len(product):
            difference = (c[begin:end].double() - product).abs().max() / product.square().mean().sqrt()
            worst = max(worst, float(difference))
    return worst if bool((c[int(offsets[-1]) :] == 7.0).all()) else float("inf")


def all_wrong(cases: list[dict[str, Any]]) -> list[float]:
    """On a rank: the error of each case."""
    if machine().is_interpreter:
        mend_interpreter()
    return [wrong(case) for case in cases]
