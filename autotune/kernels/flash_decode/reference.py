"""The reference: fp32 attention by the library, chunk after chunk, and log-sum-exps over chunks and ranks."""

from __future__ import annotations

import torch

from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.flash_decode.tensors import Tensors

CHUNK_BYTES = 256 << 20
"""Of the keys of one chunk in fp32; so much again for its values, and for temporaries."""


def attention(problem: FlashDecode, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part: fp32 output [batch, q_heads, head_dim], natural LSE [batch, q_heads]; 0 and -inf if empty."""
    out = torch.zeros(tensors.q.shape, dtype=torch.float32, device=tensors.q.device)
    lse = torch.full(tensors.q.shape[:2], float("-inf"), device=tensors.q.device)
    chunk = max(1, CHUNK_BYTES // (problem.kv_heads * problem.head_dim * 4))
    for sequence, length in enumerate(tensors.lengths.tolist()):
        for begin in range(0, length, chunk):
            part = _of_tokens(problem, tensors, sequence, torch.arange(begin, min(begin + chunk, length)))
            out[sequence], lse[sequence] = joined(out[sequence], lse[sequence], *part)
    return out, lse


def joined(
    out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two parts as one: out [..., head_dim], lse [...]; two empty ones make an empty one."""
    both = torch.logaddexp(lse, other_lse)
    shift = both.masked_fill(both.isneginf(), 0.0)
    return (lse - shift).exp().unsqueeze(-1) * out + (other_lse - shift).exp().unsqueeze(-1) * other, both


def _of_tokens(
    problem: FlashDecode, tensors: Tensors, sequence: int, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one sequence over some of its tokens."""
    tokens = tokens.to(tensors.q.device)
    pages = tensors.table[sequence, tokens // problem.page_size].long()
    rows = pages * problem.page_size + tokens % problem.page_size
    keys, values = (
        cache.view(-1, problem.kv_heads, problem.head_dim)[rows].float().transpose(0, 1)
        for cache in (tensors.keys, tensors.values)
    )
    query = tensors.q[sequence].view(problem.kv_heads, problem.group, problem.head_dim).float()
    logits = query @ keys.transpose(1, 2) * problem.head_dim**-0.5
    if problem.soft_cap:
        logits = problem.soft_cap * torch.tanh(logits / problem.soft_cap)
    out = torch.softmax(logits, dim=-1) @ values
    return out.reshape(problem.q_heads, problem.head_dim), torch.logsumexp(logits, dim=-1).reshape(-1)
