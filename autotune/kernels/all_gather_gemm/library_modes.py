"""The modes of all-gather + GEMM whose GEMM is the library's, and the dimensions of moving A."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from autotune.device_rates import Rates
from autotune.kernels import untuned
from autotune.kernels.all_gather_gemm import space
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.space import GatherTask
from autotune.kernels.gemm.cost import library_gemm, links, overlapped
from autotune.kernels.launching.mode import GEMM_VARIES, LibraryMode, Mode
from autotune.search_spaces.joint import number, word
from autotune.sizes import round_up

SHORTEST_EXCHANGE = 0.06
"""Share of the GEMM's time from which on an exchange is worth hiding: at 0.03 to 0.05 copies by shard took 0.97 to 1.05
times as long as NCCL and cuBLAS, our all-gather before that GEMM 0.97 to 1.03 (3 sizes, 2 H200, 2026-11-29).
"""

UNITS = (16, 32, 64, 128, 256, 512, 1024, 2048)
PROGRAMS = (1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64)
STEPS = (2, 4, 8, 16, 32)

TRANSFER_ROWS: Any = number(*UNITS, help="transfer granularity: rows of a shard that one signal covers",
                            say="{transfer_rows:row} per signal")  # fmt: skip
COMM_PROGRAMS: Any = number(*PROGRAMS, help="programs that move data",
                            say={1: "1 program moves data", ...: "{comm_programs} programs move data"})  # fmt: skip
COPY_KIB: Any = number(*STEPS, help="KiB that a communicating program moves per step",
                       say="{copy_kib} KiB per step")  # fmt: skip
PEER_ORDER: Any = word("rotate", "fanout", help="one peer after the other, or all at each step",
                       say={"rotate": "one peer after the other", "fanout": "all peers at each step"})  # fmt: skip


def at_most(values: Sequence[int], limit: int) -> int:
    return max(value for value in values if value <= limit)


def _library_gemm(problem: AllGatherGemm, rates: Rates, chunks: float = 1.0) -> float:
    """The library's GEMM, and our kernel that makes an activation of its product: reads it, and writes half as much."""
    computation = library_gemm(problem, rates, chunks)
    if not problem.gated:
        return computation
    return computation + (1.5 * problem.m * problem.n_local * problem.result_size / rates.memory + rates.launch)


def moved(problem: AllGatherGemm, rates: Rates, copy_kib: int, share: float = 1.0) -> float:
    """``links`` of programs whose short steps reach less of the rate."""
    return links(problem, rates, share * (0.7 if copy_kib == 2 else 1.0))


def pieces_of(problem: AllGatherGemm, transfer_rows: int) -> float:
    return max(1.0, problem.m / problem.world_size / transfer_rows)


class Library(LibraryMode[AllGatherGemm]):
    def latency(self, task: GatherTask, rates: Rates) -> float:
        launches = 0.0 if self.launch == "graph" else 2 * rates.launch
        return _library_gemm(task.problem, rates) + links(task.problem, rates) + rates.launch + launches


@dataclass(frozen=True, kw_only=True)
class CustomCollective(Mode[AllGatherGemm]):
    mode: str = "custom_collective"
    comm_programs: int = COMM_PROGRAMS
    copy_kib: int = COPY_KIB
    peer_order: str = PEER_ORDER
    protocol: str = word(
        "signal", "sentinel", help="A, then a signal; or sentinel words: A alone, polled until it is there",
        say={"signal": "data, then a signal", "sentinel": "sentinel words: data alone"},
    )  # fmt: skip

    title: ClassVar[str] = "our collective and the library's GEMM"
    varies: ClassVar[str] = GEMM_VARIES
    constraints: ClassVar = space.OWN_COLLECTIVE
    by_stores: ClassVar[bool] = True

    def latency(self, task: GatherTask, rates: Rates) -> float:
        communication = moved(task.problem, rates, self.copy_kib)
        return _library_gemm(task.problem, rates) + communication + 2 * rates.signal + rates.launch

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        yield cls.in_words(task)
        yield cls.by_signals(task)

    @classmethod
    def in_words(cls, task: GatherTask) -> Self:
        """Each program sends two steps or more of its share of A."""
        problem, half = task.problem, task.machine.compute_units // 2
        kib = problem.m * problem.k * problem.element_size / 1024
        programs = at_most(PROGRAMS, min(half, max(8, round_up(int(kib / 8)))))
        step = at_most(STEPS, max(STEPS[0], min(16, int(kib / programs / 4))))
        return cls(comm_programs=programs, copy_kib=step, peer_order="fanout", protocol="sentinel")

    @classmethod
    def by_signals(cls, task: GatherTask) -> Self:
        programs = at_most(PROGRAMS, min(32, task.machine.compute_units // 2))
        return cls(comm_programs=programs, copy_kib=16, peer_order="rotate", protocol="signal")


@dataclass(frozen=True, kw_only=True)
class CopyEngine(Mode[AllGatherGemm]):
    mode: str = "copy_engine"
    transfer_rows: int = TRANSFER_ROWS
    gemm_streams: int = number(1, 2, help="streams over which the chunks' GEMMs alternate",
                               say="GEMMs on {gemm_streams:stream}")  # fmt: skip
    copies: str = word(
        "pulled", "pushed",
        help="copies from the peers between two barriers, or to the peers, with a signal for each chunk",
        say={"pulled": "copies from the peers", "pushed": "copies to the peers"},
    )  # fmt: skip
    chunk_sizes: str = word(
        "even", "shrinking",
        help="chunks of transfer_rows; or the last shard in halves of what is left, the others whole",
        say={"even": "even chunks", "shrinking": "chunks that shrink"},
    )  # fmt: skip

    title: ClassVar[str] = "copy engines move the data beside the library's GEMM"
    varies: ClassVar[str] = GEMM_VARIES
    constraints: ClassVar = space.COPY_ENGINE

    def latency(self, task: GatherTask, rates: Rates) -> float:
        problem = task.problem
        computation = _library_gemm(problem, rates, max(1.0, problem.m / self.transfer_rows))
        return overlapped(computation, links(problem, rates), pieces_of(problem, self.transfer_rows), rates)

    @classmethod
    def by_shard(cls, task: GatherTask) -> Self:
        """One chunk per shard, if none is larger than can be: in two halves 615 to 2000 rows take 1.02 to 1.18 times as
        long (9 sizes, 2 H200, 2026-11-29).
        """
        rows = next((unit for unit in UNITS if unit >= task.problem.shard[0]), UNITS[-1])
        return cls(transfer_rows=rows, gemm_streams=2, copies="pushed", chunk_sizes="even")

    @classmethod
    def filling(cls, task: GatherTask) -> Iterator[Self]:
        """By shard, if the library's tiles of one fill the GPU, or it has more than 512 rows and an exchange to hide:
        then it took 0.65 to 1.02 times as long as NCCL and cuBLAS, our all-gather before that GEMM 0.84 to 1.01 (12
        sizes, 2 H200, 2026-11-29).
        """
        copies, problem, parts = cls.by_shard(task), task.problem, untuned.parts(task)
        rows, hides = problem.shard[0], parts.exchange >= SHORTEST_EXCHANGE * parts.gemm
        many = hides and rows > untuned.ROWS_OF_CHUNK and not problem.scaled
        if many or untuned.library_fills(task.machine, rows, problem.n_local, copies.transfer_rows):
            yield copies

    @classmethod
    def first(cls, task: GatherTask) -> Iterator[Self]:
        pushed = cls.by_shard(task)
        yield pushed
        yield pushed.replace(copies="pulled", gemm_streams=1)
