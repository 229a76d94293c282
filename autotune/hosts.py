"""Which ranks of a program share a host, and so its memory, its files in memory, and its clock."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from autotune.agreement import Agreement

BOOT = Path("/proc/sys/kernel/random/boot_id")
SHARED_MEMORY = Path("/dev/shm")
NODES = ("GROUP_RANK", "SLURM_NODEID")
"""Variables in which launchers (torchrun, Slurm) number their nodes, which may lie on one machine, as in tests."""


def this_host() -> str:
    """The same text in all processes that can share files in memory; another on every other host, and in containers
    whose memory is apart.
    """
    boot = BOOT.read_text().strip() if BOOT.exists() else socket.gethostname()
    memory = SHARED_MEMORY.stat().st_dev if SHARED_MEMORY.is_dir() else ""
    node = next((os.environ[name] for name in NODES if name in os.environ), "")
    return f"{boot} {memory} {node}"


def first_on_hosts(agreement: Agreement) -> list[int]:
    """By rank, the first rank on its host. Collective."""
    hosts = agreement.gather(this_host)
    return [hosts.index(host) for host in hosts]
