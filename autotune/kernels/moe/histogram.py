"""A recorded popularity of experts: a file of counts, and the short text that stands for it in a problem.

The text has two digits of base 36 for each expert, by its number: its count in 1295ths of the largest, so that tuning,
keys, fleets and exported files need no file. An expert that was chosen at all has at least 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import InputError
from autotune.kernels.number_files import numbers_in

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
BASE = len(DIGITS)
MOST = BASE**2 - 1
"""The number of the most popular expert."""

WRITTEN = re.compile("(?:[0-9a-z]{2})+")
"""A text as ``histogram_text`` makes it, but for the largest number."""


def recorded_histogram(path: str | Path) -> str:
    """The ``histogram`` of a problem or operator, from a file of one count for each expert, in order.

    The file is text: numbers of at least 0 between spaces, commas or line breaks, or a JSON list of them. Files whose
    counts are in proportion give the same text. Raises InputError where it cannot be read, or is something else.
    """
    counts = numbers_in(path, "histogram", "count for each expert")
    try:
        return histogram_text(counts)
    except InputError as error:
        raise InputError(f"histogram {path}: {error}") from error


def histogram_text(counts: Sequence[float]) -> str:
    """The text of counts of at least 0, of which one is above. Raises InputError."""
    most = max(counts, default=0.0)
    if min(counts, default=0.0) < 0 or not 0 < most < math.inf:
        raise InputError("counts must be finite and not negative, and one of them above 0")
    shares = [max(1, round(count / most * MOST)) if count else 0 for count in counts]
    return "".join(DIGITS[share // BASE] + DIGITS[share % BASE] for share in shares)


def shares_of(text: str) -> list[int]:
    """The popularity of each expert, 0 to ``MOST``, from a problem's text. Raises InputError for another text."""
    shares = [int(pair, BASE) for pair in re.findall("..", text)] if WRITTEN.fullmatch(text) else []
    if max(shares, default=0) != MOST:
        raise InputError(f"{text[:40]!r} is not a recorded histogram; autotune.recorded_histogram(FILE) makes one")
    return shares


def given_histogram(text: str) -> str:
    """A histogram as people give it: the text that a problem has, else a file's name. Raises InputError."""
    try:
        shares_of(text)
    except InputError:
        return recorded_histogram(text)
    return text
