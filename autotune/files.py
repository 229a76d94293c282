"""Files that people name: their text, or what is wrong with them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from autotune.errors import InputError


def text_of(file: str | os.PathLike[str]) -> str:
    """The whole text of a file or a pipe, such as a shell's <(tune export). Raises InputError that says why not."""
    try:
        mode = os.stat(file).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # /dev/zero has no end
            raise InputError("a device; name a file or a pipe")
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text ({error.reason} at byte {error.start})") from error
