"""Files of numbers that people give in place of a distribution."""

from __future__ import annotations

import math
import re
from pathlib import Path

from autotune.errors import InputError

MOST_BYTES = 1 << 20
"""The largest file that is read."""


def numbers_in(path: str | Path, name: str, each: str) -> list[float]:
    """The numbers of a text file, finite and at least 0, between spaces, commas or line breaks, or a JSON list.

    ``name`` is what they are together, ``each`` what one of them is: ``histogram``, ``count for each expert``. Raises
    InputError where the file cannot be read, or holds something else.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
        if len(text) > MOST_BYTES:
            raise InputError(f"more than {MOST_BYTES} bytes; expected one {each}")
        return [_number(word, each) for word in re.split(r"[\s,]+", text.strip().strip("[]").strip())]
    except OSError as error:
        raise InputError(f"{name} {path}: {error.strerror}; give a file with one {each}") from error
    except ValueError as error:  # of the bytes, or a name with a null
        raise InputError(f"{name} {path}: not text; give a file with one {each}") from error
    except InputError as error:
        raise InputError(f"{name} {path}: {error}") from error


def _number(word: str, each: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise InputError(f"{word[:40]!r} is not a number; expected one {each}") from None
    if not 0 <= value < math.inf:
        raise InputError(f"{word[:40]}: numbers must be finite and not negative")
    return value
