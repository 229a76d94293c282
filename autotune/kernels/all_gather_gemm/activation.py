"""The activation behind the library's GEMM, in one kernel, as torch.compile makes one of it; and said in torch."""

from __future__ import annotations

import math

import torch

from autotune.kernels.all_gather_gemm.problem import EPILOGUES, AllGatherGemm
from autotune.kernels.gemm.library import multiply
from autotune.kernels.launching.gemm import GemmTensors
from autotune.kernels.launching.plan import settle_key
from autotune.kernels.launching.tensors import TORCH_DTYPES
from autotune.kernels.primitives.activate import activate_kernel

BLOCK = 1024
"""Elements of C that a program computes."""


def multiply_and_activate(
    problem: AllGatherGemm, a: torch.Tensor, scale_a: torch.Tensor | None, tensors: GemmTensors, out: torch.Tensor,
    out_scales: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """The library's GEMM of rows of A, with the bias and what follows it; ``out_scales``, where that is fp8."""
    if not problem.gated:
        multiply(problem, a, scale_a, tensors, out, tensors.bias)
        return
    product = out.new_empty((a.shape[0], tensors.b.shape[1]), dtype=TORCH_DTYPES[problem.result_dtype])
    multiply(problem, a, scale_a, tensors, product, tensors.bias)
    rows, columns = out.shape
    block = min(BLOCK, 1 << (columns - 1).bit_length())
    blocks = math.ceil(columns / block)
    settle_key(activate_kernel)
    activate_kernel[(rows * blocks,)](
        product, out, out_scales, columns, blocks, EPILOGUES.index(problem.epilogue), problem.halves, block
    )


def reference(product: torch.Tensor, problem: AllGatherGemm) -> torch.Tensor:
    """Activation(gate) * up of a product, in its type."""
    gate, up = product.chunk(2, dim=1) if problem.halves else (product[:, 0::2], product[:, 1::2])
    if problem.epilogue == "swiglu":
        return torch.nn.functional.silu(gate) * up
    return torch.nn.functional.gelu(gate, approximate="none" if problem.epilogue == "geglu" else "tanh") * up
