"""Arithmetic for untuned configs: rounds of tiles over compute units, the time of the GEMM against the links', what
reading B takes, and what a trip to a peer does; by the rates of the kind of machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from autotune.device_rates import usual_rates
from autotune.dtypes import WGMMA_ROWS
from autotune.kernels.gemm.cost import CACHE_FACTOR, full_rate, library_gemm, links
from autotune.kernels.gemm.problem import GemmProblem
from autotune.kernels.gemm.space import pipeline_bytes, tma_aligned
from autotune.machine import Machine
from autotune.sizes import round_up
from autotune.task import Task

FEW_ROWS = 64
"""Up to so many rows a GEMM reads B as fast as it can."""

FILLED = 0.9
"""Share of the compute units, or of their time, that counts as all of it."""

NARROW = {"block_n": 64, "block_k": 128, "group_m": 4, "num_warps": 4, "num_stages": 6}
"""The tile for few rows, whose ``block_m`` follows from them."""

DEEP = {**NARROW, "block_k": 256, "num_stages": 3}
"""Narrow with longer steps: 1.01 and 1.00 of the best where the other takes 1.03 and 1.02 (16 and 64 rows, 4
H200, 2026-11-21). In four stages, which fit beside fewer than 64 rows, GEMM + all-reduce of 16 x 8192 x 28672 and 32 x
6144 x 10752 took 60.9 and 26.2 µs, narrow ones 61.7 and 27.8 (2 H200, 2026-11-29).
"""

FLAT = {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 4, "num_warps": 4, "num_stages": 4}
SQUARE = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 4, "num_warps": 8, "num_stages": 4}
WIDE = {"block_m": 128, "block_n": 256, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 4}

ROUNDS = ((FLAT, 0.65 / 1.7), (SQUARE, 1 / 1.7), (WIDE, 1.0))
"""Tiles for many rows, and the time of a round of each in that of the widest, which reaches the full rate: on H200 and
H100 a flat tile takes 0.6 to 0.73 times as long as a square one, a wide one 1.6 to 2 times.
"""

FILLING = (
    WIDE,
    {**SQUARE, "num_warps": 4},
    FLAT,
    {**FLAT, "block_n": 64},
    {**FLAT, "block_n": 32, "block_k": 256},
)
"""Tiles from the largest on."""

PROMOTING = 0.2
"""Our fp8 GEMM takes longer than the library's by this share where sums are promoted: 1024 x 14336 x 8192 took 224.6,
and 186.9 µs (H100, 2026-11-24). With 16 rows, which wait for B, ours is the faster one.
"""

IDLE = 0.3
"""Share by which our GEMM may take longer than the library's. In GEMM + all-reduce of 487 x 4608 x 36864, 237 x 4608 x
36864, 127 x 4096 x 13696 and 83 x 5120 x 14336 it takes 0.5 to 1.3 of it longer, for its tiles leave 0.4 to 0.5 of the
compute units idle: 1.44, 1.44, 1.24 and 1.12 times as long in all as the library's and our all-reduce (2 H200,
2026-11-29). One shape is a loss by an older measurement: 128 x 5120 x 25600, 0.5 longer, took 0.96 times as long (2
H100, 2026-11-25).
"""

ROWS_OF_CHUNK, CHUNKED = 512, 0.96
"""Rows of a chunk, and its share of the time of one GEMM and one exchange, from which on chunks pay."""

LIBRARY_TILE = {"block_m": 128, "block_n": 256}
"""The library's usual tile. Chunks whose rounds it does not fill took 1.05 times as long as NCCL and cuBLAS at m=1026
(two of 513 rows), and the more they were filled, the less (GEMM + reduce-scatter, 12 sizes, 2 H100, 2026-11-26).
"""


@dataclass(frozen=True)
class Parts:
    """Microseconds of a rank's GEMM and of its exchange, each alone, and of loading B once for each owner of rows."""

    gemm: float
    exchange: float
    loading_b: float


def parts(task: Task[Any]) -> Parts:
    """B comes again from the L2 if that holds it: 66 to 242 MB loaded for each of two owners took 0.97 to 1.2 times as
    long as the library's GEMM and an exchange, 16 to 51 MB 0.7 to 1.05 times (GEMM + reduce-scatter of 6 to 138 rows,
    2 H100 and 2 H200 with 50 and 60 MiB of L2, 2026-11-27 and 29).
    """
    problem, rates = task.problem, usual_rates(task.machine)
    _, columns, depth = problem.gemm
    held = columns * depth * problem.element_size
    cached = CACHE_FACTOR if held <= task.machine.cache_bytes else 1.0
    loading_b = problem.world_size * held / (cached * rates.memory)
    return Parts(library_gemm(problem, rates), links(problem, rates), loading_b)


def two_shots_pay(task: Task[Any]) -> bool:
    """True if what one shot of a sum moves and adds beyond two takes longer than the second trip: it moves world-size
    / 2 times as much over the links, and every rank adds up all of it.
    """
    problem, rates = task.problem, usual_rates(task.machine)
    peers, result = problem.world_size - 1, problem.m * problem.n * problem.result_size
    moved = peers * result * (1 - 2 / problem.world_size)
    return bool(moved / rates.links + peers * result / rates.memory > rates.signal)


def within_a_trip(task: Task[Any], moved: float, stored: float = 0.0) -> bool:
    """True if a signal takes at least as long as moving so many bytes over the links, and storing so many: then trips
    count, not bytes.
    """
    rates = usual_rates(task.machine)
    return max(moved / rates.links, stored / rates.memory) <= rates.signal


def soonest_protocols(task: Task[Any], moved: float) -> tuple[str, ...]:
    """Protocols for so many bytes to peers, the soonest first: by words, one trip, they arrive 0.7 to 1.5 µs sooner
    than before a signal, a megabyte 0 to 0.7 (GEMM + all-reduce and + reduce-scatter of 4 to 128 rows, 2 H200,
    2026-11-29).
    """
    return ("sentinel", "signal") if within_a_trip(task, moved) else ("signal", "sentinel")


def loaded(tile: Mapping[str, int], task: Task[Any]) -> dict[str, Any]:
    """A tile, not split, with its ``loads``: by TMA where that works; but where less than three quarters of a tile of
    64 rows exist, it takes 1.06 to 1.23 times as long as pointers that need no masks. With 48 rows, in lower tiles and
    with K=4096 it is up to 7 % faster (GEMM + all-reduce and + reduce-scatter, 2 H200, 2026-11-29).
    """
    problem, machine = task.problem, task.machine
    rows, _, depth = problem.gemm
    works = machine.has_tma and not machine.is_interpreter and tma_aligned(task, "tma")
    bare = tile["block_m"] >= WGMMA_ROWS and 4 * rows < 3 * tile["block_m"]
    unmasked = problem.b_order == "nk" and depth % tile["block_k"] == 0
    tma = works and not (bare and unmasked and not problem.scaled)
    return {**tile, "loads": "tma" if tma else "pointer", "split_k": 1}


def library_multiplies_faster(task: Task[Any]) -> bool:
    """True for fp8 whose sums our GEMM promotes, unless it waits for B or hides more than it loses."""
    problem, both = task.problem, parts(task)
    computes = both.gemm * usual_rates(task.machine).memory > problem.bytes_read
    return bool(problem.scaled and _promotes(task) and computes and PROMOTING * both.gemm > both.exchange)


def leaves_units_idle(task: Task[Any], exchange: float) -> bool:
    """True if our tiles of many rows leave so many compute units without work that they take longer than the library's
    GEMM, which splits K then, by more than ``IDLE``. See ``_soonest_tiles`` for ``exchange``.
    """
    _, alone = _soonest_tiles(task, exchange)[0]
    slower = task.problem.gemm[0] > FEW_ROWS and alone > (1 + IDLE) * parts(task).gemm
    return slower and not flat_tiles_fill(task)


def flat_tiles_fill(task: Task[Any]) -> bool:
    """True if flat tiles of 16 bits are nearly as many as the compute units: 143 x 5120 x 17920 with all-reduce and 256
    x 4096 x 14336 with reduce-scatter took 0.91 and 0.85 times as long by them as by the library's GEMM and our
    collective (2 H200, 2026-11-29).
    """
    rows, columns, _ = task.problem.gemm
    share = programs_of(FLAT, rows, columns) / task.machine.compute_units
    return not task.problem.scaled and FILLED <= share <= 1


def widest_round(task: Task[Any]) -> float:
    """Microseconds of a round of the widest tiles, which reach the full rate."""
    rate = full_rate(task.problem, usual_rates(task.machine))
    return float(2 * WIDE["block_m"] * WIDE["block_n"] * task.problem.gemm[2] * task.machine.compute_units / rate)


def programs_of(tile: Mapping[str, int], rows: int, columns: int) -> int:
    return -(-rows // tile["block_m"]) * -(-columns // tile["block_n"])


def done_by_library(machine: Machine, rows: int, columns: int) -> int:
    """Elements of a product that the library's tiles compute, where the last round takes as long as a full one."""
    units = machine.compute_units
    taken = -(-programs_of(LIBRARY_TILE, rows, columns) // units) * units
    return taken * LIBRARY_TILE["block_m"] * LIBRARY_TILE["block_n"]


def done_in_chunks(machine: Machine, rows: int, columns: int, chunk: int) -> int:
    """The same of GEMMs of so many rows each, one after the other."""
    whole, rest = divmod(rows, chunk)
    return whole * done_by_library(machine, chunk, columns) + done_by_library(machine, rest, columns)


def library_fills(machine: Machine, rows: int, columns: int, chunk: int) -> bool:
    """True if the library's tiles fill the compute units in every round of the GEMMs of so many rows each."""
    return rows * columns >= FILLED * done_in_chunks(machine, rows, columns, chunk)


def chunks_pay(task: Task[Any], chunk: int) -> bool:
    """True if GEMMs of so many rows, each copied beside the next, save more than they add to the library's GEMM. 2282 x
    6144 x 6144 took 0.82 times as long, 1024 x 7168 x 20480 0.93, with 279 rows a chunk 1.01 (GEMM + reduce-scatter, 2
    H100, 2026-11-27).
    """
    both, machine, owners, (m, columns, _) = parts(task), task.machine, task.problem.world_size, task.problem.gemm
    rows = m // owners
    if min(chunk, rows) < ROWS_OF_CHUNK:
        return False
    done = owners * done_in_chunks(machine, rows, columns, chunk)
    gemm = both.gemm * done / done_by_library(machine, m, columns)
    last = max(both.exchange - gemm * (1 - 1 / owners), both.exchange * min(chunk, rows) / m)
    return bool(gemm + last < CHUNKED * (both.gemm + both.exchange))


def default_tile(task: Task[Any], exchange: float = 0.0) -> dict[str, int]:
    """Tile and pipeline: few rows read B as fast as they can, many compute. See ``_soonest_tiles`` for ``exchange``.

    Without ``loads``; the caller makes it smaller where it does not fit (fp32, odd shapes).
    """
    machine = task.machine
    rows, _, _ = task.problem.gemm
    if machine.is_interpreter:
        tile = {"block_m": 16, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2}
    elif rows <= FEW_ROWS:
        tile = _tiles_for_few_rows(task)[0]
    elif machine.kind == "hip":
        tile = SQUARE
    else:
        tile, _ = _soonest_tiles(task, exchange)[0]
    return suited(tile, task)


def filling_tile(task: Task[Any], rows: int) -> dict[str, int]:
    """The largest tile whose programs fill the GPU, else the smallest. ``rows``: those that one owner has.

    A few wide tiles that all run at once overlap little: those of a peer's rows wait, then all compute together.
    """
    m, columns, _ = task.problem.gemm
    enough = FILLED * task.machine.compute_units
    tile = next((each for each in FILLING if programs_of(each, m, columns) >= enough), FILLING[-1])
    return suited({**tile, "block_m": min(tile["block_m"], max(16, round_up(rows)))}, task)


def persists(task: Task[Any], tile: Mapping[str, int]) -> bool:
    """True if there are more programs than units, each with a unit to itself: of fp8 two share one, and persistent ones
    take 1.14 to 1.16 times as long (one H100, 2026-11-24).
    """
    rows, columns, _ = task.problem.gemm
    return not task.problem.scaled and programs_of(tile, rows, columns) > task.machine.compute_units


def one_round_tile(task: Task[Any], rows: int) -> dict[str, int] | None:
    """The narrowest tile of an owner's rows whose programs all run at once, of few rows two on a unit; None if there is
    none. 8 x 6144 x 10752 took 0.85 times as long with 192 programs as with 96 (2 H100, 2026-11-27).

    One of 256 columns only where it fills the GPU: with 0.76, 0.71 and 0.71 of it at work 798 x 4096 x 13696 and
    602 x 5120 x 5120 on two and 996 x 3072 x 8192 on four took 1.19, 1.07 and 1.10 times as long as the library's GEMM
    and ``custom_collective`` (H100, 2026-11-28).
    """
    problem, units = task.problem, task.machine.compute_units
    _, columns, _ = problem.gemm
    block_m = min(128, max(16, round_up(rows)))
    for block_n in (64, 128, 256):
        tile = {"block_m": block_m, "block_n": block_n}
        programs, pipeline = problem.world_size * programs_of(tile, rows, columns), _pipeline(block_m, block_n)
        full = problem.m * columns >= FILLED * units * block_m * block_n
        if block_n == WIDE["block_n"] and block_m >= WGMMA_ROWS and not full:
            return None
        if programs <= units:
            return suited({**pipeline, **tile}, task)
        if programs <= 2 * units and block_m < WGMMA_ROWS and block_n == NARROW["block_n"]:
            return suited({**pipeline, **tile, "num_stages": 4}, task)
    return None


def suited(tile: Mapping[str, int], task: Task[Any]) -> dict[str, int]:
    """A tile no wider and no deeper than the problem, but for rounding up to a power of two; of fp8 with as many bytes
    in a step; on AMD of two stages.
    """
    problem, machine = task.problem, task.machine
    rows, columns, depth = problem.gemm
    tile = dict(tile)
    if problem.scaled and not machine.is_interpreter:
        tile |= promoted_tile(machine) if rows > FEW_ROWS and _promotes(task) else {"block_k": 128}
    if machine.kind == "hip":
        tile["num_stages"] = 2
    tile = in_short_steps(tile, machine)
    tile["block_n"] = min(tile["block_n"], max(32, round_up(columns)))
    tile["block_k"] = min(tile["block_k"], max(32, round_up(depth)))
    return tile


def crowded(tile: Mapping[str, Any], machine: Machine) -> bool:
    """True if sums take half of a thread's registers, and operands and addresses of a step need the others: sm_80."""
    sums = tile["block_m"] * tile["block_n"] // (32 * tile["num_warps"])
    return machine.kind == "cuda" and not machine.has_tma and sums >= 128


def in_short_steps(tile: Mapping[str, int], machine: Machine) -> dict[str, int]:
    """A crowded tile in steps half as long, with half of the addresses: else 10 to 20 words of each thread spill."""
    return {**tile, "block_k": tile["block_k"] // 2, "num_stages": 6} if crowded(tile, machine) else {**tile}


def tiles_beside_default(task: Task[Any]) -> list[dict[str, int]]:
    """Tiles to try first beside the default's: on CUDA the next one; on AMD the wide one, which we have only compiled.

    Those of fp8 read as many bytes in a step as bf16 at 64; where sums are promoted, see ``PROMOTED_TILE``.
    """
    problem, machine = task.problem, task.machine
    if machine.is_interpreter:
        return []
    if problem.gemm[0] <= FEW_ROWS:
        return _tiles_for_few_rows(task)[1:]
    if machine.kind == "hip":
        return [{**WIDE, "num_stages": 2}]  # in 4 warps, 2 to 6 words spill (gfx942)
    if not problem.scaled:
        return [in_short_steps(_soonest_tiles(task)[1][0], machine)]
    wide = {**WIDE, "block_k": 128}
    if problem.fast_accum:
        return [{**wide, "num_stages": 3}, wide, {**wide, "block_k": 64, "num_stages": 6}]
    promoted = promoted_tile(machine)
    held = [wide] if machine.arch == "sm_90" else []
    return [promoted, *held, {**promoted, "block_m": 64, "num_stages": 4}]


PROMOTED_TILE = {"block_m": 128, "block_n": 128, "block_k": 128, "num_warps": 4, "num_stages": 3}
"""The tile with which fp8 GEMMs whose sums are promoted, or scaled step by step, were fastest on H200, see
docs/decisions.md, fp8: two programs fit on a compute unit, see ``Tile.in_two_parts``.
"""


def promoted_tile(machine: Machine) -> dict[str, int]:
    """With twice the warps where a step's product is in registers, too: 200 of a thread's would spill (sm_89)."""
    return PROMOTED_TILE if machine.arch == "sm_90" else {**PROMOTED_TILE, "num_warps": 8}


def _promotes(task: Task[GemmProblem]) -> bool:
    return task.machine.kind == "cuda" and not task.problem.fast_accum


def _tiles_for_few_rows(task: Task[Any]) -> list[dict[str, int]]:
    """A narrow tile; on CUDA a deep one, and a flat one, first where the GPU does not hold all narrow tiles at once.

    With 64 rows of bf16 a narrow tile's stages leave no room for a second program on a unit. All-gather + GEMM with
    M=64 N=28672 K=8192 on 2 H100: 224 narrow tiles take 97.7 µs, 112 flat ones 93.5, all else equal (2026-11-25).
    """
    machine = task.machine
    rows, columns, _ = task.problem.gemm
    block_m = max(16, round_up(rows))
    narrow, deep, flat = ({**tile, "block_m": block_m} for tile in (NARROW, DEEP, FLAT))
    fewer = block_m < WGMMA_ROWS and machine.has_tma
    if fewer:
        deep |= {"num_stages": 4}
        flat |= {"block_k": 256, "num_stages": 3}  # 0.97 to 0.99 of the shorter steps' time (2 H100, 2026-11-27)
    if machine.kind == "hip":
        return [narrow]
    held = pipeline_bytes(task, block_m, narrow["block_n"], narrow["block_k"], narrow["num_stages"])
    at_once = machine.compute_units * max(1, machine.shared_memory // held)
    if programs_of(narrow, rows, columns) > at_once:
        return [flat, narrow, deep]
    if not fewer or task.problem.scaled:
        return [narrow, deep, flat]
    # Five stages won at 32 x 5120 x 25600, by 3 % (GEMM + all-reduce, 2 H200, 2026-11-30); with 16 rows they spill.
    return [deep, *([{**deep, "num_stages": 5}] if block_m == 32 else []), narrow, flat]


def _soonest_tiles(task: Task[Any], exchange: float = 0.0) -> list[tuple[dict[str, int], float]]:
    """The tiles of ``ROUNDS``, that one first whose programs, so many for each compute unit, end first; with the
    microseconds that they take alone. An ``exchange`` of so many goes on during all rounds but one.

    GEMM + reduce-scatter with M=512 N=8192 K=28672 on 2 H100: the square tile makes two programs for nearly each unit,
    and takes 217 µs, the wide one 128 programs and 174 (2026-11-24). All-gather by K + GEMM with M=256 N=14336 K=8192
    on 4 H200: square 56 programs, 64.8 µs; flat 112 and 47.1 (the recording ag-k-256).
    """
    (rows, columns, _), widest, found = task.problem.gemm, widest_round(task), []
    for tile, share in ROUNDS:
        rounds = -(-programs_of(tile, rows, columns) // task.machine.compute_units)
        alone = rounds * share * widest
        found.append((alone + exchange / rounds, alone, tile))
    return [(tile, alone) for _, alone, tile in sorted(found, key=itemgetter(0))]


def _pipeline(block_m: int, block_n: int) -> dict[str, int]:
    """Steps as deep and as many as fit into shared memory."""
    if block_m < 64:
        # Of 128 columns shorter steps, more of them, took 1.05 to 1.18 times as long (2 H100, 2026-11-27).
        return {"block_k": 64 if block_n == 256 else 128, "group_m": 4, "num_warps": 4,
                "num_stages": 5 if block_n == 128 else 6}  # fmt: skip
    if block_m * block_n < 128 * 128:
        return {"block_k": 128, "group_m": 4, "num_warps": 4, "num_stages": 4}
    return {**SQUARE, "num_stages": 5} if block_n == 128 else WIDE
