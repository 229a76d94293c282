"""Linear layers of Hugging Face transformers in fp8 by blocks, as operations that the pass for torch.compile sees
through; theirs quantise and multiply in one kernel from a hub.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn

from autotune.dtypes import SCALE_BLOCK
from autotune.errors import InputError
from autotune.kernels.gemm.block_scaled import block_scaled_mm
from autotune.runtime.call import needs_gradient

LEAST = 1 / 512
"""The largest element of a block counts as this at least: a block of zeros has a scale, too."""


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [m, k] in fp8 and fp32 scales [m, k / 128] of their blocks: the largest element becomes 448."""
    dtype = torch.float8_e4m3fn
    parts = x.float().unflatten(-1, (-1, SCALE_BLOCK))
    scales = parts.abs().amax(-1, keepdim=True).clamp(min=LEAST) / torch.finfo(dtype).max
    return (parts / scales).to(dtype).flatten(-2), scales.squeeze(-1)


def see_through(module: nn.Module) -> None:
    """Make an ``FP8Linear`` of blocks of 128 x 128, fp32 scales and dynamic activations compute by these operations."""
    from transformers.integrations.finegrained_fp8 import FP8Linear

    layer: Any = module
    if type(layer) is not FP8Linear or "forward" in vars(layer):  # a style has wrapped the forward of before
        return
    blocks, dtype = tuple(layer.block_size or ()), layer.weight_scale_inv.dtype
    if blocks == (SCALE_BLOCK, SCALE_BLOCK) and dtype == torch.float32 and layer.activation_scale is None:
        layer.forward = MethodType(_forward, layer)


def check_share(module: nn.Module, features: str, ranks: int) -> None:
    """Raise InputError where the ranks' parts of a layer's weight do not end where blocks do: scales are shared out by
    whole blocks.
    """
    size, blocks = getattr(module, features, 0), getattr(module, "block_size", None)
    if blocks is None:
        return
    block = blocks[("out_features", "in_features").index(features)]
    if size % (block * ranks):
        raise InputError(
            f"a {type(module).__name__} with {size} {features} in blocks of {block}: {ranks} ranks cannot share weight "
            "and scales alike; a number of ranks that divides the blocks can"
        )


def _forward(layer: Any, input: torch.Tensor) -> torch.Tensor:
    weight, scales = layer.weight, layer.weight_scale_inv
    if weight.dtype != torch.float8_e4m3fn or input.shape[-1] % SCALE_BLOCK or needs_gradient((input,)):
        theirs: torch.Tensor = type(layer).forward(layer, input)
        return theirs
    rows, of_rows = quantised(input.reshape(-1, input.shape[-1]))
    made: torch.Tensor = block_scaled_mm(rows, weight.t(), of_rows, scales.t(), layer.bias, input.dtype)
    return made.view(*input.shape[:-1], made.shape[-1])
