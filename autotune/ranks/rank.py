"""One rank's process: takes requests from the driver, carries them out with the other ranks, answers each once."""

from __future__ import annotations

import gc
import os
import pkgutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from autotune.config import Config
from autotune.errors import AutotuneError, HeapExhausted, InputError, MissedBarrier, WorkloadError
from autotune.machine import Machine
from autotune.outcome import Outcome
from autotune.processes.bound import parents_connection
from autotune.ranks import protocol
from autotune.ranks.protocol import Bug, Done, Failed, Reply, Request
from autotune.task import Task

if TYPE_CHECKING:
    from autotune.heap.arena import SymmetricHeap
    from autotune.workloads.tolerance import Error


COLLECTED_EVERY = 16
"""Preparations for turns between two collections: each takes a tenth of a second."""

SAME_BITS_CALLS = 2
"""Calls whose bits are compared: what a call leaves behind must not change the next one's."""

TIMED_OUT = "a wait in the kernel timed out while being timed"


class Rank:
    """The state of a rank between requests."""

    def __init__(self, heap: SymmetricHeap, machine: Machine, spin_limit: int) -> None:
        """A rank of those that share the heap. Collective."""
        from autotune.ranks.measure import Stopwatch

        self._heap, self._machine, self._spin_limit = heap, machine, spin_limit
        self._stopwatch = Stopwatch(heap, machine, spin_limit)
        self._empty = heap.mark()
        self._config: Config | None = None
        self._batch: Any = None
        """A larger problem's inputs and results, to compare rows with."""
        self._prepared = 0
        """Configs prepared for turns."""

    def set_up(self, request: protocol.SetUp) -> None:
        """Set a problem up, in place of the one before. Collective."""
        import torch

        from autotune.workloads import workload

        self._operation: Any = None
        self._run: Callable[[], None] = lambda: None
        self._config = None
        self._has_inputs = False
        gc.collect()  # a captured graph and the operation that it calls hold each other
        torch.cuda.empty_cache()
        self._heap.barrier()
        self._heap.release(self._empty)
        self._workload = workload(request.workload)
        self._task = Task(self._workload.problem_type.from_dict(request.problem), self._machine)
        if self._batch is not None and self._batch.problem == self._task.problem:
            self._batch = None
        self._operation = self._workload.operation(self._task, self._heap, self._spin_limit)

    def answer(self, request: Request) -> Reply:
        """Carry a request out; expected failures become outcomes."""
        import torch
        from triton.runtime.errors import OutOfResources

        from autotune.kernels.launching.plan import CompileError

        try:
            return self._carry_out(request)
        except CompileError as error:
            return Failed(Outcome.DID_NOT_COMPILE, str(error))
        except MissedBarrier as error:
            return Failed(Outcome.TIMED_OUT, str(error))
        except (OutOfResources, HeapExhausted, MemoryError) as error:
            return Failed(Outcome.OUT_OF_RESOURCES, _first_line(error))
        except torch.OutOfMemoryError as error:
            failed = Failed(Outcome.OUT_OF_RESOURCES, _first_line(error))
        except RuntimeError as error:
            # CUDA reports a faulting kernel as a RuntimeError at whatever call comes next, and for ever after; PyTorch
            # so reports that the host's memory is exhausted.
            if "CUDA" in str(error) or "HIP" in str(error):
                return Failed(Outcome.CRASHED, _first_line(error), broken=True)
            if "can't allocate memory" in str(error):
                return Failed(Outcome.OUT_OF_RESOURCES, _first_line(error))
            raise
        torch.cuda.empty_cache()  # what the config had taken is for others too: PyTorch would keep it to itself
        return failed

    def _carry_out(self, request: Request) -> Reply:
        if isinstance(request, protocol.SetUp):
            from autotune.workloads.provenance import Code

            self.set_up(request)
            return Done(self.fingerprint, code=Code.here(self._workload))
        elif isinstance(request, protocol.Compile):
            self._config = request.config
            if not self._machine.is_interpreter:
                self._workload.compile(self._task, request.config)
        elif isinstance(request, protocol.Check):
            self._config = request.config
            self._run = self._operation.prepare(request.config)
            return self._check(request.seed)
        elif isinstance(request, protocol.Recheck):
            return self._recheck(request)
        elif isinstance(request, protocol.KeepBatch):
            self._batch = self._operation.batch()
        elif isinstance(request, protocol.CompareRows):
            return self._compare_rows(request)
        elif isinstance(request, protocol.Measure):
            timed = self._stopwatch.time(self._run, warmup=request.warmup, iterations=request.iterations)
            return self._measured(timed.device, timed.host)
        elif isinstance(request, protocol.MeasureIsolated):
            return self._measured(self._stopwatch.time_isolated(self._run, request.calls))
        elif isinstance(request, protocol.MeasureOverhead):
            return self._overhead(request)
        elif isinstance(request, protocol.Turn):
            return self._turn(request)
        elif isinstance(request, protocol.Trace):
            return self._trace()
        elif isinstance(request, protocol.MeasureBarrier):
            return Done(self.fingerprint, parts=self._stopwatch.time_barrier(request.warmup, request.calls))
        elif isinstance(request, protocol.MeasureParts):
            return Done(self.fingerprint, parts=self._parts(request))
        elif isinstance(request, protocol.MeasureRates):
            return Done(self.fingerprint, rates=self._rates(request.dtype))
        return Done(self.fingerprint)

    def _measured(self, times: Sequence[float], host: Sequence[float] = ()) -> Reply:
        if self._operation.timed_out():
            return Failed(Outcome.TIMED_OUT, TIMED_OUT)
        return Done(self.fingerprint, times=tuple(times), host=tuple(host))

    def _overhead(self, request: protocol.MeasureOverhead) -> Reply:
        """Time an operator's call of the problem that ends where the bound call would begin."""
        opened = pkgutil.resolve_name(request.warm_call)
        try:
            call = opened(self._workload, self._task, self._operation, self._heap)
            if call is None:
                return Done(self.fingerprint)
            isolated, host = self._stopwatch.time_overhead(call, request.calls)
        except (InputError, NotImplementedError):  # a user's workload, whose operator takes no such call
            return Done(self.fingerprint)
        return Done(self.fingerprint, times=tuple(isolated), host=tuple(host))

    def _turn(self, request: protocol.Turn) -> Reply:
        """Time a config, prepared anew unless it was the last one's, with the inputs that are there."""
        if not self._has_inputs:
            self._refresh(0)
        if self._config != request.config:
            self._prepared += 1
            if self._prepared % COLLECTED_EVERY == 0:
                gc.collect()  # captured graphs and what they hold; torch's memory tells Python's collector nothing
            self._config, self._run = request.config, self._operation.prepare(request.config)
        run = self._run
        if request.late and request.late_rank == self._heap.rank:
            run = self._stopwatch.delayed(run, request.late)
        if request.isolated:
            times = self._stopwatch.time_isolated(run, request.calls)
        else:
            times = self._stopwatch.time(run, warmup=request.warmup, iterations=request.calls).device
        measured = self._measured(times)
        return replace(measured, clock=self._stopwatch.clock()) if isinstance(measured, Done) else measured

    def _trace(self) -> Reply:
        """One call of the last turn's config: its kernels' stamps, or torch's operations where there are none."""
        if traces := self._operation.traces():
            events = self._stopwatch.trace(self._run, traces)
        else:
            self._run = self._operation.prepare(self._config)
            events = self._stopwatch.trace_operations(self._run)
        if self._operation.timed_out():
            return Failed(Outcome.TIMED_OUT, TIMED_OUT)
        return Done(self.fingerprint, events=events)

    def _parts(self, request: protocol.MeasureParts) -> dict[str, tuple[float, ...]]:
        if not self._has_inputs:  # as where ranks were started again: a GEMM of zeros draws less power
            self._refresh(0)
        found = {}
        for name, run in self._operation.parts().items():
            if request.only in (None, name):
                timed = self._stopwatch.time(run, warmup=request.warmup, iterations=request.iterations)
                found[name] = tuple(timed.device)
        return found

    def _rates(self, dtype: str) -> dict[str, float]:
        if self._machine.is_interpreter:
            return {}  # of CPUs, and they would say nothing about GPUs
        from autotune.ranks.rates import measured_rates

        return measured_rates(self._heap, dtype)

    def _check(self, seed: int) -> Reply:
        self._refresh(seed)
        self._run()
        self._heap.barrier()
        return self._compared([self._operation.error()])

    def _refresh(self, seed: int) -> None:
        self._operation.refresh(seed)
        self._has_inputs = True
        self._heap.barrier()  # no rank may still be poisoning an inbox that another one writes to

    def _recheck(self, request: protocol.Recheck) -> Reply:
        from autotune.ranks.bursts import Bursts

        bursts = Bursts(
            self._heap, self._operation, self._run, self._operation.input_sets(request.seed), request.seed,
            request.stagger, request.pause,
        )  # fmt: skip
        return self._compared(list(bursts.errors(request.bursts, request.calls)))

    def _compare_rows(self, request: protocol.CompareRows) -> Reply:
        told = ""
        for first in request.firsts:
            for call in range(1, SAME_BITS_CALLS + 1):
                self._operation.take_rows(self._batch, first)
                self._heap.barrier()
                self._run()
                self._heap.barrier()
                unlike = self._operation.unlike_rows(self._batch, first)
                if unlike and not told:
                    rows = self._task.problem.batch_rows
                    told = f"row {unlike[0]} of {rows} differs from row {first + unlike[0]} of the batch of "
                    told += f"{self._batch.problem.batch_rows}, and so do {len(unlike) - 1} more, in call {call}"
        if self._operation.timed_out():
            return Failed(Outcome.TIMED_OUT, "a wait in the kernel timed out while rows were compared")
        return Failed(Outcome.WRONG_RESULT, told) if told else Done(self.fingerprint)

    def _compared(self, errors: Sequence[Error]) -> Reply:
        if self._operation.timed_out():
            return Failed(Outcome.TIMED_OUT, "a wait in the kernel timed out: what it waited for never arrived")
        from autotune.workloads import Error

        worst = Error.largest(errors)
        return Done(self.fingerprint, overall=worst.overall, element=worst.element)

    @property
    def fingerprint(self) -> str:
        """Problem and config; ranks that differ in it must not go on."""
        return f"{self._task.problem.to_json()} {self._config.to_json() if self._config else ''}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def join(machine: Machine, rank: int, world_size: int, rendezvous: str) -> None:
    """Become a rank of the default process group, on a GPU of its own. Collective; they meet in the file."""
    import torch.distributed as dist

    dist.init_process_group(
        **backend(machine, rank, world_size),
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(minutes=5),
    )


def backend(machine: Machine, rank: int, world_size: int) -> dict[str, Any]:
    """The process group's backend; makes this rank's GPU the current one. ``rank`` of ``world_size`` are this host's.

    More ranks than GPUs take turns on them, which measures nothing but shows that kernels are right at that world size.
    NCCL takes one rank per GPU, so the library's collectives are missing there.
    """
    import torch

    if machine.is_interpreter:
        return {"backend": "gloo"}
    gpus = torch.cuda.device_count()
    torch.cuda.set_device(rank % gpus)
    if world_size > gpus:
        return {"backend": "cpu:gloo,cuda:gloo"}
    return {"backend": "cpu:gloo,cuda:nccl", "device_id": torch.device("cuda", rank)}


def open_rank(opening: protocol.Open) -> tuple[Rank, dict[str, float]]:
    """Join the others and open the heap; returns the seconds by stage too. Collective."""
    import torch.distributed as dist
    import triton  # noqa: F401  its time belongs to the imports

    from autotune.heap import open_heap

    seconds, before = {}, opening.begun

    def stage(name: str) -> None:
        nonlocal before
        now = time.monotonic()
        seconds[name], before = now - before, now

    stage("imports")
    join(opening.machine, opening.rank, opening.world_size, opening.rendezvous)
    group = dist.new_group(backend="gloo")
    stage("joining")
    heap = open_heap(opening.heap_bytes, group)
    stage("heap")
    return Rank(heap, opening.machine, opening.spin_limit), seconds


def main() -> None:
    """Serve requests until the driver closes the connection."""
    connection = parents_connection()
    rank: Rank | None = None
    while True:
        try:
            request: Request = connection.recv()
        except EOFError:
            # Not a return: destructors of GPU libraries may hang, and nothing here needs them.
            os._exit(0)
        reply: Reply
        try:
            if isinstance(request, protocol.Open):
                rank, seconds = open_rank(request)
                reply = Done("", seconds=seconds)
            else:
                assert rank is not None, "the first request must be Open"
                reply = rank.answer(request)
        except WorkloadError as error:
            reply = Bug(str(error), told=True)
        except AutotuneError as error:
            reply = Failed(Outcome.CRASHED, str(error), broken=True)
        except Exception:  # noqa: BLE001  the process boundary: the driver gets the traceback and stops the run
            reply = Bug(traceback.format_exc())
        connection.send(reply)


if __name__ == "__main__":
    main()
