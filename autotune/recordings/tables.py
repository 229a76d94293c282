"""The recordings that the package carries, by name."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path

from autotune.db import CacheKey
from autotune.errors import InputError
from autotune.text import did_you_mean

FOLDER = Path(__file__).parent / "data"
ENDING = ".json.gz"


def names() -> list[str]:
    return sorted(file.name.removesuffix(ENDING) for file in FOLDER.glob(f"*{ENDING}"))


def file_of(name: str) -> Path:
    """The file of a table, or of a recording that is named by its path. Raises InputError."""
    if name in names():
        return FOLDER / f"{name}{ENDING}"
    if name.endswith(ENDING) or Path(name).is_file():
        return Path(name)
    known = ", ".join(names())
    raise InputError(f"table {name!r}: tables: {known}, or a file of tune record{did_you_mean(name, names())}")


@functools.cache
def of_replay(key: CacheKey, recorded: str) -> str:
    """The name of the table of that day that a study replays; ``FILE`` for a user's own."""
    for name in names():
        values = json.loads(gzip.decompress(file_of(name).read_bytes()))
        is_of_day = values["workload"] == key.workload and values["recorded_at"].startswith(recorded)
        if is_of_day and values["problem"].items() <= key.fields.items():
            return name
    return "FILE"
