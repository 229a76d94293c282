"""The hosts of a program's ranks: those of one share its memory, its files in memory, and its clock."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from autotune.agreement import Agreement

BOOT = Path("/proc/sys/kernel/random/boot_id")
SHARED_MEMORY = Path("/dev/shm")
NODE = ("GROUP_RANK", "SLURM_NODEID")
"""Variables in which launchers (torchrun, Slurm) number their nodes, which may lie on one machine, as in tests."""
NODES = ("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES")
"""The number of these nodes, by the same launchers."""


def this_machine() -> str:
    """A text that all processes on one kernel share, whatever containers or nodes they count to."""
    return BOOT.read_text().strip() if BOOT.exists() else socket.gethostname()


def this_host() -> str:
    """A text that processes share if they can share files in memory; another on every other host, and in containers
    whose memory is apart.
    """
    memory = SHARED_MEMORY.stat().st_dev if SHARED_MEMORY.is_dir() else ""
    return f"{this_machine()} {memory} {_first_of(NODE)}"


def launched_nodes() -> int:
    """The nodes on which the launcher has started ranks; 1 where it does not say."""
    told = _first_of(NODES)
    return int(told) if told.isdecimal() else 1


def _first_of(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if name in os.environ), "")


def first_on_hosts(agreement: Agreement) -> list[int]:
    """By rank, the first rank on its host. Collective."""
    hosts = agreement.gather(this_host)
    return [hosts.index(host) for host in hosts]
