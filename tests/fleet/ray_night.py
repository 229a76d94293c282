"""A night of ``tune fleet`` on this machine: fake Ray nodes, interpreter ranks, a PostgreSQL server, faults injected.

Faults come when so many problems are done: a worker killed, a node removed and added again, the database restarted, the
head killed and started again.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.db import Store
from autotune.fleet.problem_list import read_list
from autotune.fleet.standing import Row, rows_of

OBJECT_STORE = 80 << 20
WIDTHS = {"gpu-01": 4, "gpu-02": 2, "gpu-03": 1}
PATIENCE = 600.0
"""Seconds in which the command has to end after its cluster's head died."""


class Nodes:
    """A Ray cluster of fake nodes on this machine, with token authentication; it may lose nodes and its head."""

    def __init__(self, widths: dict[str, int]) -> None:
        self._widths = widths
        self._nodes: dict[str, Any] = {}
        self.start()

    def start(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        for name in self._widths:
            self.add(name)

    def add(self, name: str) -> None:
        self._nodes[name] = self._cluster.add_node(
            num_cpus=1, num_gpus=self._widths[name], object_store_memory=OBJECT_STORE, wait=False
        )

    def remove(self, name: str) -> None:
        """End a node without warning, like a host that loses its power."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def kill_head(self) -> None:
        self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


class Night:
    """One list, one database, one command that is started again when it ends too early."""

    def __init__(self, list_file: Path, url: str, nodes: Nodes, tell: Callable[[str], None]) -> None:
        self._list, self._url, self.nodes, self._tell = list_file, url, nodes, tell
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None

    def run(self, faults: Sequence[tuple[int, Callable[[Night], None]]]) -> None:
        """Until every problem is done or has failed; each fault once so many are done."""
        left = list(faults)
        while True:
            if self._process is None or self._process.poll() is not None:
                if set(self.counts()) <= {"done", "failed"}:
                    return
                self._start()
            time.sleep(0.5)
            counts = self.counts()
            if left and counts["running"] and counts["done"] >= left[0][0]:
                left.pop(0)[1](self)

    def _start(self) -> None:
        self.starts += 1
        self._tell(f"$ tune fleet {self._list.name} --engine ray …   (start {self.starts})")
        command = ["fleet", str(self._list), "--engine", "ray", "--address", self.nodes.address, "--db", self._url]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.cli", *command], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        threading.Thread(target=self._relay, args=(self._process,), daemon=True).start()

    def _relay(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                if not line.lstrip().startswith(("[state-dump]", "\033[33m(raylet)", "(2) raylet")) and line.strip():
                    self._tell(line.rstrip().replace(self._url, "postgresql://…"))

    def fault(self, what: str) -> None:
        self._tell(f"--- {what} ---")

    def ended(self) -> int:
        """Wait for the command to end, and end it if it does not."""
        assert self._process is not None
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._tell("--- the command did not notice; killed ---")
            self._process.kill()
            return self._process.wait()

    def rows(self) -> list[Row]:
        with Store.open(self._url) as store:
            return rows_of(read_list(self._list), store)

    def counts(self) -> Counter[str]:
        return Counter(row.state for row in self.rows())


def kill_worker(night: Night) -> None:
    row = next((row for row in night.rows() if row.state == "running"), None)
    if row is not None:
        night.fault(f"SIGKILL to {row.told}")
        os.kill(row.standing.held.lease.pid, signal.SIGKILL)


def replace_node(name: str) -> Callable[[Night], None]:
    def replace(night: Night) -> None:
        night.fault(f"{name} loses its power")
        night.nodes.remove(name)
        time.sleep(15)
        night.fault(f"{name} is back")
        night.nodes.add(name)

    return replace


def kill_head(night: Night) -> None:
    night.fault("the head of the Ray cluster is killed")
    night.nodes.kill_head()
    night.ended()
    night.nodes.stop()
    night.fault("the cluster is started again")
    night.nodes.start()


def restart_database(server: Any) -> Callable[[Night], None]:
    def restart(night: Night) -> None:
        night.fault("the database stops")
        server.stop()
        time.sleep(5)
        server.start()
        night.fault("the database is back")

    return restart


def with_tokens() -> None:
    """Switch Ray's token authentication on, for all that this process starts."""
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
