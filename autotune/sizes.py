"""Sizes: in words, lists and ranges that double; those of a range to search and to verify; and powers of two."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from autotune.errors import InputError

WIDEST = 4
"""Two measured sizes that are further apart by more than this factor say nothing of those between them."""

OFF_GRID = 0.25
"""The place of the verified size in the gap between two others, as a share of it: a config wastes most right above a
size that its tiles divide. GEMM + reduce-scatter, N=8192 K=8192, verified at 512, 874, 1024: at 614 what was served
took 125.6 µs where plain torch takes 98.0 (2 H100, 2026-11-27).
"""

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


def few(sizes: Iterable[int]) -> list[int]:
    """The sizes of a range to search: the first, the last, and between them the fewest that are ``WIDEST`` apart at
    most, where the sizes allow.
    """
    rising = sorted(set(sizes))
    found = rising[:1]
    for size, following in itertools.pairwise(rising):
        if following > WIDEST * found[-1] and size > found[-1]:
            found.append(size)
    return found if found[-1:] == rising[-1:] else [*found, rising[-1]]


def off_grid(sizes: Iterable[int], ranks: int, valid: Callable[[int], bool]) -> list[int]:
    """In each wide gap a size that no tile divides: odd, or odd for each rank where the ranks share it out."""
    found = []
    for small, large in itertools.pairwise(sorted(sizes)):
        wanted = small + OFF_GRID * (large - small)
        odd = [unit * (2 * round(wanted / (2 * unit)) + 1) for unit in (1, ranks) if large - small >= 8 * unit]
        found += [size for size in odd if small < size < large and valid(size)][:1]
    return found


Lists = Mapping[str, Sequence[int]]
"""Sizes by dimension."""


def spread(
    lists: Lists, doubling: Iterable[str], along: Iterable[str], ranks: int, valid: Callable[[dict[str, int]], bool]
) -> tuple[list[dict[str, int]], list[dict[str, int]]]:  # fmt: skip
    """The combinations to search, the last dimension varying fastest, and those to verify.

    Of the dimensions ``doubling`` few sizes are searched. ``along`` a dimension, with the others as they are searched,
    its other sizes are verified, and one off the grid of tiles in each gap.
    """
    wide = {*doubling}
    few_of = {name: few(sizes) if name in wide else list(sizes) for name, sizes in lists.items()}
    searched, verified = combined(few_of), list[dict[str, int]]()
    for name in along:
        made = off_grid(lists[name], ranks, lambda size, name=name: valid({**searched[-1], name: size}))  # type: ignore[misc]
        between = sorted({*lists[name], *made} - {*few_of[name]})
        verified += combined({**few_of, name: between})
    return searched, verified


def combined(lists: Lists) -> list[dict[str, int]]:
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def round_up(number: int) -> int:
    """The power of two from a number on."""
    return 1 << max(0, number - 1).bit_length()


def even_part(whole: int, most: int) -> int:
    """The size of as few, as equal parts as ``most`` allows, a multiple of 16 rows as ``most`` is: a last part of a few
    rows would take a GEMM of its own, which reads all of B.
    """
    parts = -(-whole // most)
    return -(-whole // (16 * parts)) * 16
