"""The context of run-time operators: a symmetric heap, and the workspaces that operators keep on it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from autotune.agreement import Agreement, settled
from autotune.config import Config
from autotune.errors import GangError, InputError, InvalidProblem, RanksDisagree
from autotune.heap import open_heap
from autotune.heap.alarm import RAISED, Alarm
from autotune.heap.patience import polls
from autotune.heap.status import new_status, tell_peers
from autotune.kernels.launching.streams import capturing, on_device
from autotune.machine import machine as this_machine
from autotune.outcome import DEFAULT_REGIME, regime_of
from autotune.problem import Problem
from autotune.runtime.blocks import Blocks
from autotune.runtime.call import Prepared, dispatched
from autotune.runtime.choices import Choices, given
from autotune.runtime.entries import Entries
from autotune.runtime.groups import process_group, ranks_of
from autotune.runtime.lookup import Found, workload_for
from autotune.runtime.meeting import CallAgreement, Meeting, Step
from autotune.runtime.stream_order import STREAM_ORDER
from autotune.runtime.workspace import Launches, Operands, Results, Workspace
from autotune.settings import HEAP_BYTES, wait_seconds
from autotune.task import Task
from autotune.workloads import Workload
from autotune.workloads.launched import LaunchedWorkload

MOST_WORKSPACES = 4096
"""Workspaces that a context remembers, each some 50 KB of the host's memory."""

T = TypeVar("T")

_Key = tuple[LaunchedWorkload, Problem, Config]
"""Key of a workspace: several workloads may share a type of problem."""

_HANDLES = itertools.count(1)
_OPEN: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()


def open_context(handle: int) -> Context:
    """The open context with this ``handle``: what a compiled graph has in its place. Raises InputError."""
    found = _OPEN.get(handle)
    if found is None:
        raise InputError(
            f"no context with handle {handle} is open; open handles: {sorted(_OPEN) or 'none'}. A graph keeps the "
            "context that it was compiled with: compile again with an open one"
        )
    return found


def check_context(given: object) -> None:
    """Raise InputError for what cannot be a context: it has no heap."""
    if not hasattr(given, "heap"):
        raise InputError(f"context is a {type(given).__name__}; expected an open autotune.Context")


def contexts_of(group: Any) -> list[Context]:
    """The open contexts of a group's ranks, the oldest first."""
    ranks = ranks_of(group)
    return [context for _, context in sorted(_OPEN.items()) if context.ranks == ranks]


class Context:
    """Opened once per process group, on every rank of it alike; operators take it as their first argument.

    All ranks make the same calls in the same order. Threads may share a context: a call is made as a whole, and its
    device work comes after that of the process's call before, whichever streams and contexts the two are on.
    """

    def __init__(
        self, heap_bytes: int | None = None, *, group: Any = None, url: str | None = None, regime: str = DEFAULT_REGIME,
        tune: str | None = None, invariant: bool = False,
    ) -> None:  # fmt: skip
        """Collective over the default process group, which has to be initialised (``cpu:gloo,cuda:nccl`` or ``gloo``).

        ``group``: a process group or a one-dimensional ``DeviceMesh`` with this rank in it, by default all ranks. On
        Iris's heap all ranks open their contexts at the same time, each for its own group: it maps those of all.
        ``heap_bytes``: the symmetric heap of each rank, by default AUTOTUNE_HEAP_BYTES, else 1 GiB; an operator's
        workspace on it is about twice what is gathered or exchanged. ``url``: the database of tuned configs, by default
        the user's. ``regime``: how the calls are made, see ``lookup``; ``graph`` for a program that captures them.
        ``tune``: see ``tune_first_calls``.
        ``invariant``: a row's bits do not depend on its batch: one config serves calls of all sizes, the first answer
        for as long as the context is open. Raises InputError for another word, and what that raises.
        """
        group = process_group(group)
        self.invariant = invariant
        self.ranks = ranks_of(group)
        """The context's ranks by their numbers in the default group."""
        self.group_name: str = (group or dist.distributed_c10d._get_default_group()).group_name
        """C10d's name of the group for the library's collectives."""
        self._agreement = agreement = CallAgreement.among(group)
        with contextlib.ExitStack() as undo:  # on Ctrl-C too: nothing is left half-way
            undo.callback(self._leave_group)
            # Only now: a rank that failed before would leave the others waiting for it.
            self.regime, self.machine = agreement.gather(lambda: (regime_of(regime), this_machine()))[agreement.rank]
            sizes = agreement.gather(lambda: HEAP_BYTES.value() or 1 << 30 if heap_bytes is None else heap_bytes)
            if min(sizes) < max(sizes):
                raise RanksDisagree(
                    f"the ranks ask for heaps of {sizes} bytes: give all of them one heap_bytes or AUTOTUNE_HEAP_BYTES"
                )
            self.heap = open_heap(sizes[0], agreement.group)
            undo.callback(self.heap.close)
            self.heap.host_barrier = agreement.barrier
            self.heap.group = None  # the agreement alone holds it, and so can leave it at once
            self.heap.library_group = group
            self._interpreted = self.machine.is_interpreter
            self.spin_limit = polls(wait_seconds(), interpreted=self._interpreted)
            """Polls before a wait in a kernel times out."""
            self._status = new_status(self.heap)
            self._alarm = agreement.all_or_none(lambda: Alarm(agreement, self.heap))
            undo.pop_all()
        tell_peers(self._status, self.heap, self._alarm.address)
        self._alarm_words = self._alarm.words
        self._meeting = Meeting(agreement, self._alarm, self.heap.device)
        self.calls: dict[Any, Prepared] = {}
        """Forms of calls that have been checked, see ``Operator``."""
        self.handle = next(_HANDLES)
        _OPEN[self.handle] = self
        self._workspaces: dict[_Key, Workspace] = {}
        self._blocks = Blocks(self.heap, self.machine, self._status)
        self._choices = Choices(agreement, self._meeting, self.machine, url, self.regime)
        self._agreed: set[tuple[object, ...]] = set()
        self._lock = threading.RLock()
        self._mark = self.heap.mark()
        # Not a ``__del__``, which would run in a torn down interpreter, too.
        self._unclosed = weakref.finalize(self, _warn_of_unclosed, agreement)
        self._unclosed.atexit = False
        if tune is not None:
            try:
                self.tune_first_calls(tune)
            except BaseException:
                self._end()
                raise

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._meeting.give_up(error)  # waits for nobody: the other ranks may not come
            self._end()

    def __copy__(self) -> Context:
        """Itself: a copy of a module that has it calls the same kernels."""
        return self

    def __deepcopy__(self, memo: object) -> Context:
        return self

    def __reduce__(self) -> Any:
        """Raises InputError: memory and process groups stay in their process."""
        raise InputError(
            "a Context, or a module that has one, cannot be pickled: save state_dict() and load it into a module made "
            "with the other process's own context"
        )

    def close(self) -> None:
        """Give everything back: memory, descriptors, threads. Collective; waits for what has been enqueued.

        A second time it does nothing.
        """
        if self.handle not in _OPEN:
            return
        try:
            if not self._meeting.given_up:
                with self._lock, self._meeting.together():
                    self._meeting.first(lambda: Step("close"))
                    self.heap.barrier()
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            if _OPEN.pop(self.handle, None) is None:
                return
            self._forget()
            self._alarm.close()
            self.heap.close()
            self._leave_group()
            if not _OPEN:
                STREAM_ORDER.forget()

    def _leave_group(self) -> None:
        if "_unclosed" in vars(self):
            self._unclosed.detach()
        agreement, self._agreement = self._agreement, CallAgreement()
        agreement.close()

    def release(self) -> None:
        """Give all workspaces back; the next call of each problem makes its own anew. Collective; waits for the device.

        That call also looks its config up again: after ``forget_lookups`` it gets a winner found since. Whatever was
        allocated on ``heap``, the tensors of ``all_gather_shard``, and captured graphs are void then.
        """
        if self.handle not in _OPEN:
            raise InputError("the context is closed: there is nothing to release")
        with self._lock, self._meeting.together():
            self._meeting.first(lambda: Step("release"), after_a_missed_call=True)
            self.heap.barrier()
            self._forget()
            self._choices.known.clear()
            self.heap.release(self._mark)
            self._status[:2] = 0
            self._alarm.reset()
            self.heap.barrier()

    def _forget(self) -> None:
        self.calls.clear()
        self._workspaces.clear()
        self._blocks = Blocks(self.heap, self.machine, self._status)

    def check(self) -> None:
        """Raise GangError where a wait in a kernel has timed out, on whatever rank, InvalidProblem where a routing gave
        this rank more rows than there is room for. Waits for all streams of the device.

        On a GPU a call returns before it is known whether all ranks came. If one does not, results are NaN, and the
        next call of any operator raises what this does. (Under the interpreter every call checks itself.) While a graph
        is captured it raises InputError.
        """
        if self.capturing:
            raise InputError("check() waits for the device: call it outside the captured graph")
        with self._lock:
            if self.heap.device.type == "cuda":
                torch.cuda.synchronize(self.heap.device)  # calls may be on any stream, and a status word waits for none
            if self._status[:2].any() or self._alarm_words[RAISED]:
                self._alarm_words[RAISED] |= int(self._status[0])  # another host may not have told this one yet
                self._raise_alarm()

    def _raise_alarm(self) -> None:
        """Raise InvalidProblem for a fault of this rank, else GangError."""
        if not self.capturing and self._status[1].item():  # first: the wrong input would be there after a release
            told = "tokens name an expert more than once, and so gave this rank more rows than there is room for "
            told += "(docs/kernels/moe.md); results since then are NaN. Mend the routing, then call context.release() "
            raise settled(InvalidProblem(f"{told}on every rank"))  # all ranks have made the call
        raise GangError(
            self._alarm.awaited_reason()
            or "a wait in a kernel timed out: some rank died, did not make this call, came more than "
            f"{wait_seconds()} s late (AUTOTUNE_WAIT_SECONDS), or was given more rows of experts than it has room for. "
            "Results since then are NaN, on all ranks. To go on, call context.release() on every rank"
        )

    @property
    def group(self) -> Any:
        """A gloo group of the ranks; None once the context is closed."""
        return self._agreement.group

    @property
    def capturing(self) -> bool:
        """True while the current stream is captured into a CUDA graph."""
        return capturing(self.heap.device)

    def enqueue(self, workspace: Workspace, operands: Operands, outs: Results, launches: Launches) -> None:
        """One call of a workspace on the current stream, after the process's call before, on whatever stream.

        Raises GangError where a wait has timed out since the context was opened or released, on whatever rank.
        """
        if self._alarm_words[RAISED]:
            self._raise_alarm()
        if not self._interpreted:  # a turn keeps other threads out; this lock, too, would cost 0.1 µs
            STREAM_ORDER.take(self.heap.device, workspace.run, operands, outs, launches)
            return
        with self._lock:
            workspace.run(operands, outs, launches)
            if self._alarm_words[RAISED]:
                self._raise_alarm()

    def workspace(
        self, workload: LaunchedWorkload, problem: Problem, config: Config | None, use: Callable[[Workspace], T]
    ) -> T:
        """``use`` of the workspace of a problem, with its tuned config or the given one.

        Collective until it has been bound to tensors: then whatever the making or ``use`` raises on one rank is raised
        on all, and the heap is as before. Raises what ``choose`` raises, HeapExhausted, and InputError where the
        context is closed or a CUDA graph is being captured.
        """
        self._demand_open(problem.workload)
        with self._lock, on_device(self.heap.device):
            known = self._known(workload, problem, config)
            if known is not None and known.bound:
                return use(known)
            if self.capturing:
                raise InputError(
                    f"first call of {problem.workload} ({problem}) within a CUDA graph; make one call before capturing"
                )
            call = self._choices.call(workload, problem, config)
            with self._meeting.together():
                key = workload, problem, self._choices.agree(call, workload, problem, config).config

                def make() -> tuple[Workspace, T]:
                    made = self._workspaces.get(key) or Workspace(
                        workload.kernels, Task(problem, self.machine), key[2], self.heap, self._blocks,
                        self.spin_limit, self._status, self._alarm.calls,
                    )  # fmt: skip
                    return made, use(made)

                mark = self.heap.mark()
                try:
                    made, found = self._agreement.all_or_none(make)
                except BaseException:
                    self.heap.release(mark)  # on every rank alike: the next workspace lies at the same place on all
                    raise
                if key not in self._workspaces:
                    if len(self._workspaces) >= MOST_WORKSPACES:
                        self._forget_older()
                    self._blocks.keep(made.place)
                    self._workspaces[key] = made
                return found

    def _known(self, workload: LaunchedWorkload, problem: Problem, config: Config | None) -> Workspace | None:
        if config is None and (found := self._choices.known.get((workload, problem))) is not None:
            config = found.config
        return None if config is None else self._workspaces.get((workload, problem, config))

    def _forget_older(self) -> None:
        """Forget the older half of the workspaces, at the same call on every rank: lengths that come again are set up
        anew, in the same memory. Those whose memory no other can have stay.
        """
        old = [key for key, workspace in self._workspaces.items() if not workspace.place.lasts][: MOST_WORKSPACES // 2]
        gone = {self._workspaces.pop(key) for key in old}
        for workload, problem, _ in old:
            self._choices.known.pop((workload, problem), None)
        for workspace in gone:
            workspace.place.leave()
        for form, prepared in list(self.calls.items()):  # other threads may add some meanwhile
            if prepared.workspace in gone:
                self.calls.pop(form, None)

    def agree(self, name: str, call: Callable[[], str]) -> None:
        """Raise RanksDisagree unless all ranks make the same ``call``, which says which one it is. Collective. Raises
        what ``call`` raises on any rank.
        """
        self._demand_open(name)
        with self._lock, self._meeting.together():
            self._meeting.first(lambda: Step(call()))

    def agree_once(self, name: str, *call: object, check: Callable[[], object] = lambda: "") -> None:
        """``agree`` on a ``call`` that has not been made before, behind its ``check``, and on what that returns; do
        nothing for one that has.
        """
        if (name, *call) not in self._agreed:
            found = check()
            self.agree(name, lambda: " ".join(map(str, (name, *call, found))))
            self._agreed.add((name, *call))

    def refuse(self, error: Exception) -> None:
        """Tell the other ranks of the error of a call that this one cannot make, see ``Meeting.refuse``."""
        if torch.compiler.is_compiling() or dispatched():
            return  # nothing has been called, or the call below has told it
        if self.handle in _OPEN:
            with self._lock:
                self._meeting.refuse(error)

    def _demand_open(self, name: str) -> None:
        if self.handle not in _OPEN:
            raise InputError(f"{name}: the context is closed; open another one")
        if self._alarm_words[RAISED]:
            self._raise_alarm()

    def problem(self, problem: Problem) -> Problem:
        """The problem of a call of this context: an invariant one where the context is. Raises InvalidProblem for an
        operation that has no invariant configs.
        """
        if not self.invariant or not problem.sums:
            return problem
        if not problem.one_row:
            raise InvalidProblem(
                f"{problem.workload} has no invariant configs: call it with a context of its own, without invariant"
            )
        return dataclasses.replace(problem, invariant=True)  # type: ignore[call-arg]

    def choose(self, problem: Problem, config: Config | None = None, workload: Workload | None = None) -> Found:
        """The config for a problem, the same on every rank: rank 0 looks it up, the others take its word.

        Collective at a problem's first call, a dictionary look-up afterwards. A given ``config`` is checked against the
        space, and has to be the same on all ranks: raises InvalidConfig, RanksDisagree.
        """
        self._demand_open(problem.workload)
        try:
            found = workload_for(workload or problem.workload, problem)
            known = self._choices.known.get((found, problem)) if config is None else None
            if known is not None:
                return known
            if config is not None and (found, problem, config) in self._workspaces:
                return given(config)
            call = self._choices.call(found, problem, config)
            with self._lock, self._meeting.together():
                return self._choices.agree(call, found, problem, config)
        except Exception as error:  # whatever it is: the others wait
            self.refuse(error)
            raise

    def tune_first_calls(self, budget: str) -> None:
        """From now on tune what is called for the first time and has nothing tuned near it, on this program's ranks,
        within this ``budget`` (like 60s, 5m) together, some seconds each. Collective, for a context of all ranks.

        Winners are stored, and the next run of the program finds them. Raises InvalidBudget and InputError.
        """
        self._demand_open("tune")
        with self._lock, self._meeting.together():
            self._choices.tune(budget)

    @property
    def tunes_first_calls(self) -> bool:
        return self._choices.first_calls is not None

    def tuned(self, name: str) -> Entries:
        """A workload's entries on this device, as rank 0 reads them. Collective. Raises what ``lookup`` raises."""
        self._demand_open(name)
        with self._lock, self._meeting.together():
            return self._choices.entries(name)


def _warn_of_unclosed(agreement: Agreement) -> None:
    """Nobody closed a context: say so, as files do. Its group keeps connections and threads; the heap's memory goes."""
    if agreement.is_open:
        told = "unclosed autotune.Context: its process group keeps connections and threads; use `with`, or close()"
        warnings.warn(told, ResourceWarning, stacklevel=3)
