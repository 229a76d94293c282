"""Sizes: in words, lists and ranges that double; and powers of two."""

from __future__ import annotations

from autotune.errors import InputError


def parse_sizes(text: str, name: str) -> list[int]:
    """``16,64,256``, ``1..1024`` (doubling), or both mixed; ``name`` stands in messages. Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()) or int(first) < 1:
            raise InputError(f"{name} {text}: write a list like 16,64,256 or a doubling range like 1..1024")
        end = int(last) if dots else int(first)
        if end < int(first):
            raise InputError(f"{name} {text}: the range {part.strip()} ends below its start")
        value = int(first)
        while value <= end:
            found.append(value)
            value *= 2
    return list(dict.fromkeys(found))


def round_up(number: int) -> int:
    """The power of two from a number on."""
    return 1 << max(0, number - 1).bit_length()
