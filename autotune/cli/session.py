"""The gang and the screen of a command, and limits on what this machine can run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autotune.cli import output
from autotune.errors import MachineTooSmall, NoDatabase
from autotune.machine import Machine
from autotune.machine import machine as machine  # tests replace it here
from autotune.problem import Problem
from autotune.ranks.launch import launch
from autotune.results.figures import problem_text
from autotune.task import Task
from autotune.workloads import Workload

if TYPE_CHECKING:
    from autotune.db import Store
    from autotune.ranks.launched import Launched
    from autotune.tuning import Evaluator
    from autotune.tuning.screening import Screen

MOST_INTERPRETED_FLOPS = 2e8
"""Per rank; the interpreter takes some ten seconds per run."""

MOST_INTERPRETED_RANKS = 8


LAUNCHED: list[Launched] = []
"""This process among torchrun's ranks, while it runs a command for them."""


def ranks_of(machine: Machine) -> int:
    """The number of ranks that torchrun has started, else of GPUs; 0 under the interpreter."""
    return LAUNCHED[-1].launch.world_size if LAUNCHED else machine.gpus


def default_ranks(machine: Machine) -> int:
    """World size if the user gives none; two under the interpreter."""
    return ranks_of(machine) or 2


@contextmanager
def launched() -> Iterator[bool]:
    """Under torchrun, serve rank 0 on all other ranks; true where this process is to run the command."""
    here = launch()
    if here is None:
        yield True
        return
    from autotune.ranks.launched import Launched

    found = Launched(here)
    if here.rank > 0:
        found.serve()
        yield False
        return
    LAUNCHED.append(found)
    try:
        yield True
    finally:
        LAUNCHED.pop()
        found.end()


GPU_FILES = ("/dev/nvidiactl", "/dev/kfd")


def machine_to_measure_on() -> Machine:
    """This host. To know it takes an import of torch; meanwhile another process does what ranks will import.

    Where it is wrong about the GPUs, ranks only start later.
    """
    from autotune.ranks.gang import import_for_ranks

    if not LAUNCHED:
        import_for_ranks(interpreted=not any(os.path.exists(file) for file in GPU_FILES))
    return machine()


def open_store(db: str | None, *, create: bool = True) -> Store:
    """Open the database of ``--db``, or the default one; says so if it makes a new one where ``--db`` says."""
    from autotune.db import Store

    if db is None or not create:
        return Store.open(db, create=create)
    try:
        Store.open(db, create=False).close()
        return Store.open(db)
    except NoDatabase:
        store = Store.open(db)
        output.say(f"made a new database: {store.place}")
        return store


def make_gang(workload: Workload, task: Task[Problem], heap_bytes: int = 0) -> Evaluator:
    """The ranks, not yet started, each with a heap of at least ``heap_bytes``: torchrun's, if it has started any. Tests
    replace this function.
    """
    from autotune.runtime import WARM_CALL

    if LAUNCHED:
        from autotune.ranks.launched import LaunchedGang

        return LaunchedGang(LAUNCHED[-1], workload, task, heap_bytes, WARM_CALL)
    from autotune.ranks.gang import Gang

    return Gang(workload, task, heap_bytes, warm_call=WARM_CALL)


def make_screen(workload: Workload, task: Task[Problem]) -> Screen:
    """The compilers that run ahead of the ranks. Tests replace this function."""
    from autotune.tuning.screening import Screen

    return Screen(workload, task)


def check_ranks(world_size: int, machine: Machine) -> None:
    """Raise MachineTooSmall for more ranks than the machine has."""
    if machine.is_interpreter and world_size > MOST_INTERPRETED_RANKS:
        raise MachineTooSmall(
            f"world_size={world_size}: without GPUs at most {MOST_INTERPRETED_RANKS} ranks run, under Triton's "
            f"interpreter; use 1 to {MOST_INTERPRETED_RANKS}"
        )
    if not machine.is_interpreter and world_size > ranks_of(machine):
        raise MachineTooSmall(
            f"world_size={world_size}: this machine has {machine.gpus} GPU{'s' * (machine.gpus > 1)}, one per "
            f"rank; use {'1 to ' * (machine.gpus > 1)}{machine.gpus}"
        )


def check_work(task: Task[Problem]) -> None:
    """Raise MachineTooSmall for a problem that would take the interpreter hours."""
    flops = getattr(task.problem, "flops", None)
    if task.machine.is_interpreter and flops is not None and flops > MOST_INTERPRETED_FLOPS:
        raise MachineTooSmall(
            f"{problem_text(task.problem.as_dict())}: {flops / 1e9:.3g} GFLOP for each rank; "
            f"without GPUs, Triton's interpreter runs at most {MOST_INTERPRETED_FLOPS / 1e9:g} GFLOP; "
            "use smaller dimensions, or leave them out for a default that fits"
        )
