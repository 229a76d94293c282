"""Files that people name: their text, or what is wrong with them; and writing them without losing what was there."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from autotune.errors import AutotuneError, InputError

SQLITE = b"SQLite format 3\0"

DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors of a write that no other input would mend."""


def text_of(file: str | os.PathLike[str]) -> str:
    """The whole text of a file or a pipe, such as a shell's <(tune export). Raises InputError that says why not."""
    try:
        mode = os.stat(file).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # /dev/zero has no end
            raise InputError("a device; name a file or a pipe")
        return Path(file).read_text(encoding="utf-8-sig")  # with the mark before it that Windows' editors write
    except OSError as error:
        raise InputError(str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text ({error.reason} at byte {error.start})") from error


def is_database(file: Path) -> bool:
    """True for a SQLite file. A pipe is none, and its beginning stays for its reader."""
    if file.is_file():
        with suppress(OSError), file.open("rb") as opened:
            return opened.read(len(SQLITE)) == SQLITE
    return False


def write_whole(file: Path, content: bytes) -> None:
    """Write a file so that the one which it replaces stays if that fails. Raises InputError that says why not; a full
    or broken disk is a plain AutotuneError.

    What a link leads to is replaced. Pipes, devices, what a process has open (/dev/stdout), and files in folders that
    take no other file are written in place.
    """
    try:
        if is_database(file):
            raise InputError(f"file {file}: it is a database, which this would destroy; name another file")
        target = _target(file)
        if target is None or not _is_replaced(target, content):
            file.write_bytes(content)
    except OSError as error:
        failure = AutotuneError if error.errno in DISK_FAILS else InputError
        raise failure(f"file {file}: {error.strerror}") from error


def _target(file: Path) -> Path | None:
    """The file that a chain of links leads to, there or not; None behind a link of /proc, whose file stays open."""
    with suppress(FileNotFoundError):
        file.stat()  # raises OSError for a ring of links
    while file.is_symlink():
        folder = file.parent
        if os.path.realpath(folder).startswith("/proc/"):
            return None
        file = folder / os.readlink(file)
    return file


def _is_replaced(file: Path, content: bytes) -> bool:
    """True once a draft beside the file has taken its place; False where that cannot be."""
    there = file.stat() if file.exists() else None
    if there is not None and not (stat.S_ISREG(there.st_mode) and os.access(file, os.W_OK)):
        return False
    draft = file.with_name(f".{os.urandom(8).hex()}.new")
    try:
        opened = draft.open("xb")
    except PermissionError:
        return False
    try:
        with opened:
            opened.write(content)
        if there is not None:
            draft.chmod(stat.S_IMODE(there.st_mode))
    except BaseException:  # Ctrl-C too: no draft is left behind
        draft.unlink()
        raise
    try:
        draft.replace(file)
    except OSError:  # mounted by itself, or another user's in a folder such as /tmp
        draft.unlink()
        return False
    return True
