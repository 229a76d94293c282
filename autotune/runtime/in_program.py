"""Tuning within a running program, on its own ranks: ``autotune.tune``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from autotune.agreement import Agreement
from autotune.db import Provenance, Store
from autotune.errors import InputError, NotTuned, UnknownWorkload
from autotune.machine import Machine
from autotune.machine import machine as this_machine
from autotune.outcome import DEFAULT_REGIME, Regime, regime_of
from autotune.problem import Problem
from autotune.ranks.program_ranks import ProgramRanks
from autotune.runtime import WARM_CALL
from autotune.runtime.lookup import Found, forget_lookups, workload_for
from autotune.settings import wait_seconds
from autotune.task import Task
from autotune.tuning import EFFORTS, Budget, Progress, limits_of
from autotune.tuning import tune as search
from autotune.tuning.screening import Screen
from autotune.workloads import Workload, provenance_of, reference_of
from autotune.workloads import workload as workload_named

LOG = logging.getLogger("autotune")


class TuningAgreement(Agreement):
    left_alone = "this rank was left alone while the ranks tuned: another one died, or did not come within the time-out"
    disagree = "the ranks do not tune the same ({seen}): give all of them the same workload, problem and options"


def tune(
    name: str | Workload, problem: Problem, *, trials: int | None = None, budget: str | None = None,
    effort: str | None = None, seed: int = 0, force: bool = False, url: str | None = None, timeout: float | None = None,
    regime: str = DEFAULT_REGIME,
) -> Found:  # fmt: skip
    """Tune a problem on this program's own ranks, or answer from the cache: the same config on every rank.

    Collective over the default process group (``cpu:gloo,cuda:nccl`` or ``gloo``), each rank on its current device.
    ``name``, ``url``: as for ``lookup``, which finds the result from then on; an instance has to be of a workload that
    other processes find by its name. ``trials``, ``budget`` (like 90s, 5m),
    ``effort`` (quick, standard, full), ``seed``, ``force`` and ``regime`` (graph, pipelined, isolated): as for the
    command. Rank 0 keeps the result.

    While another process tunes the same problem into the same database, all ranks wait for it, however long it takes.
    No rank is killed or started again here: what a config does to its rank, it does to the program. Ranks wait for
    each other, and for compilers, for ``timeout`` seconds, by default AUTOTUNE_WAIT_SECONDS. Raises on every rank
    alike: RanksDisagree where they do not tune the same, GangError where one is not back in time or its device is lost,
    NotTuned where nothing could be measured, InputError where the call makes no sense, and any rank's unexpected
    exception.
    """
    with _as_the_commands_ranks(), _agreement(timeout) as (agreement, heap_group):
        world_size = agreement.world_size
        terms = agreement.same(
            lambda: _Terms.of(name, problem, effort, trials, budget, seed, force, regime, world_size=world_size)
        )
        workload = workload_for(name, problem)
        ranks = ProgramRanks(workload, Task(problem, terms.machine), agreement, heap_group, WARM_CALL)
        with ranks.released():
            answer: Found
            if agreement.rank == 0:
                answer = ranks.lead(lambda: _drive(workload, terms, ranks, url))
            else:
                answer = ranks.follow()
    forget_lookups()
    return answer


@contextmanager
def _as_the_commands_ranks() -> Iterator[None]:
    """PyTorch's own default element type and device, no autocast and no dispatch modes: a program's would change
    inputs, references and parts. The program's random numbers go on as if nothing had been tuned.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    on_gpu = torch.cuda.is_available()
    drawing = torch.random.fork_rng([torch.cuda.current_device()] if on_gpu else [])
    try:
        autocast = torch.autocast("cuda" if on_gpu else "cpu", enabled=False)
        # a default device is a torch function mode
        with autocast, torch._C.DisableTorchFunction(), _disable_current_modes(), drawing:
            yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class _Terms:
    """A rank's checked arguments; the same on all ranks."""

    workload: str
    problem: Problem
    effort: str
    limits: Budget
    seed: int
    force: bool
    regime: Regime
    machine: Machine
    provenance: Provenance

    @classmethod
    def of(
        cls, name: str | Workload, problem: Problem, effort: str | None, trials: int | None, budget: str | None,
        seed: int, force: bool, regime: str, *, world_size: int,
    ) -> _Terms:  # fmt: skip
        workload, machine = workload_for(name, problem), this_machine()
        try:
            workload_named(reference_of(workload))
        except UnknownWorkload:
            raise InputError(
                f"{workload.name}: the processes that compile for {type(workload).__name__} do not find it; give its "
                "FILE:CLASS in place of the instance, or register it as an entry point"
            ) from None
        if problem.world_size != world_size:
            raise InputError(f"{problem}: world_size={problem.world_size}, but this program has {world_size} ranks")
        chosen, limits = limits_of(machine, effort, trials, budget, seed)
        return cls(
            workload.name, problem, chosen, limits, seed, force, regime_of(regime), machine, provenance_of(workload)
        )


def _drive(workload: Workload, terms: _Terms, ranks: ProgramRanks, url: str | None) -> Found:
    task = Task(terms.problem, terms.machine)
    said: set[str] = set()

    def watch(progress: Progress) -> None:
        if progress.waiting:
            ranks.keep_waiting()
            if progress.phase not in said:
                LOG.warning("%s: %s", terms.problem, progress.phase)
            said.add(progress.phase)

    with Store.open(url) as store, Screen(workload, task) as screen:
        screen.start()
        result = search(
            workload, task, store, ranks, screen,
            budget=terms.limits, effort=EFFORTS[terms.effort], seed=terms.seed, force=terms.force, regime=terms.regime,
            watch=watch, trace=False,
        )  # fmt: skip
        if result.interrupted:
            raise KeyboardInterrupt
        if result.entry is None:
            last = next((r.evaluation for r in reversed(store.trials(result.study.id)) if r.evaluation.reason), None)
            why = f"; the last one: {last.outcome}, {last.reason}" if last is not None else ""
            raise NotTuned(f"{terms.problem}: no config passed{why}")
    return Found(result.entry.winner.config, "exact", result.entry, "")


@contextmanager
def _agreement(timeout: float | None) -> Iterator[tuple[TuningAgreement, Any]]:
    """The agreement, and a group for the heap; both separate, as a time-out leaves a group unusable."""
    if not dist.is_available() or not dist.is_initialized():
        raise InputError(
            "autotune.tune needs every rank of a program under torchrun: call torch.distributed.init_process_group "
            '("cpu:gloo,cuda:nccl") first; in a single process use the command tune'
        )
    patience = timedelta(seconds=timeout if timeout is not None else wait_seconds())
    with (
        closing(TuningAgreement.among(timeout=patience)) as agreement,
        closing(TuningAgreement.among(timeout=patience)) as of_heap,
    ):
        yield agreement, of_heap.group
