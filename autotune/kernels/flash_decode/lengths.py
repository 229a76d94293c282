"""Lengths of a batch's sequences in the inputs that flash decode is tuned with: by a word, or recorded in a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import InputError
from autotune.kernels.number_files import numbers_in
from autotune.text import did_you_mean

KINDS = ("mixed", "even", "geometric", "one-long")

SHORTEST = 0.75**15
"""The shortest geometric length over the longest: of 16 sequences each has three quarters of the one before."""

REST = 16
"""Beside one long sequence each of the others has one token for so many of its."""

MOST_RECORDED = 256
"""Recorded lengths that a problem holds; of more their quantiles."""

WRITTEN = re.compile(r"\d+(,\d+)*")


def lengths_of(text: str, batch: int, longest: int) -> list[int]:
    """The tokens of each sequence: by a kind, at most ``longest``; of a recording its quantiles, the shortest first.

    ``mixed`` takes the other kinds in turn.
    """
    if text == "even":
        return [longest] * batch
    if text == "geometric":
        return [max(1, int(longest * SHORTEST ** (place / max(1, batch - 1)))) for place in range(batch)]
    if text == "one-long":
        return [longest] + [max(1, longest // REST)] * (batch - 1)
    if text == "mixed":
        kinds = [lengths_of(kind, batch, longest) for kind in KINDS[1:]]
        return [kinds[place % len(kinds)][place] for place in range(batch)]
    return quantiles([int(word) for word in text.split(",")], batch)


def quantiles(values: Sequence[int], count: int) -> list[int]:
    """``count`` of the values in ascending order, at even distances: all of them if there are as many."""
    ordered = sorted(values)
    return [ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)]


def given_lengths(text: str) -> str:
    """Lengths as people give them: a kind's word, numbers with commas between, a file's name. Raises InputError."""
    if text in KINDS or WRITTEN.fullmatch(text):
        return text
    if not Path(text).exists():
        meant = did_you_mean(text, KINDS)
        raise InputError(f"lengths {text!r}: neither a file nor one of {', '.join(KINDS)}{meant}")
    return recorded_lengths(text)


def recorded_lengths(path: str | Path) -> str:
    """A problem's ``lengths`` from a file of whole numbers, or a JSON list. Raises InputError."""
    numbers = numbers_in(path, "lengths", "number of tokens for each sequence")
    whole = [int(number) for number in numbers]
    if whole != numbers:
        raise InputError(f"lengths {path}: tokens are whole numbers")
    return ",".join(map(str, quantiles(whole, min(len(whole), MOST_RECORDED))))
