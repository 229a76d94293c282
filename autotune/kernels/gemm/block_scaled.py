"""A GEMM of fp8 with scales by blocks as one operator, which takes any number of rows on any device."""

from __future__ import annotations

import torch

from autotune.kernels.gemm.library import multiply_blocks


@torch.library.custom_op("iris_autotune::block_scaled_mm", mutates_args=())
def block_scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """A [m, k] @ B [k, n] of fp8, each times its scales, fp32, by 1 x 128 of A and 128 x 128 of B; plus bias [n].

    By the library, as ``torch._scaled_mm`` where this has such a GEMM, without its demands on rows and strides. The
    pass for ``torch.compile`` knows it.
    """
    out = a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)
    multiply_blocks(a, scale_a, b, scale_b, out, bias)
    return out


@block_scaled_mm.register_fake
def _(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)
