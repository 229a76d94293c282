"""Ray starts the worker on each host of a cluster, with all its GPUs. Nothing is kept in Ray."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from autotune.errors import FleetError
from autotune.fleet.worker import LOOK_SECONDS

LOG = logging.getLogger("autotune")

MOST_STARTS = 5
"""Times that a node's worker is started, if its process is killed."""

END_SECONDS = 120.0
"""Seconds that interrupted workers have to end; Ray kills them then."""

HEAD_SECONDS = 30.0
"""Seconds without an answer, after which the head is gone. After a minute Ray ends this process in words of its own."""

NODE_ID = "ray.io/node-id"


class Cluster:
    """A Ray cluster that is running already."""

    def __init__(self, address: str | None) -> None:
        """Raises FleetError."""
        self._ray = _connected(address)
        head, _, port = self._ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = head.strip("[]"), int(port)
        self._closed = threading.Event()
        threading.Thread(target=self._watch_head, name="head", daemon=True).start()

    def gpus(self) -> dict[str, int]:
        """By node, of those that are here now and have some."""
        while not self._answers():  # Ray would wait; the head's thread ends this process
            time.sleep(1.0)
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
        return {node["NodeID"]: int(node["Resources"]["GPU"]) for node in nodes}

    def run(self, work: Callable[..., None], *given: Any, look: Callable[[], None]) -> list[str]:
        """Call the function ``work`` once on each node, with what is given and the number of its GPUs; also on those
        that join meanwhile.

        Returns the nodes' errors. ``look`` is called every few seconds. An interrupt is passed on to the work.
        """
        task = self._ray.remote(num_cpus=0, max_retries=0)(work)
        running: dict[Any, str] = {}
        starts: Counter[str] = Counter()
        ended: set[str] = set()
        errors: list[str] = []
        try:
            while True:
                present = self.gpus()
                for node in present.keys() - ended - set(running.values()):
                    options = task.options(num_gpus=present[node], label_selector={NODE_ID: node}, name="tune fleet")
                    running[options.remote(*given, present[node])] = node
                    starts[node] += 1
                if not running:
                    return errors
                for reference, node in running.items():
                    if node not in present:  # Ray would wait for ever
                        self._ray.cancel(reference)
                for reference in self._ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)[0]:
                    node = running.pop(reference)
                    error, died = self._end(reference)
                    if not died or starts[node] == MOST_STARTS:
                        ended.add(node)
                        errors += [error] if error else []
                look()
        finally:
            self._close(list(running))

    def _end(self, reference: Any) -> tuple[str, bool]:
        """A worker's error, empty without one; and whether its process died."""
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return _first_line(error.cause or error), False
        except self._ray.exceptions.RayError as error:
            LOG.warning("a worker died: %s", _first_line(error))
            return f"a worker died {MOST_STARTS} times: {_first_line(error)}", True
        return "", False

    def _close(self, running: list[Any]) -> None:
        self._closed.set()
        if not self._answers():
            return  # Ray would wait for it
        for reference in running:
            self._ray.cancel(reference)
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=END_SECONDS)
        self._ray.shutdown()

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._head, timeout=2.0).close()
        except OSError:
            return False
        return True

    def _watch_head(self) -> None:
        answered_at = time.monotonic()
        while not self._closed.wait(2.0):
            if self._answers():
                answered_at = time.monotonic()
            elif time.monotonic() > answered_at + HEAD_SECONDS:
                LOG.error("the head of the Ray cluster is gone; start the cluster again, then run the same command")
                os._exit(FleetError.exit_code)  # a question to the head waits; all that is known is in the database


def _connected(address: str | None) -> Any:
    try:
        import ray
    except ImportError as error:
        raise FleetError(f"no Ray ({error}); install it: pip install 'iris-autotune[fleet]'") from error
    if address is not None and "://" in address:
        raise FleetError(f"address {address!r}: write HOST:PORT of the head, or leave it out on a host of the cluster")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        place = f"at {address or 'this host'}: {_first_line(error)}"
        raise FleetError(f"no Ray cluster {place}; start one: ray start --head") from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray's would end this process on SIGTERM, with a stack trace
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        LOG.warning(
            "Ray's token authentication is off: whoever reaches this cluster runs code on it, see docs/fleet.md"
        )
    return ray


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]
