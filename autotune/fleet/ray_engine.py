"""The Ray engine: a task for each problem, GPUs of one host, placed and indexed by Ray. Nothing is kept in Ray.

Two Ray nodes on one host are told apart by a label: ``ray start --labels host=NAME``.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

from autotune.db.fleet_records import HostRecord, Listed
from autotune.errors import FleetError
from autotune.fleet.attempt import attempt
from autotune.fleet.engine import Ended
from autotune.fleet.hosts import examined
from autotune.fleet.tuning import PATIENCE, ChildTuning
from autotune.results.figures import dashed, problem_text

LOG = logging.getLogger("autotune")

EXTRA = "pip install 'iris-autotune[fleet]'"

LABEL = "host"
"""Label of a Ray node that names its host; without it the host's own name counts."""

ALONE = "host"
"""Resource of which every host has one: an exclusive problem takes all of it, another one a little."""

A_LITTLE = 0.001

HEAD_SECONDS = 30.0
"""Seconds without an answer from the head, after which the cluster is gone."""

NODE_ID = "ray.io/node-id"
ACCELERATOR = "ray.io/accelerator-type"


@dataclass
class _Task:
    problem: Listed
    token: str
    host: str
    cancelled: bool = False


class RayEngine:
    """Tunes on the GPUs of a Ray cluster that is running already."""

    def __init__(self, url: str, address: str | None, *, exclusive: bool = False) -> None:
        """``url`` has no password: tasks are seen by all users of the cluster. Raises FleetError."""
        self._ray = _connected(address)
        self._url, self._exclusive = url, exclusive
        self._examine = self._ray.remote(num_cpus=0, max_retries=0)(_examined)
        self._attempt = self._ray.remote(num_cpus=0, max_retries=0)(_attempt)
        self._examinations: dict[str, Any] = {}
        self._hosts: dict[str, HostRecord] = {}
        """Hosts by node, without nodes that could not be examined."""
        self._nodes: dict[str, dict[str, Any]] = {}
        self._tasks: dict[Any, _Task] = {}
        self._head = _Head(self._ray.get_runtime_context().gcs_address)
        self.troubles: dict[str, str] = {}
        """Reasons that hosts could not be examined."""
        while self._look():
            time.sleep(0.1)
        if exclusive and (lacking := [_name(node) for node in self._nodes.values() if ALONE not in node["Resources"]]):
            raise FleetError(
                f"--exclusive needs hosts started with: ray start --resources '{{\"{ALONE}\": 1}}'; "
                f"without it: {', '.join(sorted(lacking))}"
            )

    def hosts(self) -> list[HostRecord]:
        self._look()
        return [self._hosts[node] for node in self._nodes if node in self._hosts]

    @property
    def at_work(self) -> set[int]:
        return {task.problem.id for task in self._tasks.values()}

    def free(self, host: HostRecord) -> int:
        given = sum(task.problem.wanted.key.world_size for task in self._tasks.values() if task.host == host.name)
        return (0 if given else host.gpus) if self._exclusive else host.gpus - given

    def start(self, problem: Listed, host: HostRecord) -> None:
        """Ray waits for the GPUs if another command has them, and chooses which ones it is."""
        [node] = [node for node, found in self._hosts.items() if found is host and node in self._nodes]
        key, token = problem.wanted.key, uuid.uuid4().hex
        name = f"{dashed(key.workload)} {problem_text(json.loads(key.problem))} on {key.world_size} × {key.device}"
        kind = self._nodes[node]["Labels"].get(ACCELERATOR)
        reference = self._attempt.options(
            name=name, num_gpus=key.world_size, resources=self._share(),
            label_selector={NODE_ID: node, **({ACCELERATOR: kind} if kind else {})},
        ).remote(self._url, problem.id, token)  # fmt: skip
        self._tasks[reference] = _Task(problem, token, host.name)

    def ended(self, seconds: float) -> list[Ended]:
        present = {host.name for host in self.hosts()}
        for reference, task in self._tasks.items():
            if not task.cancelled and task.host not in present:  # Ray would wait for ever
                task.cancelled = True
                self._ray.cancel(reference)
        if not self._tasks:
            time.sleep(seconds)
            return []
        self._ray.wait(list(self._tasks), num_returns=1, timeout=seconds)
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        return [self._end(reference, self._tasks.pop(reference)) for reference in ready]

    def close(self) -> None:
        self._head.close()
        if not self._head.answers():
            return  # Ray would wait for it
        for reference in self._tasks:
            self._ray.cancel(reference)
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=2 * PATIENCE)
        self._ray.shutdown()

    def _look(self) -> bool:
        """Hear of nodes that came and went; True while one of them is being examined."""
        if not self._head.answers():
            return False
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
        self._nodes = {node["NodeID"]: node for node in nodes}
        for identity, node in self._nodes.items():
            if identity not in self._examinations:
                task = self._examine.options(name=f"examine {_name(node)}", label_selector={NODE_ID: identity})
                self._examinations[identity] = task.remote(_name(node), self._url, int(node["Resources"]["GPU"]))
        waiting = [reference for node, reference in self._examinations.items() if node in self._nodes and reference]
        ready, rest = self._ray.wait(waiting, num_returns=len(waiting), timeout=0) if waiting else ([], [])
        for identity, reference in self._examinations.items():
            if reference in ready:
                self._examinations[identity] = None
                self._take_examination(identity, reference)
        return bool(rest)

    def _take_examination(self, node: str, reference: Any) -> None:
        try:
            self._hosts[node] = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self.troubles[_name(self._nodes[node])] = _first_line(error)

    def _share(self) -> dict[str, float]:
        if self._exclusive:
            return {ALONE: 1.0}
        return {ALONE: A_LITTLE} if all(ALONE in node["Resources"] for node in self._nodes.values()) else {}

    def _end(self, reference: Any, task: _Task) -> Ended:
        try:
            self._ray.get(reference)
        except self._ray.exceptions.TaskCancelledError:
            return Ended(task.problem.id, task.token, lost="cancelled: its host is gone")
        except self._ray.exceptions.RayTaskError as error:
            why = _first_line(error.cause or error)
            return Ended(task.problem.id, task.token, lost=why, unable=why)
        except self._ray.exceptions.RayError as error:
            return Ended(task.problem.id, task.token, lost=f"Ray: {type(error).__name__}: {_first_line(error)}")
        return Ended(task.problem.id, task.token)


class _Head:
    """The head of the cluster. Without it Ray answers nothing, and ends this process after a minute, in its own words.

    A thread watches it, since a question that has been asked waits; it ends the process a little earlier.
    """

    def __init__(self, address: str) -> None:
        name, _, port = address.rpartition(":")
        self._place = name.strip("[]"), int(port)
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="head", daemon=True).start()

    def answers(self) -> bool:
        try:
            socket.create_connection(self._place, timeout=2.0).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        answered_at = time.monotonic()
        while not self._closed.wait(2.0):
            if self.answers():
                answered_at = time.monotonic()
            elif time.monotonic() > answered_at + HEAD_SECONDS:
                LOG.error(
                    "the head of the Ray cluster is gone; start the cluster again, then run the same command: "
                    "nothing is lost"
                )
                os._exit(FleetError.exit_code)  # all that is known is in the database


def _connected(address: str | None) -> Any:
    """Ray, connected. Raises FleetError."""
    try:
        import ray
    except ImportError as error:
        raise FleetError(f"--engine ray needs Ray ({error}); install it: {EXTRA}") from error
    if address is not None and "://" in address:
        raise FleetError(f"address {address!r}: write HOST:PORT of the head, or leave it out on a host of the cluster")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise FleetError(
            f"no Ray cluster at {address or 'this host'}: {_first_line(error)}; start one: ray start --head"
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray's would end this process on SIGTERM, with a stack trace
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        LOG.warning(
            "Ray's token authentication is off: whoever reaches this cluster runs code on it; see docs/fleet.md"
        )
    return ray


def _name(node: dict[str, Any]) -> str:
    name: str = node["Labels"].get(LABEL) or node["NodeManagerHostname"]
    return name


def _examined(name: str, url: str, gpus: int) -> HostRecord:
    return examined(name, url, gpus)


def _attempt(url: str, problem: int, token: str) -> bool:
    """Attempt a problem on the host, with the GPUs that Ray gave it. Output goes to Ray's dashboard."""
    import ray

    host = ray.get_runtime_context().get_node_labels().get(LABEL) or socket.gethostname()
    return attempt(url, host, problem, token, start=functools.partial(ChildTuning, tell=_told))


def _told(line: str) -> None:
    print(line, flush=True)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]
