"""Sizes: in words, lists and ranges that double; and powers of two."""

from __future__ import annotations

import re

from autotune.errors import InputError

_PART = re.compile(r"(\d{1,18})(?:\.\.(\d{1,18}))?")


def parse_sizes(text: str, name: str) -> list[int]:
    """``16,64,256``, ``1..1024`` (doubling), or both mixed; ``name`` stands in messages. Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or int(match[1]) < 1:
            raise InputError(f"{name} {text}: write a list like 16,64,256 or a doubling range like 1..1024")
        value, end = int(match[1]), int(match[2] or match[1])
        if end < value:
            raise InputError(f"{name} {text}: the range {part.strip()} ends below its start")
        while value <= end:
            found.append(value)
            value *= 2
    return list(dict.fromkeys(found))


def size_ranges(text: str) -> list[range]:
    """The sizes of a filter: ``16,64``, ``16..64`` with all between, or both mixed; empty for another text."""
    parts = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    found = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part is not None]
    return found if len(found) == len(parts) and all(found) else []


def round_up(number: int) -> int:
    """The power of two from a number on."""
    return 1 << max(0, number - 1).bit_length()


def even_part(whole: int, most: int) -> int:
    """The size of as few, as equal parts as ``most`` allows, a multiple of 16 rows as ``most`` is: a last part of a few
    rows would take a GEMM of its own, which reads all of B.
    """
    parts = -(-whole // most)
    return -(-whole // (16 * parts)) * 16
