"""Dispatch of tokens to the ranks of their experts in two levels: a token goes once to each far host that wants it.

    puts       our ids, then the tokens that host h + 1 wants, packed, chunk by chunk → our rail's rank there │ …
    own        our ids and tokens → the ranks of our host that want them, signal
    forwards   wait for the ids of our rail's rank on host h − 1, wait for a chunk │ → who wants them, signal │ …
    rows       wait for a source's ids and tokens │ take what our experts want

The receiver finds a packed token by the same ids. Order, rails and slots are those of ``all_gather_gemm``. The layout
by expert is local, and not here: ``autotune/kernels/moe/plan.py``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import finish, read_epoch, wait_in_slot
from far.all_gather_gemm import hand_on
from far.heap import put_signal, quiet


@triton.jit
def wants(ids, first, ranks, T: tl.constexpr, TOP: tl.constexpr, EXPERTS: tl.constexpr):
    """int32 [T]: 1 for each token with an expert on one of ``ranks`` ranks from ``first`` on; EXPERTS are on each."""
    chosen = tl.load(ids + tl.arange(0, T)[:, None] * TOP + tl.arange(0, TOP)[None, :])
    owner = chosen // EXPERTS
    return tl.max(((chosen >= 0) & (owner >= first) & (owner < first + ranks)).to(tl.int32), axis=1)


@triton.jit
def hand_out(
    x, ids, chunk, inbox, counter, peers, PACKED: tl.constexpr,
    LOCAL: tl.constexpr, T: tl.constexpr, H: tl.constexpr, TOP: tl.constexpr, EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Store a chunk of a source's tokens to those of our host that want them, and signal each rank of it."""
    token, across = tl.arange(0, T), tl.arange(0, H)
    host = peers.rank // LOCAL * LOCAL
    wanted = wants(ids, host, LOCAL, T, TOP, EXPERTS)
    row = tl.cumsum(wanted, 0) - 1 if PACKED else token
    here = (wanted != 0) & (row // CHUNK == chunk)
    values = tl.load(x + row[:, None] * H + across[None, :], mask=here[:, None], other=0.0)
    for turn in tl.static_range(LOCAL):
        peer = host + (peers.rank + 1 + turn) % LOCAL
        its = here & (wants(ids, peer, 1, T, TOP, EXPERTS) != 0)
        place = inbox + token[:, None] * H + across[None, :]
        heap.store(place, values, peers.rank, peer, peers.bases, mask=its[:, None] & (across >= 0)[None, :])
        heap.signal(counter, peer, peers)


@triton.jit(do_not_specialize=["rank", "spin_limit"])
def dispatch_kernel(
    x, ids, rows, all_ids, packed, landed, inbox, inbox_ids, net, near, epoch_counter,
    rank, heap_bases, status, spin_limit,
    HOSTS: tl.constexpr, LOCAL: tl.constexpr, T: tl.constexpr, H: tl.constexpr, TOP: tl.constexpr,
    EXPERTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """rows [HOSTS * LOCAL, T, H]: of all ranks' x [T, H] the tokens that our EXPERTS experts are among, by ids int32
    [T, TOP]; the other rows stay. all_ids [HOSTS * LOCAL, T, TOP]: everybody's. 2 * HOSTS - 1 + HOSTS * LOCAL programs.

    On the heap: packed [HOSTS, T, H], and for each of two slots landed [HOSTS, T, H], inbox [HOSTS * LOCAL, T, H],
    inbox_ids [HOSTS * LOCAL, T, TOP], net int64 [HOSTS, 1 + chunks], near int32 [HOSTS * LOCAL]. Sizes are powers of
    two. Every chunk is put, of one row at least: words then count the same in each launch.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid = tl.program_id(0)
    epoch = read_epoch(epoch_counter)
    slot = epoch & 1
    WORLD: tl.constexpr = HOSTS * LOCAL
    CHUNKS: tl.constexpr = T // CHUNK
    landed += slot * (HOSTS * T * H)
    inbox += slot * (WORLD * T * H)
    inbox_ids += slot * (WORLD * T * TOP)
    net += slot * (HOSTS * (1 + CHUNKS))
    near += slot * WORLD
    token, across, choice = tl.arange(0, T), tl.arange(0, H), tl.arange(0, TOP)
    size = x.dtype.element_ty.primitive_bitwidth // 8
    if pid < HOSTS - 1:
        peer = (rank + (pid + 1) * LOCAL) % WORLD
        words = net + rank // LOCAL * (1 + CHUNKS)
        put_signal(inbox_ids + rank * T * TOP, ids, T * TOP * 4, words, 1, peer)
        wanted = wants(ids, peer // LOCAL * LOCAL, LOCAL, T, TOP, EXPERTS)
        row = tl.cumsum(wanted, 0) - 1
        out = packed + peer // LOCAL * (T * H)
        values = tl.load(x + token[:, None] * H + across[None, :])
        tl.store(out + row[:, None] * H + across[None, :], values, mask=(wanted != 0)[:, None])
        tl.debug_barrier()
        for chunk in range(CHUNKS):
            filled = tl.minimum(tl.maximum(tl.sum(wanted, 0) - chunk * CHUNK, 1), CHUNK)
            there = landed + (rank // LOCAL * T + chunk * CHUNK) * H
            put_signal(there, out + chunk * CHUNK * H, filled * (H * size), words + 1 + chunk, 1, peer)
    elif pid == HOSTS - 1:
        hand_on(ids, inbox_ids + rank * T * TOP, T * TOP, near + rank, peers, LOCAL, True, T * TOP)
        for chunk in range(CHUNKS):
            hand_out(
                x, ids, chunk, inbox + rank * T * H, near + rank, peers, False, LOCAL, T, H, TOP, EXPERTS, CHUNK
            )  # fmt: skip
    elif pid < 2 * HOSTS - 1:
        source = (rank + (2 * HOSTS - 1 - pid) * LOCAL) % WORLD
        words = net + source // LOCAL * (1 + CHUNKS)
        its_ids = inbox_ids + source * T * TOP
        late = wait_in_slot(words, epoch, 1, peers)
        hand_on(its_ids + late, its_ids, T * TOP, near + source, peers, LOCAL, False, T * TOP)
        for chunk in range(CHUNKS):
            late = wait_in_slot(words + 1 + chunk, epoch, 1, peers)
            its = landed + source // LOCAL * (T * H) + late
            hand_out(
                its, its_ids, chunk, inbox + source * T * H, near + source, peers, True, LOCAL, T, H, TOP, EXPERTS,
                CHUNK,
            )  # fmt: skip
    else:
        source = pid - (2 * HOSTS - 1)
        late = wait_in_slot(near + source, epoch, 1 + CHUNKS, peers)
        ids_at = source * T * TOP + token[:, None] * TOP + choice[None, :]
        tl.store(all_ids + ids_at, tl.load(inbox_ids + ids_at + late))
        ours = wants(inbox_ids + source * T * TOP + late, rank, 1, T, TOP, EXPERTS) != 0
        at = source * T * H + token[:, None] * H + across[None, :]
        tl.store(rows + at, tl.load(inbox + at + late, mask=ours[:, None], other=0.0), mask=ours[:, None])
    if finish(epoch_counter, tl.num_programs(0)):
        quiet()
    heap.seal(status, rows, WORLD * T * H)
