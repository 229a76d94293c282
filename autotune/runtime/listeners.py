"""Listeners to the operators' calls: none, but for ``autotune.collect``."""

from __future__ import annotations

from collections.abc import Callable

from autotune.problem import Problem

LISTENERS: list[Callable[[Problem], None]] = []


def tell(problem: Problem) -> None:
    """A problem was called, or found in a graph."""
    for listener in LISTENERS:
        listener(problem)
