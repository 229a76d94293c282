"""A config in words: "push: each rank sends …; 12 programs move data, 256 rows per signal, tile 128×256×64"."""

from __future__ import annotations

from autotune.config import Config
from autotune.db import CacheKey
from autotune.results.figures import plain
from autotune.workloads.faces import space_of
from autotune.workloads.user_files import BUILT_IN


def has_words(key: CacheKey) -> bool:
    """True for a built-in workload: of others the values would only be listed once more."""
    return key.workload in BUILT_IN and not key.is_kernel


def in_words(workload: str, config: Config) -> str:
    """One sentence, by what dimensions ``say``. Kernels that are not built in have their values named."""
    values = dict(config)
    declared = space_of(workload).dimensions if workload in BUILT_IN else {}
    told = {name: declared[name].told(config) for name in declared if values.pop(name, None) is not None}
    head = told.pop("mode", "") or (f"mode {plain(values.pop('mode'))}" if "mode" in values else "")
    parts = [*told.values(), *(f"{plain(name)} {plain(value)}" for name, value in values.items())]
    text = "; ".join(filter(None, [head, ", ".join(filter(None, parts))]))
    return f"{text}." if text else "No dimensions."
