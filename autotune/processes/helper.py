"""A helper's process: carries out jobs one at a time and sends back their results."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

from autotune.processes.bound import parents_connection

Job = tuple[Callable[..., Any], tuple[Any, ...]]
"""A module's function and its arguments."""

Answer = tuple[Any, BaseException | None]
"""A job's result, or its error."""


def answer_to(received: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(received)  # from our own parent; imports the function's module
        return pickle.dumps((function(*arguments), None))
    except Exception as error:  # noqa: BLE001  the process boundary: whoever waits for the job raises it
        return _packed(error)


def _packed(error: Exception) -> bytes:
    """The pickled answer; only the error's text if a user's exception cannot be pickled."""
    try:
        return pickle.dumps((None, error))
    except Exception:  # noqa: BLE001  an exception's own pickling may raise anything
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


def main() -> None:
    """Serve jobs until the parent closes the connection."""
    connection = parents_connection()
    while True:
        try:
            connection.send_bytes(answer_to(connection.recv_bytes()))
        except (EOFError, BrokenPipeError):
            os._exit(0)  # destructors of GPU libraries may hang, and nothing here needs them


if __name__ == "__main__":
    main()
