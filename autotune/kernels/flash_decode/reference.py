"""The reference: fp32 attention by the library, chunk after chunk, and log-sum-exps over chunks and ranks."""

from __future__ import annotations

import torch

from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.flash_decode.tensors import Tensors

CHUNK_BYTES = 256 << 20
"""Bytes of one chunk's keys in fp32; values and temporaries take as much again each."""


def attention(problem: FlashDecode, tensors: Tensors, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part for several ``queries`` [sets, batch, q_heads, key_dim]: fp32 output, with head_dim in the last
    dimension, natural LSE [sets, batch, q_heads]; 0 and -inf if empty. The cache is read once for all sets.
    """
    out = torch.zeros((*queries.shape[:3], problem.head_dim), dtype=torch.float32, device=queries.device)
    lse = torch.full(queries.shape[:3], float("-inf"), device=queries.device)
    chunk = max(1, CHUNK_BYTES // (problem.kv_heads * problem.key_dim * 4))
    for sequence, length in enumerate(tensors.lengths.tolist()):
        for begin in range(0, length, chunk):
            tokens = torch.arange(begin, min(begin + chunk, length))
            part = _of_tokens(problem, tensors, queries[:, sequence], sequence, tokens)
            out[:, sequence], lse[:, sequence] = joined(out[:, sequence], lse[:, sequence], *part)
    return out, lse


def joined(
    out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two parts as one: out [..., head_dim], lse [...]; two empty ones make an empty one."""
    both = torch.logaddexp(lse, other_lse)
    shift = both.masked_fill(both.isneginf(), 0.0)
    return (lse - shift).exp().unsqueeze(-1) * out + (other_lse - shift).exp().unsqueeze(-1) * other, both


def _of_tokens(
    problem: FlashDecode, tensors: Tensors, queries: torch.Tensor, sequence: int, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one sequence's queries [sets, q_heads, key_dim] over some of its tokens."""
    tokens = tokens.to(queries.device)
    pages = tensors.block_table[sequence, tokens // problem.page_size].long()
    rows = pages * problem.page_size + tokens % problem.page_size
    keys, values = (
        _dequantised(cache.view(-1, problem.kv_heads, problem.key_dim)[rows], scale).transpose(0, 1)
        for cache, scale in zip(tensors.caches, tensors.scales, strict=True)
    )
    sets = queries.shape[0]
    # A KV head's queries of all sets side by side: [kv_heads, sets * group, key_dim].
    query = queries.view(sets, problem.kv_heads, problem.group, problem.key_dim).float().transpose(0, 1)
    query = query.reshape(problem.kv_heads, sets * problem.group, problem.key_dim)
    logits = query @ keys.transpose(1, 2) * problem.logit_scale
    if problem.soft_cap:
        logits = problem.soft_cap * torch.tanh(logits / problem.soft_cap)
    out = torch.softmax(logits, dim=-1) @ values[..., : problem.head_dim]
    shape = problem.kv_heads, sets, problem.group
    out = out.view(*shape, problem.head_dim).transpose(0, 1).reshape(sets, problem.q_heads, problem.head_dim)
    return out, torch.logsumexp(logits, dim=-1).view(shape).transpose(0, 1).reshape(sets, problem.q_heads)


def _dequantised(rows: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Rows of a cache [tokens, kv_heads, key_dim] in fp32, each head times its scale."""
    return rows.float() if scale is None else rows.float() * scale.view(1, -1, 1)
