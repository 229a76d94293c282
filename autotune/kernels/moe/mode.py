"""What the modes of all mixtures of experts share. Read without torch and Triton, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.device_rates import Rates
from autotune.kernels.launching.knobs import Knobs
from autotune.kernels.launching.mode import LibraryMode, Mode, P
from autotune.kernels.untuned import within_a_trip
from autotune.search_spaces import Constraint
from autotune.search_spaces.joint import word
from autotune.task import Task


def few_tokens(task: Task[Any]) -> bool:
    """True if a rank's tokens are sent within a trip: then they travel by LL words, in one launch with what follows."""
    problem = task.problem
    return within_a_trip(task, problem.bytes_moved, problem.tokens * problem.top_k * problem.token_bytes)


def few_rows(task: Task[Any]) -> bool:
    """True if the rows of a rank's tokens are sent within a trip: then they travel as they are, not summed before."""
    problem = task.problem
    rows = problem.tokens * problem.top_k * problem.token_bytes
    return within_a_trip(task, rows * (problem.world_size - 1) / problem.world_size, rows)


class ExpertsMode(Mode[P]):
    def latency(self, task: Task[P], rates: Rates) -> None:
        """There is no cost model of a mixture."""

    @classmethod
    def untuned(cls, task: Task[P]) -> Self | None:
        """What one would write down without measuring; None if no tile fits, or no inbox."""
        return None

    def changes(self) -> Sequence[Mapping[str, Any]]:
        """Values of dimensions to try in place of ``untuned``'s."""
        return ()

    @classmethod
    def first(cls, task: Task[P]) -> Iterator[Self]:
        base = cls.untuned(task)
        if base is not None:
            yield base
            yield from (base.replace(**each) for each in base.changes())


def _can_be_captured(s: Task[Any], launch: str, exchange: str) -> bool:
    return launch == "eager" or (exchange != "all_to_all" and not s.machine.is_interpreter)


class ExpertsLibrary(LibraryMode[P], ExpertsMode[P]):
    """The library's kernels; a subclass has the dimension ``exchange``."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint("CUDA graphs", ("launch", "exchange"), _can_be_captured,
                   "CUDA graphs need a GPU, and cannot hold exchange=all_to_all, whose counts the host reads"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Protocol(Knobs):
    protocol: str = word(
        "signal", "ll",
        help="data, then a signal; or LL: words of data and flag, twice the bytes, one trip instead of two",
        say={"signal": "data, then a signal", "ll": "LL words of data and flag"},
    )  # fmt: skip


def by_words(mode: Knobs) -> bool:
    """True if a mode's protocol is LL; false where it has none."""
    return getattr(mode, "protocol", "signal") == "ll"


def _ll_arrive(s: Task[Any], protocol: str) -> bool:
    return protocol == "signal" or s.machine.kind in ("cuda", "interpreter")


LL_ARRIVE = Constraint(
    "LL words arrive", ("protocol",), _ll_arrive,
    "only on NVIDIA GPUs do ordinary stores reach a peer while their program is running",
)  # fmt: skip
