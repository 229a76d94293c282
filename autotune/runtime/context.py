"""The context of run-time operators: a symmetric heap, and the workspaces that operators keep on it."""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import Any

import torch.distributed as dist

from autotune.config import Config
from autotune.environment import machine as this_machine
from autotune.errors import InvalidConfig, RanksDisagree
from autotune.heap import open_heap
from autotune.problem import Problem
from autotune.runtime.lookup import Found, lookup
from autotune.workloads import workload

SPIN_LIMITS = {True: 1 << 18, False: 1 << 23}
"""Polls before a wait gives up, under the interpreter and on GPUs: about 20 s and 8 s; peers may well be late."""


class Context:
    """Opened once per process, on every rank alike; operators take it as their first argument."""

    def __init__(self, heap_bytes: int = 1 << 30, *, url: str | None = None) -> None:
        """Collective over the default process group, which has to be initialised (``cpu:gloo,cuda:nccl`` or ``gloo``).

        ``heap_bytes`` is the symmetric heap of each rank; an operator's workspace on it is about twice the gathered
        input. ``url`` names the database of tuned configs, by default the user's.
        """
        self.group = dist.new_group(backend="gloo")
        self.machine = this_machine()
        self.heap = open_heap(heap_bytes, self.group)
        self.spin_limit = SPIN_LIMITS[self.machine.is_interpreter]
        self.workspaces: dict[Any, Any] = {}
        self._url = url
        self._choices: dict[Problem, Found] = {}

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the heap back. No rank may still run an operator of this context."""
        self.workspaces.clear()
        self.heap.close()

    def choose(self, problem: Problem, config: Config | None = None) -> Found:
        """The config for a problem, the same on every rank: rank 0 looks it up, the others take its word.

        Collective at a problem's first call, a dictionary look-up afterwards. A ``config`` given by the caller is
        checked against the space and has to be the same on all ranks: raises InvalidConfig, RanksDisagree.
        """
        if config is not None:
            return self._given(problem, config)
        if problem not in self._choices:
            self._choices[problem] = self._agreed(problem)
        return self._choices[problem]

    def _agreed(self, problem: Problem) -> Found:
        self._compare(problem.to_json())
        found: list[Found | BaseException | None] = [None]
        if self.heap.rank == 0:
            try:
                found[0] = lookup(problem.workload, problem, machine=self.machine, url=self._url)
            except Exception as error:  # noqa: BLE001  raised below on every rank: none may miss the broadcast
                found[0] = error
        dist.broadcast_object_list(found, group_src=0, group=self.group)
        if isinstance(found[0], BaseException):
            raise found[0]
        assert found[0] is not None
        return found[0]

    def _given(self, problem: Problem, config: Config) -> Found:
        if (problem, config) not in self.workspaces:
            space = workload(problem.workload).space
            violation = space.violation(config, problem, self.machine)
            self._compare(f"{problem.to_json()} {config.to_json()}")
            if violation is not None:
                raise InvalidConfig(f"config not valid for {problem}: {violation}")
        return Found(config, "given", None, "given by the caller")

    def _compare(self, text: str) -> None:
        """Raise RanksDisagree on every rank where they do not all say the same."""
        mine = hashlib.sha256(text.encode()).hexdigest()
        everyone: list[Any] = [None] * self.heap.world_size
        dist.all_gather_object(everyone, mine, group=self.group)
        if len(set(everyone)) != 1:
            raise RanksDisagree(f"the ranks call an operator with different problems or configs; here: {text}")
