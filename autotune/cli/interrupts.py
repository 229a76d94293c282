"""Ctrl-C and SIGTERM both end a command and keep its measurements; the exit code tells them apart. Ctrl-Z stops it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NOBODY_READS = 128 + signal.SIGPIPE
"""The exit code where the reader of the output has gone (``tune list | head``), as shells report it of git or cat."""

SHOW_CURSOR = b"\x1b[?25h"

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []


def exit_code() -> int:
    """128 plus the signal's number, as in shells: 143 after SIGTERM, else 130."""
    return 128 + (_received[-1] if _received else signal.SIGINT)


def requested() -> bool:
    """True once a signal came; a library may have turned its KeyboardInterrupt into another exception."""
    return bool(_received)


def end_at_once() -> None:
    """From now on Ctrl-C ends the process without a word, not with a traceback: all is said, and what has been started
    ends with this process.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def interruptible() -> Iterator[None]:
    """While it lasts, both signals raise KeyboardInterrupt, unless this process was started to ignore them. Ctrl-Z
    gives the shell its cursor back, which a live view hides.

    In the midst of an import the first one waits for the import's end: libraries drop a KeyboardInterrupt there and go
    on (torch, as if there were no NumPy), or abort the process where C++ called Python. A second one does not wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    _received.clear()
    handlers = dict.fromkeys(_SIGNALS, _interrupt)
    if sys.stderr.isatty():
        handlers[signal.SIGTSTP] = _stop
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    imports = _outermost_import(frame)
    if imports is None or len(_received) > 1:
        raise KeyboardInterrupt
    imports.f_trace, imports.f_trace_lines = _interrupt_at_its_end, False
    sys.settrace(lambda *_: None)  # of other frames nothing is traced


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(sys.stderr.fileno(), SHOW_CURSOR)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # and go on from here with fg
    signal.signal(number, _stop)


def _outermost_import(frame: FrameType | None) -> FrameType | None:
    """The frame of the import that is under way, the outermost of nested ones; None where none is."""
    found = None
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            found = frame
        frame = frame.f_back
    return found


def _interrupt_at_its_end(frame: FrameType, event: str, argument: object) -> Any:
    """Traces one frame; what a tracing function raises ends the tracing and goes on from that frame."""
    if event == "return":
        raise KeyboardInterrupt
    return _interrupt_at_its_end
