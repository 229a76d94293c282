"""Time of two-level kernels over 2 to 64 hosts of 8 GPUs, in microseconds: python bench/far/model.py

One rank's rail, its NVLink and its GEMM are three stages that chunks pass through, each in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.device_rates import RATES
from autotune.kernels.gemm.cost import CACHE_FACTOR

GPUS = 8
"""GPUs of a host."""
HOSTS = (2, 4, 8, 16, 32, 64)
GPU = RATES["sm_90"]
RAIL = 45e3
"""Bytes per microsecond of a 400 Gb/s rail, of 50e3: DeepEP V2 reaches 90 GB/s on 2 x 8 and 61 on 4 x 8 GPUs with the
local share, so 45 and 46 over the network (its README, 8192 tokens; V1: 44 on 4 x 8 and 45 on 8 x 8)."""
TRIP = 8.35
"""Microseconds from a put to its signal: half of a round trip's 16.7, GIN with GDAKI on H100 (arXiv 2511.15076)."""
PUT = 0.01
"""Microseconds of a rail for a put beside its bytes, fitted to ``MEASURED``: many warps put at once."""

MEASURED = {2: 118, 4: 155, 8: 173, 16: 192, 32: 194}
"""By hosts: DeepEP V1's low-latency dispatch on H800, every token straight to each expert's rank: 128 tokens of 7168 in
fp8, 8 experts each (docs/legacy.md of its repository)."""

TILE = 128
"""The most rows of a tile."""

TOKEN, TOP = 7168 + 4 * 56, 8
"""Bytes of a token in fp8 with its scales; its experts."""


@dataclass(frozen=True)
class Chunk:
    """A part of A as one rank's GEMM gets it: when it is there, and its rows of each of so many ranks."""

    ready: float
    rows: float
    ranks: int = 1


def gemm(chunks: Sequence[Chunk], columns: float, depth: int) -> float:
    """The end of a GEMM that takes chunks in this order. A row of tiles is of one rank, and reads B from the L2."""
    now = GPU.launch
    for chunk in chunks:
        flops = 2 * chunk.ranks * chunk.rows * columns * depth / GPU.flops
        reads = chunk.ranks * math.ceil(chunk.rows / TILE) * 2 * columns * depth
        now = max(now, chunk.ready) + max(flops, reads / (CACHE_FACTOR * GPU.memory))
    return now


def all_gather_gemm(
    hosts: int, way: str, chunk: float = 1e6, rails: int = GPUS, order: str = "near", m: int = 8192, n: int = 28672,
    k: int = 8192,
) -> float:  # fmt: skip
    """bf16, A by rows, B by columns, sizes over all ranks. ``chunk`` is in bytes, ``rails`` the NICs of a host.

    ``two`` levels; ``flat``: straight to each rank; ``library``: NCCL's all-gather, as many bytes over a rail as in two
    levels, log2(hosts) trips, and a GEMM after it. ``order``: tiles by arrival (``near``) or by ``rank``, as the last
    host sees it.
    """
    world, rate = hosts * GPUS, RAIL * rails / GPUS
    shard, rows = 2 * m * k / world, m / world
    if way == "library":
        moved = max((hosts - 1) * shard / rate, (world - 1) * shard / GPU.links)
        return moved + math.log2(hosts) * TRIP + GPU.launch + gemm([Chunk(0, m)], n / world, k)
    parts = max(1, round(shard / chunk))
    size, sent = shard / parts, GPUS if way == "flat" else 1
    near = (GPUS - 1) * shard / GPU.links
    own, local = Chunk(0, rows), Chunk(near + GPU.signal, rows, GPUS - 1)
    far: list[list[Chunk]] = []
    rail, link = 0.0, near
    for _ in range(1, hosts):
        far.append([])
        for _ in range(parts):
            rail += sent * (size / rate + PUT)
            ready = rail + TRIP
            if way == "two":
                link = max(link, ready) + (GPUS - 1) * size / GPU.links
                ready = link + GPU.signal
            far[-1].append(Chunk(ready, rows / parts, GPUS))
    hosts_in_turn = far if order == "near" else far[::-1]
    arriving = [each for host in hosts_in_turn for each in host]
    return gemm([own, local, *arriving] if order == "near" else [*arriving, own, local], n / world, k)


def distinct(groups: float, draws: int = TOP) -> float:
    """Expected number of different groups among random draws."""
    return groups * (1 - (1 - 1 / groups) ** draws)


def dispatch(
    hosts: int, way: str, tokens: int, limit: int = 64, routing: bool = True, chunk: float = 256e3, rails: int = GPUS
) -> float:
    """fp8 tokens of one rank, random experts on at most ``limit`` hosts per token. ``routing``: every rank gets that of
    all, 8 bytes a pair, as our plan needs it. ``two`` levels, ``flat`` (once to a rank), or ``pairs`` (to each expert).
    """
    rate, at_most = RAIL * rails / GPUS, min(limit, hosts)
    far = (hosts - 1) / hosts
    ranks = distinct(at_most * GPUS)
    ids = tokens * TOP * 8 * routing
    copies = {"two": distinct(at_most), "flat": ranks, "pairs": TOP}[way] * far
    peers = (hosts - 1) * (1 if way == "two" else GPUS) * routing
    moved, begun = tokens * copies * TOKEN, peers
    begun += moved / chunk if way == "two" else tokens * copies
    rail = (moved + peers * ids) / rate + begun * PUT
    share, sources = (1, hosts) if way == "two" else (1 - far, 1)
    spread = tokens * ranks * share * TOKEN + (GPUS - 1) * ids * sources
    link, packed = spread / GPU.links, 2 * min(moved, chunk) / GPU.memory
    if way == "two":
        last = min(moved, chunk) * ranks / copies / GPU.links
        return GPU.launch + packed + max(rail + TRIP + last, link) + GPU.signal
    return GPU.launch + max(rail + TRIP, link)


def table(title: str, heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield f"| {title} | " + " | ".join(map(str, heads)) + " |"
    yield "|---" + "|---:" * len(heads) + "|"
    for name, *values in rows:
        yield f"| {name} | " + " | ".join(f"{value:.0f}" for value in values) + " |"
    yield ""


GATHERS: dict[str, dict[str, Any]] = {
    "library, then GEMM": {"way": "library"}, "flat": {"way": "flat"}, "**two levels**": {"way": "two"},
    "two, tiles by rank": {"way": "two", "order": "rank"}, "two, 4 rails a host": {"way": "two", "rails": 4},
    "two, 1 rail a host": {"way": "two", "rails": 1}, "library, m=512": {"way": "library", "m": 512},
    "two levels, m=512": {"way": "two", "m": 512},
}  # fmt: skip
DISPATCHES: dict[str, dict[str, Any]] = {
    "flat": {"way": "flat"}, "**two levels**": {"way": "two"}, "flat, no routing": {"way": "flat", "routing": False},
    "two, no routing": {"way": "two", "routing": False}, "flat, of 4 hosts at most": {"way": "flat", "limit": 4},
    "two, of 4 hosts at most": {"way": "two", "limit": 4},
}  # fmt: skip
CHUNKS = (16, 64, 256, 1024, 4096)


def lines() -> Iterator[str]:
    """The tables of docs/decisions.md."""
    gathers = [(name, *(all_gather_gemm(hosts, **how) for hosts in HOSTS)) for name, how in GATHERS.items()]
    yield from table("all-gather + GEMM, hosts", HOSTS, gathers)
    by_chunk = [(f"{h} hosts", *(all_gather_gemm(h, "two", 1e3 * size) for size in CHUNKS)) for h in (2, 8, 64)]
    yield from table("two levels, chunks in KB", CHUNKS, by_chunk)
    for tokens in (128, 4096):
        rows = [(name, *(dispatch(hosts, tokens=tokens, **how) for hosts in HOSTS)) for name, how in DISPATCHES.items()]
        yield from table(f"dispatch of {tokens} tokens a rank, hosts", HOSTS, rows)
    known = ("measured", *MEASURED.values()), ("model", *(dispatch(h, "pairs", 128, routing=False) for h in MEASURED))
    yield from table("DeepEP V1, low latency, hosts", tuple(MEASURED), known)


if __name__ == "__main__":
    print("\n".join(lines()))
