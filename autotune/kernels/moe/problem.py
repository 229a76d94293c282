"""Common fields and sizes of a mixture of experts: tokens, experts on their ranks, and how popular these are."""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

from autotune.dtypes import COMBINATIONS, DTYPES
from autotune.errors import InputError, InvalidProblem
from autotune.kernels.gemm.problem import FAST_ACCUM, SCALES_HELP, MatrixOperands
from autotune.kernels.moe.histogram import given_histogram, histogram_text, shares_of
from autotune.problem import Problem, choice, flag, number, size, written
from autotune.text import shortened

SLOTS = 2
"""Inboxes used in turn, see ``plan``."""

WHOLE = 8
"""A token's vector is a multiple of this many elements: of 16 bytes in 16 bits."""

ROUTINGS = ("uniform", "zipf", "recorded")

NEVER = 1e-30
"""The weight of an expert that was not chosen once."""

ZIPF = 1.0
"""The exponent of the Zipf distribution under which every winner is timed."""

MOST_EXPERTS = 1024
MOST_CHOICES = 16

MOST_PAIRS = 2**24
"""Pairs of a token and one of its experts, over all ranks."""


@dataclass(frozen=True, kw_only=True)
class ExpertsProblem(Problem):
    """Base of the problems of a mixture of experts, expert parallel: rank r holds experts r * L to (r + 1) * L - 1.

    ``routing``, ``exponent`` and ``histogram`` say how popular the experts are in the inputs that a config is tuned
    with; they decide nothing about a result. A call's own routing may be any.
    """

    free = ("tokens",)
    one_row = "tokens"
    of_inputs = ("routing", "exponent", "histogram")

    tokens: int = size("tokens per rank, at most; a token whose ids are all -1 does not exist")
    hidden: int = size("elements of a token")
    experts: int = size("experts of all ranks together; every rank has as many")
    top_k: int = size("experts per token, at most; an id of -1 is no expert")
    routing: str = choice("popularity of experts in the inputs to tune with", ROUTINGS, "uniform")
    exponent: float = number(
        "for Zipf routing: the i-th expert is chosen i**-exponent times as often as the first", 0.0
    )
    histogram: str = written(
        "for recorded routing: a file with a count for each expert", given_histogram, metavar="FILE"
    )

    def check(self) -> None:
        """Raise InvalidProblem if the experts do not fit the ranks, or a field means nothing beside the others."""
        self.check_sharded("experts", note=": every rank holds as many experts")
        if self.hidden % WHOLE:
            raise InvalidProblem(f"hidden={self.hidden}: must be a multiple of {WHOLE}")
        if self.experts > MOST_EXPERTS:
            raise InvalidProblem(f"experts={self.experts}: {MOST_EXPERTS} at most")
        if self.top_k > min(self.experts, MOST_CHOICES):
            raise InvalidProblem(f"top_k={self.top_k}: {min(self.experts, MOST_CHOICES)} at most")
        if self.all_pairs > MOST_PAIRS:
            raise InvalidProblem(
                f"tokens={self.tokens}, top_k={self.top_k}, world_size={self.world_size}: {self.all_pairs} pairs of a "
                f"token and an expert; {MOST_PAIRS} at most, so use fewer tokens per call"
            )
        if (self.routing == "zipf") != (self.exponent > 0):
            raise InvalidProblem(
                f"routing={self.routing}, exponent={self.exponent}: zipf needs an exponent above 0, the others have "
                "none"
            )
        self._check_histogram()

    def _check_histogram(self) -> None:
        """Raise InvalidProblem unless a recorded routing has a count for each expert, and another one none."""
        if (self.routing == "recorded") != bool(self.histogram):
            raise InvalidProblem(
                f"routing={self.routing}, histogram={shortened(self.histogram) or 'none'}: recorded needs a histogram, "
                "the others have none; give routing=recorded and a file with a count for each expert"
            )
        if self.histogram:
            try:
                counts = len(shares_of(self.histogram))
            except InputError as error:
                raise InvalidProblem(f"histogram: {error}") from error
            if counts != self.experts:
                raise InvalidProblem(f"histogram: {counts} counts for experts={self.experts}; give one for each expert")

    def other_routings(self) -> dict[str, Self]:
        """This problem under a uniform routing, a Zipf distribution, and one of which one expert is in every token's
        choice; without its own.
        """
        one = histogram_text([1, *[0] * (self.experts - 1)])  # the expert that every token has, and whichever others
        of_name = {
            "uniform": ("uniform", 0.0, ""), f"zipf {ZIPF:g}": ("zipf", ZIPF, ""), "one expert": ("recorded", 0.0, one),
        }  # fmt: skip
        found = {
            name: dataclasses.replace(self, routing=routing, exponent=exponent, histogram=histogram)
            for name, (routing, exponent, histogram) in of_name.items()
        }
        return {name: other for name, other in found.items() if other != self}

    @property
    def local_experts(self) -> int:
        """Experts of each rank, L."""
        return self.experts // self.world_size

    @property
    def all_pairs(self) -> int:
        """Pairs of a token and one of its experts, over all ranks: R * T * K."""
        return self.world_size * self.tokens * self.top_k

    @property
    def capacity(self) -> int:
        """Rows that one rank's experts get at most: every token of every rank may choose all that it can here."""
        return self.world_size * self.tokens * min(self.top_k, self.local_experts)

    @property
    def reached(self) -> float:
        """The share of tokens that a rank gets on average where all experts are equally popular."""
        others, chosen = self.experts - self.local_experts, self.top_k
        return 1.0 - math.comb(others, chosen) / math.comb(self.experts, chosen)

    @property
    def active_experts(self) -> float:
        """Experts of a rank that get tokens in a call, on average."""
        chances = chances_of(self.experts, self.top_k, self.exponent, self.histogram)
        return sum(1.0 - (1.0 - chance) ** (self.world_size * self.tokens) for chance in chances) / self.world_size

    @property
    def result_dtype(self) -> str:
        return self.dtype

    @property
    def result_size(self) -> int:
        """Bytes of an element of the result."""
        return DTYPES[self.result_dtype].size

    @property
    def row_scales(self) -> int:
        """Scales of a row of A, where it is fp8."""
        return 0

    @property
    def token_bytes(self) -> int:
        return self.hidden * self.result_size

    @property
    def bytes_moved(self) -> int:
        """Bytes of tokens that one rank receives on average, each token once; the busiest rank receives more."""
        return int((self.world_size - 1) * self.tokens * self.reached * self.token_bytes)


@functools.lru_cache(maxsize=16)
def chances_of(experts: int, chosen: int, exponent: float, histogram: str) -> tuple[float, ...]:
    """Each expert's chance to be among the ``chosen`` ones of a token; under Zipf routing from the most popular on.

    To draw without replacement is to take whoever comes first, each after a time that is exponentially distributed,
    with its popularity as the rate. The chances are those to come before the moment by which ``chosen`` of them have
    come on average.
    """
    popularity: list[float] = [(1.0 + place) ** -exponent for place in range(experts)]
    if histogram:
        popularity = [max(share, NEVER) for share in shares_of(histogram)]

    def come_by(moment: float) -> tuple[float, ...]:
        return tuple(-math.expm1(-rate * moment) for rate in popularity)

    earliest, latest = -50.0, 100.0  # logarithms, for a popularity of NEVER
    for _ in range(60):
        middle = (earliest + latest) / 2
        earliest, latest = (middle, latest) if sum(come_by(math.exp(middle))) < chosen else (earliest, middle)
    return come_by(math.exp(latest))


@dataclass(frozen=True, kw_only=True)
class GroupedProblem(MatrixOperands, ExpertsProblem):
    """A problem with a grouped GEMM, whose sizes are its ``gemm``; of fp8 with fp32 scales.

    ``row``: one for each row of A and each column of each expert's B. ``block``: one for each row and 128 of the depth
    in A, and for each 128 of the depth and 128 columns in each B. The result is bf16 then.
    """

    dtype: str = choice("element type of A and B; accumulation is fp32", tuple(COMBINATIONS), "bf16")
    scales: str = choice(SCALES_HELP.replace("per tensor; ", ""), ("none", "row", "block"), "none")
    fast_accum: bool = flag(FAST_ACCUM)

    out_dtype = "auto"

    @property
    @abstractmethod
    def gemm(self) -> tuple[int, int, int]:
        """Rows of one expert at most, columns and depth."""

    @property
    def k(self) -> int:
        return self.gemm[2]

    @property
    def row_scales(self) -> int:
        return self.scales_of_a_row(self.k)

    @property
    def rows_per_expert(self) -> int:
        """Rows of one expert on average, rounded up."""
        return -(-self.all_pairs // self.experts)

    @property
    def flops(self) -> int:
        """Floating-point operations of one rank on average."""
        _, columns, depth = self.gemm
        return 2 * self.tokens * self.top_k * columns * depth

    @property
    def bytes_read(self) -> int:
        """The bytes that one rank reads at least, on average: the B of each expert that gets tokens, and rows of A."""
        _, columns, depth = self.gemm
        return int((self.active_experts * columns + self.tokens * self.top_k) * depth * self.element_size)
