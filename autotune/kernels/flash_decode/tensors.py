"""The tensors of a call: one rank's operands, and the scratch that the kernels of one config share across ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autotune.kernels.flash_decode.problem import FlashDecode
from autotune.kernels.launching.scratch import BITS
from autotune.kernels.launching.tensors import OPERAND_DTYPES, TORCH_DTYPES, Allocate


@dataclass(frozen=True)
class Tensors:
    """One rank's operands, contiguous, in ordinary memory."""

    q: torch.Tensor
    """[batch, q_heads, key_dim], the same on every rank"""
    k_cache: torch.Tensor
    """[pages, page_size, kv_heads, key_dim]"""
    v_cache: torch.Tensor | None
    """None: a latent cache, whose keys begin with the values"""
    block_table: torch.Tensor
    """int32 [batch, pages of a sequence]: which page holds a sequence's tokens"""
    lengths: torch.Tensor
    """int32 [batch]: tokens of each sequence on this rank, 0 to kv_len"""
    out: torch.Tensor
    """The problem's ``result_shape``"""
    k_scale: torch.Tensor | None = None
    """fp32 [1], or [kv_heads]: of an fp8 cache"""
    v_scale: torch.Tensor | None = None

    @property
    def caches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values; of a latent cache both are the same tensor."""
        return self.k_cache, self.k_cache if self.v_cache is None else self.v_cache

    @property
    def scales(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The scales of keys and of values."""
        return self.k_scale, self.k_scale if self.v_cache is None else self.v_scale

    @classmethod
    def allocate(cls, problem: FlashDecode, allocate: Allocate) -> Tensors:
        dtype = TORCH_DTYPES[problem.dtype]
        latent = problem.rope > 0
        cache = OPERAND_DTYPES[problem.cache_dtype]
        scales = {"tensor": (1,), "head": (problem.kv_heads,)}.get(problem.kv_scales)
        return cls(
            q=allocate((problem.batch, problem.q_heads, problem.key_dim), dtype),
            k_cache=allocate(problem.cache_shape, cache),
            v_cache=None if latent else allocate(problem.cache_shape, cache),
            block_table=allocate((problem.batch, problem.pages), torch.int32),
            lengths=allocate((problem.batch,), torch.int32),
            out=allocate(problem.result_shape, dtype),
            k_scale=None if scales is None else allocate(scales, torch.float32),
            v_scale=None if scales is None or latent else allocate(scales, torch.float32),
        )


@dataclass(frozen=True)
class Records:
    """Partial results in ``count`` blocks, one per source or destination: a row of head_dim elements and an LSE for
    each row of a rank's result.

    One flat tensor, so that the library can move it in one call; ``values`` and ``lse`` are views of it.
    """

    buffer: torch.Tensor
    """uint8 [count * bytes of a block]"""
    values: torch.Tensor
    lse: torch.Tensor
    value_stride: int
    """Elements of ``values`` from one block to the next."""
    lse_stride: int

    @staticmethod
    def block_bytes(problem: FlashDecode, element: torch.dtype, lse: torch.dtype) -> int:
        """Bytes of one block: strides are multiples of 16 elements, as loads of 16 bytes need."""
        return -(-problem.result_rows * (problem.head_dim * element.itemsize + lse.itemsize) // 128) * 128

    @classmethod
    def allocate(
        cls, problem: FlashDecode, count: int, element: torch.dtype, lse: torch.dtype, allocate: Allocate
    ) -> Records:
        """``element`` and ``lse`` are fp32, the problem's type, or those of words, see ``wire_type``."""
        size = cls.block_bytes(problem, element, lse)
        buffer = allocate((count * size,), torch.uint8)
        begin = problem.result_rows * problem.head_dim * element.itemsize
        return cls(
            buffer, buffer.view(element), buffer[begin:].view(lse), size // element.itemsize, size // lse.itemsize
        )


@dataclass(frozen=True)
class Scratch:
    """Memory that one config's kernels share: counters (zero at the start), records, and parts."""

    epoch_counter: torch.Tensor
    """int64 [1]: see ``primitives/counters.py``."""
    arrived: torch.Tensor
    """int32 [units]: parts of a sequence that have been finished here, in this launch; zero between launches."""
    arrivals: torch.Tensor
    """int32 [world_size, units]: partial results that have arrived."""
    returns: torch.Tensor
    """int32 [units]: finished outputs that have arrived from their combiners."""
    inbox: Records
    """[2 slots, world_size] on the symmetric heap; for ``bsp`` one slot, which the library fills."""
    outbox: torch.Tensor
    """[2 slots, rows, head_dim] on the symmetric heap: finished outputs from their combiners."""
    mine: Records
    """This rank's records, which another kernel or the library moves; a block for each owner of heads."""
    parts: torch.Tensor
    """fp32 [parts, q_heads, head_dim]: programs' parts of sequences, see ``part_of``."""
    part_lse: torch.Tensor
    """fp32 [parts, q_heads]"""

    def poison(self) -> None:
        """Fill everything that kernels write to, the counters apart, with NaN; sentinel words stay empty."""
        for records in (self.inbox, self.mine):
            if records.values.dtype not in BITS.values():
                records.buffer.fill_(0xFF)
        for tensor in (self.outbox, self.parts, self.part_lse):
            tensor.fill_(float("nan"))
