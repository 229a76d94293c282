"""Ctrl-C and SIGTERM end a command alike, keeping what was measured; the exit code tells which of them it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []


def exit_code() -> int:
    """As shells have it, 128 and the signal's number: 143 after SIGTERM, else 130."""
    return 128 + (_received[-1] if _received else signal.SIGINT)


def requested() -> bool:
    """True once a signal came: what is raised then may be its KeyboardInterrupt, turned over by a library."""
    return bool(_received)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it both signals raise KeyboardInterrupt, unless this process was started to ignore them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    _received.clear()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt
