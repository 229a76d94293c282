"""The contract of a workload: built-in ones and a user's own give the same answers and get the same treatment."""

from __future__ import annotations

import contextlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.config import Config
from autotune.errors import InputError
from autotune.machine import Machine
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.task import Task
from autotune.workloads.guard import guard, guard_results, is_users
from autotune.workloads.sources import source_hash
from autotune.workloads.tolerance import ROUNDED_ONCE, Error, Tolerance

if TYPE_CHECKING:
    import torch

    from autotune.heap.arena import SymmetricHeap
    from autotune.kernels.launching.plan import Compiled
    from autotune.search_spaces import Space
    from autotune.workloads.input_sets import InputSets

Run = Callable[[], None]


class Operation(ABC):
    """One problem set up on one rank: its tensors, and what can be done with them. All ranks make the same calls."""

    def __init_subclass__(cls) -> None:
        """Guard the methods of a user's class."""
        super().__init_subclass__()
        if is_users(cls):
            guard_results(cls)

    @abstractmethod
    def refresh(self, seed: int) -> None:
        """Fresh random inputs from ``seed``, the same for the same seed; outputs and everything that kernels write to
        are poisoned with NaN.
        """

    @abstractmethod
    def inputs(self) -> Sequence[torch.Tensor]:
        """The tensors that ``refresh`` fills and a call reads, always in the same memory."""

    @abstractmethod
    def outputs(self) -> Sequence[torch.Tensor]:
        """The tensors that a call fills and ``error`` compares, always in the same memory."""

    def input_sets(self, seed: int) -> InputSets:
        """Sets of inputs for calls back to back, drawn afresh; everything else is left as ``refresh`` does.

        By default what ``refresh`` draws from several seeds. Override it where one reference can serve several sets.
        """
        from autotune.workloads.input_sets import Refreshed

        return Refreshed(self, seed)

    @abstractmethod
    def prepare(self, config: Config) -> Run:
        """Set up one config, in place of the one before, and return what enqueues one call of it. Collective."""

    @abstractmethod
    def error(self) -> Error:
        """The distance of the last call's output from the reference for the present inputs."""

    def timed_out(self) -> bool:
        """True if a wait inside the kernels has timed out since ``prepare``; never, where none waits for peers."""
        return False

    def traces(self) -> Sequence[torch.Tensor]:
        """The stamps of a call of a traced config, see ``kernels/primitives/trace.py``; none otherwise."""
        return ()

    def parts(self) -> dict[str, Run]:
        """The operation's parts alone (communication, computation), by name: the slowest of them is the limit."""
        return {}


class Workload(ABC):
    """A distributed operation that can be tuned."""

    name: ClassVar[str]
    """The problem's ``workload``, unless it is said."""
    problem_type: ClassVar[type[Problem]]
    space: ClassVar[Space]
    sources: ClassVar[Sequence[str]] = ()
    """Modules whose source text decides what a config does and that the class's file does not import; of a package all
    modules below it. What it imports is found by itself (``workloads/sources.py``).
    """

    overlapping: ClassVar[Sequence[str]] = ()
    """Modes whose kernels overlap communication and computation, for ``rungs``."""
    boundaries: ClassVar[int] = 1
    """Boundaries between launches that rung B has and D has not."""

    by_rates: ClassVar[bool] = False
    """True if ``default_config`` is chosen by the rates of the kind of GPU (``device_rates.py``)."""

    def __init_subclass__(cls) -> None:
        """Take the problem's name, and guard the methods of a user's class."""
        super().__init_subclass__()
        if is_users(cls):
            guard(cls)
        if "problem_type" in vars(cls) and "name" not in vars(cls):
            cls.name = getattr(cls.problem_type, "workload", "")

    @abstractmethod
    def default_problem(self, machine: Machine, world_size: int) -> Any:
        """A problem worth tuning on this machine, where the user names none."""

    @abstractmethod
    def default_config(self, task: Task[Any]) -> Config:
        """The config that a sensible engineer would use untuned; valid for the problem on the machine."""

    def first_configs(self, task: Task[Any]) -> list[Config]:
        """Configs to try before the sampler takes over, one of each mode at least; all valid."""
        return [self.default_config(task)]

    def written(self, text: str, task: Task[Any]) -> Config:
        """The config of a text; what it leaves out is as it is untuned. Raises InvalidConfig."""
        from autotune.search_spaces.written import completed, values_of

        untuned = [self.default_config(task), *self.first_configs(task), *self.baselines(task).values()]
        return completed(values_of(text, self.space), self.space, task, untuned)

    def baselines(self, task: Task[Any]) -> dict[str, Config]:
        """The bulk-synchronous ways, by name: configs of the space, so that the winner is never slower than those of
        them that a caller gets as measured.

        Without any, a report has nothing to compare the winner with.
        """
        return {}

    def rungs(self, task: Task[Any], config: Config) -> Mapping[str, Config | str]:
        """Configs between the bulk-synchronous way and ours, for ``tune taxes``; a text says why one does not exist.

        All have the tile of ``config``, whose mode is one of ``overlapping``. B: our pieces, a launch for each phase.
        D: one launch, whose tiles wait for what they need; data is handed on through memory. F: handed on without. Of a
        workload without rungs only the rest of the ladder is measured.
        """
        return {}

    def unlike_measured(self, config: Config, regime: Regime) -> str | None:
        """The reason why a caller in a regime does not get what was measured of a config; None if one does.

        Such a config may be a baseline, and never wins, is proposed or is served.
        """
        return None

    def unservable(self, config: Config, task: Task[Any], regime: Regime) -> str | None:
        """The reason why a stored config does not answer for the problem; None if it does."""
        return self.space.violation(config, task) or self.unlike_measured(config, regime)

    def waste(self, config: Config, task: Task[Any]) -> float:
        """The work of a config's kernels over what the problem needs, by its sizes alone: tiles that stand out, rounds
        that are not full, a detour. A config is not served for a size where it wastes more than where it was tuned.
        """
        return 1.0

    def tolerance(self, problem: Any) -> Tolerance:
        return ROUNDED_ONCE[problem.dtype]

    def tolerance_of(self, task: Task[Any], config: Config) -> Tolerance:
        """Tolerance of one config, where configs round differently: by default they do not."""
        return self.tolerance(task.problem)

    def heap_bytes(self, problem: Any) -> int:
        """Symmetric heap that tuning the problem needs on each rank, in bytes."""
        return 64 << 20

    def traced(self, config: Config) -> Config:
        """The config's twin, whose kernels leave stamps of time; the config itself where they cannot."""
        return config

    @abstractmethod
    def operation(self, task: Task[Any], heap: SymmetricHeap, spin_limit: int) -> Operation:
        """Set the problem up on this rank. Collective."""

    def compile(self, task: Task[Any], config: Config) -> list[Compiled]:
        """Compile the config's kernels in this process, which has been set to compile for the machine.

        Raises CompileError. Where it compiles nothing, the ranks do so at a config's first launch, one at a time.
        """
        return []

    def predict(self, task: Task[Any], config: Config) -> float | None:
        """Microseconds that a cost model expects of a config, None where there is none.

        It orders the first trials and stands beside what was measured; it never keeps a config from being tried. What
        is not a positive number counts as None.
        """
        return None

    def source_hash(self) -> str:
        """A hash of the class's file, of what it imports, of ``sources``, and of the stopwatch.

        Of a user's class also of its name: another one of the file may have the same problems, and other results.
        """
        kind = type(self)
        built_in = kind.__module__.startswith("autotune.")
        return source_hash(_file_of(kind), self.sources, "" if built_in else kind.__qualname__)


def _file_of(kind: type) -> Path:
    """A class's file. Raises InputError where it has none: its results could not be told from those of a changed one.

    Of a class that was pickled by value, as Ray does, ``__main__`` is another program.
    """
    main = sys.modules.get("__main__")
    elsewhere = kind.__module__ == "__main__" and not hasattr(main, kind.__qualname__.partition(".")[0])
    with contextlib.suppress(OSError, TypeError):
        own = inspect.getsourcefile(kind)
        if own and not elsewhere:
            return Path(own)
    raise InputError(
        f"workload {kind.__qualname__} has no source file here, as of a notebook's cell, python -c or an object "
        "pickled by value: results would be served after the code has changed; put the class into a .py file, and "
        "import it"
    )
