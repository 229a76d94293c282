"""Names of a package that are loaded on first use, where most who import it need others."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from autotune.forks import FORKS_WAIT


def loading(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``; ``homes`` are the modules of its lazy names."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}")
        with FORKS_WAIT:
            home = importlib.import_module(homes[name])
            return home if home.__name__ == f"{package}.{name}" else getattr(home, name)

    return load
