"""The problem: one decoding step of attention over a paged KV cache that is sharded by sequence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from autotune.dtypes import FP8, OPERAND_TYPES
from autotune.errors import InvalidProblem
from autotune.kernels.flash_decode.lengths import KINDS, WRITTEN, given_lengths, lengths_of
from autotune.problem import Problem, choice, invariant, number, size, written
from autotune.text import shortened

HEAD_DIMS = (64, 128, 256)
LATENT_DIMS = (*HEAD_DIMS, 512)
ROPES = (32, 64)
DTYPES = ("bf16", "fp16")
CACHE_SCALES = ("none", "tensor", "head")
RESULTS = ("replicated", "heads")


def check_rope(rope: object) -> None:
    """Raise InvalidProblem for elements beyond a latent's value that our kernels do not take."""
    if rope not in (0, *ROPES):
        raise InvalidProblem(f"rope={rope!r}: allowed: {', '.join(map(str, ROPES))}; 0 where values have a cache")


@dataclass(frozen=True, kw_only=True)
class FlashDecode(Problem):
    """out [batch, q_heads, head_dim] = softmax(q K^T * scale) V over the tokens of all ranks.

    ``result`` is ``replicated``: all of it on every rank; or ``heads``: rank r gets the r-th equal share of the query
    heads, [batch, q_heads / world_size, head_dim].

    Each rank holds up to ``kv_len`` tokens of each sequence, in pages of ``page_size`` tokens, and all of q. Query
    heads share KV heads in groups: head h reads KV head h * kv_heads // q_heads. With a soft cap c, logits x become
    c * tanh(x / c). A sequence without any token gives zeros. A cache of fp8 has scales in fp32, each rank its own: one
    for all keys and one for all values (``tensor``), or one for each KV head (``head``).

    With ``rope`` the cache is a latent, as in MLA with absorbed projections: keys and queries have head_dim + rope
    elements, and a key's first head_dim are the value, too; there is no cache of values, and none of their scales.

    ``lengths`` says how long the sequences are in the inputs that a config is tuned with: it decides nothing about a
    result. A call's own lengths may be any.
    """

    workload = "flash_decode"
    computes = "attention over a KV cache sharded by tokens"
    free = ("kv_len", "batch")
    one_row = "batch"
    of_inputs = ("lengths",)
    of_default = {"dtype": "fp16"}

    batch: int = size("sequences")
    q_heads: int = size("query heads")
    kv_heads: int = size("KV heads; a divisor of the query heads")
    head_dim: int = size("elements of a head: 64, 128 or 256; of a latent's value also 512")
    kv_len: int = size("tokens of the longest sequence on each rank")
    page_size: int = size("tokens in a page of the KV cache", default=1)
    soft_cap: int = size("soft cap of the logits, by tanh; 0: none", default=0, least=0)
    rope: int = size("elements of a latent's key beyond its value, 32 or 64; 0: no latent", default=0, least=0)
    scale: float = number("factor of the logits; 0: 1 / sqrt(elements of a key)", 0.0)
    dtype: str = choice("element type of q and of the output; accumulation is fp32", DTYPES, "bf16")
    lengths: str = written(
        "lengths of the sequences to tune with: even, geometric, one-long, all of these (mixed), or a file with a "
        "number of tokens for each", given_lengths, metavar="WORD|FILE", default="mixed",
    )  # fmt: skip
    kv_dtype: str = choice("element type of the KV cache; auto: as q", ("auto", *FP8), "auto")
    kv_scales: str = choice("scales of an fp8 KV cache: one, or one per KV head", CACHE_SCALES, "none")
    result: str = choice("all heads on every rank, or each rank its share of them", RESULTS, "replicated")
    invariant: bool = invariant()

    def check(self) -> None:
        """Raise InvalidProblem if dimensions do not fit each other or our kernels."""
        check_rope(self.rope)
        allowed = LATENT_DIMS if self.rope else HEAD_DIMS
        if self.head_dim not in allowed:
            of_latent = f" with rope={self.rope}" if self.rope else ""
            raise InvalidProblem(f"head_dim={self.head_dim}{of_latent}: allowed: {', '.join(map(str, allowed))}")
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
        # One problem has one key: as many digits as fp32 has, and none for the usual factor.
        usual = abs(self.scale - self.key_dim**-0.5) < 1e-7
        object.__setattr__(self, "scale", 0.0 if usual else float(f"{self.scale:.7g}"))
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
    def key_dim(self) -> int:
        """Elements of a key, and of a query."""
        return self.head_dim + self.rope

    @property
    def token_elements(self) -> int:
        """Elements that the cache has of a token for each KV head: of its key and, unless that holds it, its value."""
        return self.key_dim if self.rope else 2 * self.head_dim

    @property
    def logit_scale(self) -> float:
        return self.scale or self.key_dim**-0.5

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
        """Shape of one rank's cache of keys, and of one of values: [pages, page_size, kv_heads, key_dim]."""
        return self.batch * self.pages, self.page_size, self.kv_heads, self.key_dim

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
        return 2 * self.q_heads * self.cached_tokens * (self.key_dim + self.head_dim)

    @property
    def bytes_read(self) -> int:
        """Lower bound on the bytes that one rank reads from its memory: keys and values."""
        return self.cached_tokens * self.kv_heads * self.token_elements * self.cache_element_size

    @property
    def bytes_moved(self) -> int:
        """Bytes that a rank receives if it combines its whole result: peers' partial results and LSEs in fp32."""
        return (self.world_size - 1) * self.result_rows * (self.head_dim + 1) * 4
