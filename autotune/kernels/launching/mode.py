"""A mode as it is declared: dimensions, constraints, cost, words, first configs. Read without torch and Triton, too."""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from autotune.config import Config, in_turns
from autotune.device_rates import Rates
from autotune.errors import InvalidConfig, InvalidProblem
from autotune.kernels.launching.knobs import Knobs, LadderKnobs
from autotune.problem import Problem
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import DIMENSION, joint_space, word
from autotune.task import Task

P = TypeVar("P", bound=Problem)
M = TypeVar("M", bound="Mode[Any]")
P_contra = TypeVar("P_contra", bound=Problem, contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Mode(Knobs, ABC, Generic[P_contra]):
    """One way to carry an operation out; an instance is a config. The fields made by ``number``, ``word``, ``flag`` are
    the mode's dimensions; others, which have defaults, are for ``tune taxes``.

    Its ``Way`` reads the fields and the class, nothing else: the rest of a declaration makes no result stale.
    """

    title: ClassVar[str]
    """The mode in words."""
    constraints: ClassVar[tuple[Constraint, ...]] = ()
    boundaries: ClassVar[int] = 1
    """See ``Workload.boundaries``."""
    varies: ClassVar[str] = ""
    """Why a row's bits may depend on the number of rows, or why too few rows are none; empty if neither is so."""
    by_stores: ClassVar[bool] = False
    """True if but for ``protocol=signal`` nothing is added to a peer's memory: words of data announce themselves."""

    @abstractmethod
    def latency(self, task: Task[P_contra], rates: Rates) -> float | None:
        """Microseconds by a cost model; None where there is none."""

    @classmethod
    def first(cls, task: Task[P_contra]) -> Iterator[Self]:
        """Configs to try first, valid or not."""
        yield from ()

    def rungs(self, task: Task[P_contra]) -> Mapping[str, Mode[P_contra] | str]:
        """See ``Workload.rungs``; a mode whose kernels overlap communication and computation has some."""
        return {}

    def replace(self, **changed: Any) -> Self:
        return dataclasses.replace(self, **changed)

    def config(self) -> Config:
        """The dimensions, and other fields where they have another value than usual."""
        fields = [f for f in dataclasses.fields(self) if f.name != "mode"]
        values = {f.name: getattr(self, f.name) for f in fields}
        told = {f.name for f in fields if DIMENSION in f.metadata or values[f.name] != f.default}
        return Config({"mode": self.mode, **{name: value for name, value in values.items() if name in told}})


LIBRARY_VARIES = "the library's GEMM and collectives order their sums by the number of rows"
GEMM_VARIES = "the library's GEMM orders its sums by the number of rows"


def _may_vary(s: Task[Any], mode: str) -> bool:
    return not s.problem.is_invariant


def same_bits(modes: Iterable[type[Mode[Any]]]) -> Iterator[Constraint]:
    """Constraints that leave an invariant problem the modes whose rows are independent of their batch."""
    varying = [mode for mode in modes if mode.varies]
    for reason in dict.fromkeys(mode.varies for mode in varying):
        names = tuple(mode.mode for mode in varying if mode.varies == reason)
        yield Constraint("the same bits", ("mode",), _may_vary, reason, names)


def _graphs_exist(s: Task[Any], launch: str) -> bool:
    return launch == "eager" or not s.machine.is_interpreter


GRAPHS = Constraint("CUDA graphs", ("launch",), _graphs_exist, "CUDA graphs need a GPU")


@dataclass(frozen=True, kw_only=True)
class LibraryMode(LadderKnobs, Mode[P_contra]):
    mode: str = "bsp"
    launch: str = word("eager", "graph", help="library calls one by one, or as a CUDA graph",
                       say={"eager": "launched one by one", "graph": "launched as a CUDA graph"})  # fmt: skip

    title: ClassVar[str] = "the library's kernels one after the other (BSP)"
    varies: ClassVar[str] = LIBRARY_VARIES
    constraints: ClassVar[tuple[Constraint, ...]] = (GRAPHS,)


def _atomics_arrive(s: Task[Any], mode: str) -> bool:
    return s.machine.has_peer_atomics or s.problem.world_size == 1


def _signals_arrive(s: Task[Any], protocol: str) -> bool:
    return protocol != "signal" or _atomics_arrive(s, protocol)


def peer_atomics(by_stores: Sequence[str], others: Sequence[str]) -> Iterator[Constraint]:
    """Constraints of modes that need atomics on a peer's memory: for their signals alone, or for all they do."""
    over_pcie = "over PCIe a GPU's atomics on a peer's memory are none; "
    if by_stores:
        yield Constraint("signals arrive", ("protocol",), _signals_arrive,
                         f"{over_pcie}words of data (protocol=ll or sentinel) need none", tuple(by_stores))  # fmt: skip
    if others:
        yield Constraint("signals arrive", ("mode",), _atomics_arrive,
                         f"{over_pcie}the library's modes need none", tuple(others))  # fmt: skip


MOST_FIRST = 16
"""First configs of a search: later ones it proposes better."""


class Modes(Generic[P]):
    """The modes of an operation: their joint space, and configs read as instances of modes."""

    def __init__(
        self, *modes: type[Mode[P]], default: Callable[[Task[P]], Mode[P]], tried: Sequence[type[Mode[P]]] = (),
        laid_out: Sequence[type[Mode[P]]] = (), shared: Sequence[Constraint] = (),
    ) -> None:  # fmt: skip
        """``default`` is what a sensible engineer would use untuned, ``tried`` the order in which modes take turns in
        the first configs and ``laid_out`` that of dimensions, if it is not that of the modes; ``shared``: constraints
        of all modes.
        """
        self.by_name = {mode.mode: mode for mode in modes}
        order = [mode.mode for mode in laid_out]
        self._library = next(mode.mode for mode in modes if issubclass(mode, LibraryMode))
        ours = [mode for mode in modes if not issubclass(mode, LibraryMode)]
        by_stores, others = ([mode.mode for mode in ours if mode.by_stores is so] for so in (True, False))
        shared = (*shared, *peer_atomics(by_stores, others), *same_bits(modes))
        self.space = joint_space(self.by_name, help="communication strategy", shared=shared, order=order)
        self._default, self._tried = default, tried or modes
        left_out = [
            m.__name__ for m in modes if m not in self._tried and m.first.__qualname__ != Mode.first.__qualname__
        ]
        assert not left_out, f"tried lacks {left_out}: their first configs would never be"
        assert not laid_out or {*laid_out} == {*modes}, "laid_out has each mode"

    def of(self, config: Config) -> Mode[P]:
        """Raises InvalidConfig for an unknown mode, an unknown or a missing knob, a value of another type."""
        if "mode" not in config:
            raise InvalidConfig(f"{config}: the mode is missing")
        kind = self.by_name.get(str(config["mode"]))
        if kind is None:
            raise InvalidConfig(f"mode={config['mode']!r}: allowed: {', '.join(self.by_name)}")
        return kind.of(config)

    def first_valid(self, configs: Iterable[M], task: Task[P]) -> M | None:
        """It looks at no more of them."""
        return next((each for each in configs if self.space.violation(each.config(), task) is None), None)

    def default_config(self, task: Task[P]) -> Config:
        """Over PCIe, which nobody has measured, the library's way."""
        if task.problem.is_invariant:
            return self._invariant_default(task)
        library = None
        if not task.machine.has_peer_atomics and task.problem.world_size > 1:
            library = next(self.space.enumerate(task, self._library), None)
        return library or self._default(task).config()

    def _invariant_default(self, task: Task[P]) -> Config:
        """The choice by arithmetic, unless that is the library; else the first valid config of any mode. Raises
        InvalidProblem where there is none, as over PCIe with ``wire=fp8``.
        """
        tried = (each.config() for mode in self._tried for each in mode.first(task))
        known = itertools.chain([self._default(task).config()], tried)
        found = self.space.first_valid(known, task) or next(self.space.enumerate(task), None)
        if found is None:
            problem, device = task.problem, task.machine.device
            raise InvalidProblem(f"{problem.workload} {problem} on {device}: no config gives the same bits here")
        return found

    def first_configs(self, task: Task[P]) -> list[Config]:
        """The default, then a config of each mode in turn; all valid, each once, not many."""
        default = self.default_config(task)
        ways = [list(self.space.valid((each.config() for each in mode.first(task)), task)) for mode in self._tried]
        others = [[config for config in way if config != default] for way in ways]
        return [default, *in_turns(others)][:MOST_FIRST]
