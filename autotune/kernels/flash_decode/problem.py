"""The problem: one decoding step of attention over a paged KV cache that is sharded by sequence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from autotune.dtypes import FP8, OPERAND_TYPES
from autotune.errors import InvalidProblem
from autotune.kernels.flash_decode.lengths import KINDS, WRITTEN, given_lengths, lengths_of
from autotune.problem import Problem, choice, size, written
from autotune.text import shortened

HEAD_DIMS = (64, 128, 256)
DTYPES = ("bf16", "fp16")
CACHE_SCALES = ("none", "tensor", "head")
RESULTS = ("replicated", "heads")


@dataclass(frozen=True, kw_only=True)
class FlashDecode(Problem):
    """out [batch, q_heads, head_dim] = softmax(q K^T / sqrt(head_dim)) V over the tokens of all ranks.

    ``result`` is ``replicated``: all of it on every rank; or ``heads``: rank r gets the r-th equal share of the query
    heads, [batch, q_heads / world_size, head_dim].

    Each rank holds up to ``kv_len`` tokens of each sequence, in pages of ``page_size`` tokens, and all of q. Query
    heads share KV heads in groups: head h reads KV head h * kv_heads // q_heads. With a soft cap c, logits x become
    c * tanh(x / c). A sequence without any token gives zeros. A cache of fp8 has scales in fp32, each rank its own: one
    for all keys and one for all values (``tensor``), or one for each KV head (``head``).

    ``lengths`` says how long the sequences are in the inputs that a config is tuned with: it decides nothing about a
    result. A call's own lengths may be any.
    """

    workload = "flash_decode"
    computes = "attention over a KV cache sharded by tokens"
    free = ("kv_len", "batch")
    of_inputs = ("lengths",)
    of_default = {"dtype": "fp16"}

    batch: int = size("sequences")
    q_heads: int = size("query heads")
    kv_heads: int = size("KV heads; a divisor of the query heads")
    head_dim: int = size("elements of a head: 64, 128 or 256")
    kv_len: int = size("tokens of the longest sequence on each rank")
    page_size: int = size("tokens in a page of the KV cache", default=1)
    soft_cap: int = size("soft cap of the logits, by tanh; 0: none", default=0, least=0)
    dtype: str = choice("element type of q and of the output; accumulation is fp32", DTYPES, "bf16")
    lengths: str = written(
        "lengths of the sequences to tune with: even, geometric, one-long, all of these (mixed), or a file with a "
        "number of tokens for each", given_lengths, metavar="WORD|FILE", default="mixed",
    )  # fmt: skip
    kv_dtype: str = choice("element type of the KV cache; auto: as q", ("auto", *FP8), "auto")
    kv_scales: str = choice("scales of an fp8 KV cache: one, or one per KV head", CACHE_SCALES, "none")
    result: str = choice("all heads on every rank, or each rank its share of them", RESULTS, "replicated")

    def check(self) -> None:
        """Raise InvalidProblem if dimensions do not fit each other or our kernels."""
        if self.head_dim not in HEAD_DIMS:
            raise InvalidProblem(f"head_dim={self.head_dim}: allowed: {', '.join(map(str, HEAD_DIMS))}")
        if self.q_heads % self.kv_heads:
            raise InvalidProblem(
                f"kv_heads={self.kv_heads} must divide q_heads={self.q_heads}: each KV head serves a whole group"
            )
        if self.result == "heads":
            self.check_sharded("q_heads", note=" where each rank gets its share of the heads")
        if (self.kv_dtype == "auto") != (self.kv_scales == "none"):
            raise InvalidProblem(
                f"kv_dtype={self.kv_dtype} kv_scales={self.kv_scales}: a cache of fp8 has scales, tensor or head, and "
                "no other one has"
            )
        if self.kv_heads == 1 and self.kv_scales == "head":
            object.__setattr__(self, "kv_scales", "tensor")  # the same: one problem has one key
        if self.world_size == 1 and self.result == "heads":
            object.__setattr__(self, "result", "replicated")  # likewise
        if self.batch == 1 and self.lengths in KINDS:
            object.__setattr__(self, "lengths", KINDS[0])  # likewise
        self._check_lengths()

    def _check_lengths(self) -> None:
        """Raise InvalidProblem unless the lengths are of a known kind, or recorded ones that fit."""
        if self.lengths not in KINDS and not WRITTEN.fullmatch(self.lengths):
            raise InvalidProblem(
                f"lengths={shortened(self.lengths)!r}: {', '.join(KINDS)}, or numbers of tokens with commas between"
            )
        drawn = lengths_of(self.lengths, self.batch, self.kv_len)
        if not 0 < max(drawn) <= self.kv_len:
            raise InvalidProblem(
                f"lengths={shortened(self.lengths)}: the longest of {self.batch} has {max(drawn)} tokens; from 1 to "
                f"kv_len={self.kv_len} are needed"
            )

    def other_routings(self) -> dict[str, Self]:
        """This problem with lengths of each other kind; nothing for a single sequence."""
        kinds = [kind for kind in KINDS if kind != self.lengths and self.batch > 1]
        return {kind: dataclasses.replace(self, lengths=kind) for kind in kinds}

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q_heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Rows of the whole output, one per sequence and query head."""
        return self.batch * self.q_heads

    @property
    def owned_heads(self) -> int:
        """Query heads whose result a rank alone gets; 0 where every rank gets all."""
        return self.q_heads // self.world_size if self.result == "heads" else 0

    @property
    def result_shape(self) -> tuple[int, int, int]:
        return self.batch, self.owned_heads or self.q_heads, self.head_dim

    @property
    def result_rows(self) -> int:
        return self.batch * self.result_shape[1]

    @property
    def pages(self) -> int:
        """Pages of one sequence on one rank: a row of the block table."""
        return -(-self.kv_len // self.page_size)

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """Shape of one rank's cache of keys, and of that of values: [pages, page_size, kv_heads, head_dim]."""
        return self.batch * self.pages, self.page_size, self.kv_heads, self.head_dim

    @property
    def cache_dtype(self) -> str:
        return self.dtype if self.kv_dtype == "auto" else self.kv_dtype

    @property
    def cache_element_size(self) -> int:
        return OPERAND_TYPES[self.cache_dtype].size

    @property
    def cached_tokens(self) -> int:
        """Tokens of all sequences on one rank, with the lengths to tune with."""
        return sum(lengths_of(self.lengths, self.batch, self.kv_len))

    @property
    def flops(self) -> int:
        """Floating-point operations of one rank."""
        return 4 * self.q_heads * self.cached_tokens * self.head_dim

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads from its memory: keys and values."""
        return 2 * self.cached_tokens * self.kv_heads * self.head_dim * self.cache_element_size

    @property
    def bytes_moved(self) -> int:
        """Bytes that a rank receives if it combines its whole result: peers' partial results and LSEs in fp32."""
        return (self.world_size - 1) * self.result_rows * (self.head_dim + 1) * 4
