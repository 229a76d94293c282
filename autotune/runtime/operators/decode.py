"""Flash decode over a KV cache that the ranks share out by tokens."""

from __future__ import annotations

import torch

from autotune.config import Config
from autotune.runtime.context import Context
from autotune.runtime.operator import Operator
from autotune.workloads.built_in.flash_decode import WORKLOAD

Tensor = torch.Tensor

_FLASH_DECODE = Operator(WORKLOAD)


def flash_decode(
    context: Context, q: Tensor, k_cache: Tensor, v_cache: Tensor | None, block_table: Tensor,
    lengths: Tensor, *, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
    soft_cap: float = 0, result: str = "replicated", rope: int = 0, scale: float = 0.0,
    out: Tensor | None = None, config: Config | None = None,
) -> Tensor:  # fmt: skip
    """softmax(q K^T * scale) V over the tokens of all ranks, by the tuned config, on the current stream.

    Collective. All are contiguous: ``q`` [batch, q_heads, head_dim], bf16 or fp16, the same on every rank; this rank's
    ``k_cache`` and ``v_cache`` [pages, page_size, kv_heads, head_dim], of any number of pages, of q's type, or of fp8
    with ``k_scale`` and ``v_scale`` in fp32, both [1] or both [kv_heads]; ``block_table`` int32 [batch, pages of a
    sequence]: which page holds a sequence's tokens; ``lengths`` int32 [batch]: tokens of each sequence on this rank, at
    most as many as a row of the table has room for, which nobody checks. Sequences of any
    lengths, empty ones among them, are shared out by their tokens, and lengths may change between replays of a graph.
    ``scale`` 0 is 1 / sqrt(head_dim). ``soft_cap``, 50 or 50.0, bounds the logits, 0 does not.
    Returns [batch, q_heads, head_dim] on every rank, ``out`` where one is given; zeros for a sequence without tokens.
    With ``result`` ``heads`` rank r gets the r-th equal share of the query heads alone, [batch, q_heads / world_size,
    head_dim], as decode context parallelism wants it: another problem, with a fraction of the exchange.

    With ``rope``, 64 in DeepSeek's MLA, the cache is a latent one and ``v_cache`` None: ``q``, with the absorbed
    projection, and ``k_cache`` have head_dim + rope elements, 576 there, and a key's first head_dim are the value, too.
    An fp8 latent has ``k_scale`` alone. ``scale`` is the model's, in MLA not that of 576 elements.
    """
    if isinstance(soft_cap, float) and soft_cap.is_integer():
        soft_cap = int(soft_cap)  # as graphs have it
    return _FLASH_DECODE(
        context, (q, k_cache, v_cache, block_table, lengths, k_scale, v_scale), (soft_cap, result, rope, scale),
        out, config,
    )  # fmt: skip
