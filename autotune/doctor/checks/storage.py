"""Checks of storage: disks, shared memory, the database."""

from __future__ import annotations

from pathlib import Path

from autotune.doctor.finding import Finding, advice, broken, fine
from autotune.doctor.host import Host
from autotune.errors import NoDatabase, StoreError
from autotune.text import counted

MIB, GIB = 1 << 20, 1 << 30

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "fuse.sshfs", "9p", "ceph", "glusterfs", "beegfs", "gpfs")
"""Network file systems: SQLite's WAL does not work there, since its readers share memory."""

SLOWEST = 20 * MIB
"""Bytes per second; below this, recording slows every trial."""


def shm(host: Host) -> Finding:
    """/dev/shm holds the ranks' and NCCL's messages, and without GPUs the symmetric heap."""
    if not host.exists("/dev/shm"):
        return advice("/dev/shm does not exist", "mount it: mount -t tmpfs tmpfs /dev/shm")
    free = host.mount(Path("/dev/shm")).free
    told = f"{size_text(free)} free in /dev/shm"
    mend = "in a container: docker run --ipc=host or --shm-size=8g; elsewhere remove stale files from it"
    if free < 64 * MIB:
        return broken(told, mend)
    return advice(told, mend) if free < GIB else fine(told)


def database(host: Host, url: str) -> Finding:
    """The database: it must be usable."""
    try:
        found = host.database(url)
    except NoDatabase as error:
        return fine(str(error))
    except StoreError as error:
        return broken(str(error), "do what it says, or name another database with AUTOTUNE_DB or --db")
    told = f"{found.place}: {found.server}, {counted(found.trials, 'trial') if found.has_tables else 'no tables yet'}"
    if not found.writable:
        return advice(f"{told}, read-only", "look-ups work; to tune, make it writable or name another database")
    return fine(told)


def database_disk(host: Host, url: str) -> Finding:
    """Space, speed and file system of the disk with the SQLite file."""
    folder = _folder(url)
    if folder is None:
        return fine("on the server")
    mount = host.mount(folder)
    if mount.kind in NETWORK:
        mend = (
            "SQLite shared by several processes needs a local disk: set AUTOTUNE_DB to one, or to a PostgreSQL server"
        )
        return broken(f"{folder} is on {mount.kind}, a network file system", mend)
    space = _space(folder, mount.free)
    if space is not None:
        return space
    try:
        speed = host.write_speed(folder)
    except OSError as error:
        return broken(
            f"{folder} cannot be written: {error.strerror}", "make it writable, or set AUTOTUNE_DB to another folder"
        )
    told = f"{folder}: {size_text(mount.free)} free, {mount.kind}, {speed / MIB:.0f} MiB/s"
    if speed < SLOWEST:
        return advice(told, "recording slows the trials: set AUTOTUNE_DB to a faster disk")
    return fine(told)


def kernel_cache(host: Host) -> Finding:
    """The disk with Triton's compiled kernels."""
    folder = host.kernel_cache()
    free = host.mount(folder).free
    return _space(folder, free) or fine(f"{folder}: {size_text(free)} free")


def size_text(amount: int) -> str:
    """``12 MiB``, ``3.4 GiB``."""
    return f"{amount / GIB:.1f} GiB" if amount >= GIB else f"{amount / MIB:.0f} MiB"


def _space(folder: Path, free: int) -> Finding | None:
    """The finding on a disk that is full or nearly full; None for another."""
    told, mend = f"{folder}: {size_text(free)} free", "free some space or use another disk"
    if free < 50 * MIB:
        return broken(told, mend)
    return advice(told, mend) if free < GIB else None


def _folder(url: str) -> Path | None:
    """The folder of a SQLite file; None for a server's database."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return Path(url).expanduser().absolute().parent
    return Path(rest.removeprefix("/")).parent if scheme.startswith("sqlite") else None
