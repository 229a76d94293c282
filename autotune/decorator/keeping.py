"""Databases that this process goes on without: a launch must not fail, nor wait again, because of one."""

from __future__ import annotations

import logging

from autotune.errors import StoreError

LOG = logging.getLogger("autotune")

_GIVEN_UP: dict[str, str] = {}


def failure(url: str) -> str | None:
    """The reason that this process goes on without the database, in one line; None if it uses it."""
    return _GIVEN_UP.get(url)


def give_up(url: str, error: StoreError) -> None:
    """Go on without the database until ``try_again``, and warn of it once."""
    if url not in _GIVEN_UP:
        _GIVEN_UP[url] = str(error)
        LOG.warning("tuned configs are kept only in this process: %s", error)


def try_again(url: str) -> None:
    _GIVEN_UP.pop(url, None)
