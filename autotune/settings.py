"""Settings from environment variables; the only module that reads ``os.environ`` for AUTOTUNE_ settings.

``SETTINGS`` lists them for the docs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import platformdirs

from autotune.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """An AUTOTUNE_ environment variable."""

    name: str
    allowed: str
    """The allowed texts, in words."""
    meaning: str
    read: Callable[[str], T]
    """Its value from its text; raises ValueError."""

    def value(self) -> T | None:
        """The value; None if unset or empty. Raises InputError for a text that is not allowed."""
        text = os.environ.get(self.name)
        return self.parsed(text) if text else None

    def parsed(self, text: str) -> T:
        try:
            return self.read(text)
        except ValueError:
            raise InputError(f"{self.name}={text!r}: must be {self.allowed}, or unset for the default") from None


def _whole_number(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not 1 <= int(text) <= most:
            raise ValueError
        return int(text)

    return read


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return read


def _yes_or_no(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


DATABASE = Setting("AUTOTUNE_DB", "a path or a URL", "database; default: a SQLite file in the user's data folder", str)
WORKLOADS = Setting(
    "AUTOTUNE_WORKLOADS",
    "paths, separated by ':'",
    "files with your own workloads, loaded beside the built-in ones",
    lambda text: [path for path in text.split(":") if path],
)
COMPILE_WORKERS = Setting(
    "AUTOTUNE_COMPILE_WORKERS",
    "an integer from 1 to 1024",
    "processes that compile ahead of the ranks; default: the cores less one per rank, from 1 to 64",
    _whole_number(1024),
)


def _by_name(text: str) -> dict[str, str]:
    """``NAME: TEXT; NAME: TEXT``, names as Python writes them."""
    named = [part.partition(":") for part in text.split(";") if part.strip()]
    if not all(name.strip() and colon and config.strip() for name, colon, config in named):
        raise ValueError
    return {name.strip().replace("-", "_"): config.strip() for name, _, config in named}


PIN = Setting(
    "AUTOTUNE_PIN",
    "NAME: VALUES, as in all-gather-gemm: mode=push block_m=128, several separated by ';'",
    "configs of operators and decorated kernels, in place of tuned ones; values that are left out are those untuned",
    _by_name,
)
DEFAULTS = Setting(
    "AUTOTUNE_DEFAULTS",
    "1 or 0",
    "1: operators and decorated kernels run untuned, whatever the database has",
    _yes_or_no,
)
OFFLINE = Setting(
    "AUTOTUNE_OFFLINE",
    "1 or 0",
    "1: decorated kernels never tune in this process, whatever their on_miss says",
    _yes_or_no,
)
HEAP = Setting(
    "AUTOTUNE_HEAP",
    "iris or torch",
    "the symmetric heap on GPUs: Iris's, or torch's symmetric memory; default: iris, but torch where Iris is not "
    "installed or ranks are on several hosts",
    _one_of("iris", "torch"),
)
HEAP_BYTES = Setting(
    "AUTOTUNE_HEAP_BYTES",
    "an integer from 1 to 2**50",
    "bytes of each rank's symmetric heap; default: while tuning what the problem needs, in a Context 1 GiB",
    _whole_number(1 << 50),
)
WAIT_SECONDS = Setting(
    "AUTOTUNE_WAIT_SECONDS",
    "an integer from 1 to 10**6",
    "seconds for which the ranks of a program wait for each other, in a kernel or on the host; default: 600, as NCCL's",
    _whole_number(10**6),
)
TRACE = Setting(
    "AUTOTUNE_TRACE",
    "1 or 0",
    "0: no call of a winner and of the library's way is traced after a search; 1: under the interpreter, too",
    _yes_or_no,
)
SETTINGS: Sequence[Setting[Any]] = (
    DATABASE, WORKLOADS, COMPILE_WORKERS, PIN, DEFAULTS, OFFLINE, HEAP, HEAP_BYTES, WAIT_SECONDS, TRACE
)  # fmt: skip


def pinned(name: str) -> str | None:
    """The config that AUTOTUNE_PIN has for an operator or a kernel, as it is written there."""
    return (PIN.value() or {}).get(name)


def wait_seconds() -> int:
    """Seconds for which the ranks of a program wait for each other."""
    return WAIT_SECONDS.value() or 600


def default_database_url() -> str:
    """``AUTOTUNE_DB``, else a SQLite file in the user's data folder (nothing is created here)."""
    return DATABASE.value() or f"sqlite:///{user_data_folder() / 'cache.db'}"


def user_data_folder() -> Path:
    return Path(platformdirs.user_data_dir("iris-autotune"))
