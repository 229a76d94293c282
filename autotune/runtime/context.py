"""The context of run-time operators: a symmetric heap, and the workspaces that operators keep on it."""

from __future__ import annotations

import hashlib
import itertools
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from autotune.config import Config
from autotune.environment import machine as this_machine
from autotune.errors import InputError, InvalidConfig, RanksDisagree
from autotune.heap import open_heap
from autotune.problem import Problem
from autotune.runtime.lookup import Found, lookup
from autotune.runtime.workspace import Workspace
from autotune.workloads import workload

if TYPE_CHECKING:
    from autotune.runtime.operators.operator import Operator, Prepared

SPIN_LIMITS = {True: 1 << 18, False: 1 << 23}
"""Polls before a wait gives up, under the interpreter and on GPUs: about 20 s and 8 s; peers may well be late."""

_HANDLES = itertools.count(1)
_OPEN: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()


def open_context(handle: int) -> Context:
    """The open context with this ``handle``: what a compiled graph has in its place. Raises InputError."""
    found = _OPEN.get(handle)
    if found is None:
        raise InputError(f"no context with handle {handle} is open; open are {sorted(_OPEN) or 'none'}")
    return found


class Context:
    """Opened once per process, on every rank alike; operators take it as their first argument.

    All ranks make the same calls in the same order. Threads may share a context: a call is made as a whole, and its
    device work comes after that of the call before, whichever streams the two are on.
    """

    def __init__(self, heap_bytes: int = 1 << 30, *, url: str | None = None) -> None:
        """Collective over the default process group, which has to be initialised (``cpu:gloo,cuda:nccl`` or ``gloo``).

        ``heap_bytes`` is the symmetric heap of each rank; an operator's workspace on it is about twice what is
        gathered or exchanged. ``url`` names the database of tuned configs, by default the user's.
        """
        self.group = dist.new_group(backend="gloo")
        self.machine = this_machine()
        self.heap = open_heap(heap_bytes, self.group)
        self.spin_limit = SPIN_LIMITS[self.machine.is_interpreter]
        self.calls: dict[Any, Prepared] = {}
        """Forms of calls that have been checked, see ``Operator``."""
        self.handle = next(_HANDLES)
        _OPEN[self.handle] = self
        self._workspaces: dict[tuple[Problem, Config], Workspace] = {}
        self._choices: dict[Problem, Found] = {}
        self._url = url
        self._lock = threading.RLock()
        self._stream: torch.cuda.Stream | None = None
        self._mark = self.heap.mark()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._end()  # waits for nobody: the other ranks may not come

    def close(self) -> None:
        """Give everything back. Collective; waits for what has been enqueued. A second time it does nothing."""
        if self.handle in _OPEN:
            self.heap.barrier()
            self._end()

    def _end(self) -> None:
        _OPEN.pop(self.handle, None)
        self._forget()
        self.heap.close()

    def release(self) -> None:
        """Give all workspaces back; the next call of each problem makes its own anew. Collective; waits for the device.

        Whatever was allocated on ``heap``, the tensors of ``all_gather_shard``, and captured graphs are void then.
        """
        with self._lock:
            self.heap.barrier()
            self._forget()
            self.heap.release(self._mark)

    def _forget(self) -> None:
        self.calls.clear()
        self._workspaces.clear()

    def check(self) -> None:
        """Raise GangError where a wait in any operator's kernel has given up. Waits for the device.

        On a GPU a call returns before it is known whether all ranks came: check now and then, and before results
        count. (Under the interpreter every call checks itself.)
        """
        with self._lock:
            for workspace in self._workspaces.values():
                workspace.check()

    @property
    def capturing(self) -> bool:
        """Whether the current stream is being captured into a CUDA graph."""
        return self.heap.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def enqueue(self, workspace: Workspace, operands: Sequence[torch.Tensor | None], out: torch.Tensor) -> None:
        """One call of a workspace on the current stream, after the call before on whatever stream."""
        with self._lock:
            if not self.machine.is_interpreter:
                self._follow()
            workspace.run(operands, out)

    def _follow(self) -> None:
        """Two calls at once could each hold the GPU that the other one's peers need, or share a scratch."""
        stream = torch.cuda.current_stream(self.heap.device)
        last = self._stream
        if last is not None and last.cuda_stream == stream.cuda_stream:
            return
        if self.capturing:
            return  # runs when it is replayed: then its order is the caller's
        if last is not None:
            stream.wait_stream(last)
        self._stream = stream

    def workspace(self, operator: Operator, problem: Problem, config: Config | None = None) -> Workspace:
        """The workspace of a problem, with its tuned config or the given one. Collective where it is not there yet.

        Raises what ``choose`` raises, HeapExhausted, and InputError where the context is closed or a CUDA graph is
        being captured.
        """
        if self.handle not in _OPEN:
            raise InputError(f"{problem.workload}: the context is closed; open another one")
        if self.capturing:
            raise InputError(f"first call of {problem.workload} ({problem}) within a CUDA graph: make one before it")
        with self._lock:
            key = problem, self.choose(problem, config).config
            if key not in self._workspaces:
                self._workspaces[key] = Workspace(operator, self, *key)
            return self._workspaces[key]

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
        self._compare(f"{problem.workload} {problem.to_json()}")
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
        if (problem, config) not in self._workspaces:
            space = workload(problem.workload).space
            violation = space.violation(config, problem, self.machine)
            self._compare(f"{problem.workload} {problem.to_json()} {config.to_json()}")
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
