"""Flash decode at run time: one decoding step of attention over a KV cache that is sharded by sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.kernels.flash_decode import launch
from autotune.kernels.flash_decode.problem import DTYPES, FlashDecode
from autotune.kernels.flash_decode.tensors import Tensors
from autotune.runtime.context import Context
from autotune.runtime.operators.operator import Operands, Operator, element_type

DIMENSIONS = {"q": 3, "k_cache": 4, "v_cache": 4, "block_table": 2, "lengths": 1}


def flash_decode(
    context: Context, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
    lengths: torch.Tensor, *, soft_cap: int = 0, ragged: bool = False, out: torch.Tensor | None = None,
    config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """softmax(q K^T / sqrt(head_dim)) V over the tokens of all ranks, by the tuned config, on the current stream.

    Collective. All are contiguous: ``q`` [batch, q_heads, head_dim], bf16 or fp16, the same on every rank; this rank's
    ``k_cache`` and ``v_cache`` [pages, page_size, kv_heads, head_dim], of any number of pages; ``block_table`` int32
    [batch, pages of a sequence]: which page holds a sequence's tokens; ``lengths`` int32 [batch]: tokens of each
    sequence on this rank, at most as many as a row of the table has room for, which nobody checks. ``soft_cap``
    bounds the logits, 0 does not. ``ragged`` asks for what was tuned with different lengths; the result does not
    depend on it.
    Returns [batch, q_heads, head_dim] on every rank, ``out`` where one is given; zeros for a sequence without tokens.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    return _OPERATOR(context, (q, k_cache, v_cache, block_table, lengths), (soft_cap, ragged), out, config)


class FlashDecodeOperator(Operator):
    """The problem's longest sequence is what the block table has room for."""

    name = "flash_decode"
    operands = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor lengths"
    options = "int soft_cap, bool ragged"
    launcher: ClassVar = launch

    def problem(self, world_size: int, operands: Operands, options: Sequence[Any]) -> FlashDecode:
        """From q, one cache and the block table; the others have to fit them."""
        named = dict(zip(DIMENSIONS, operands, strict=True))
        for name, tensor in named.items():
            assert tensor is not None
            if tensor.dim() != DIMENSIONS[name] or not tensor.is_contiguous():
                raise InvalidProblem(
                    f"{name} is {list(tensor.shape)}, strides {tensor.stride()}: {DIMENSIONS[name]} dimensions, "
                    "contiguous, are needed"
                )
        q, keys, values, table, lengths = (tensor for tensor in operands if tensor is not None)
        dtype = element_type({"q": q, "k_cache": keys, "v_cache": values}, DTYPES)
        batch, q_heads, head_dim = q.shape
        _, page_size, kv_heads, _ = keys.shape
        fits = (
            values.shape == keys.shape and keys.shape[3] == head_dim and table.dtype == lengths.dtype == torch.int32
            and table.shape[0] == batch and lengths.shape == (batch,)
        )  # fmt: skip
        if not fits:
            raise InvalidProblem(
                f"q is {list(q.shape)}, k_cache {list(keys.shape)}, v_cache {list(values.shape)}, block_table "
                f"{list(table.shape)} {table.dtype}, lengths {list(lengths.shape)} {lengths.dtype}: needed are both "
                f"caches [pages, page_size, kv_heads, {head_dim}], block_table [{batch}, pages of a sequence] and "
                f"lengths [{batch}], both int32"
            )
        soft_cap, ragged = options
        return FlashDecode(
            batch=batch, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, kv_len=table.shape[1] * page_size,
            page_size=page_size, soft_cap=soft_cap, ragged=ragged, dtype=dtype, world_size=world_size,
        )  # fmt: skip

    def out_shape(self, world_size: int, operands: Operands, options: Sequence[Any]) -> tuple[int, ...]:
        """That of q."""
        assert operands[0] is not None
        return tuple(operands[0].shape)

    def tensors(self, operands: Operands, out: torch.Tensor) -> Tensors:
        """As they come."""
        q, keys, values, table, lengths = (tensor for tensor in operands if tensor is not None)
        return Tensors(q, keys, values, table, lengths, out)


_OPERATOR = FlashDecodeOperator()
