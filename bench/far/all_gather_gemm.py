"""All-gather + GEMM in two levels: a shard goes once to each far host, and there over NVLink to the others.

    puts       our shard → our rail's rank on host h + 1, chunk by chunk │ … one program for each far host
    own        our shard → near peers │ signal each chunk
    forwards   wait for a chunk of our rail's rank on host h − 1 │ → near peers, signal │ …
    tiles      own rows (from A) │ wait, near peers' │ wait, far ones' by chunks, in the order of their arrival

A rail joins the ranks of one place in their hosts. Puts and own wait for nothing, forwards for other hosts' puts alone,
and both come before tiles, so no wait starves its producer. Two slots do, as for ``push``: no launch ends without
something of each rank's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autotune.heap import device as heap
from autotune.kernels.primitives.counters import finish, read_epoch, wait_in_slot
from far.heap import put_signal, quiet


@triton.jit
def hand_on(source, place, elements, counter, peers, LOCAL: tl.constexpr, OURS: tl.constexpr, BLOCK: tl.constexpr):
    """Store so many elements to the near peers (OURS: and to ourselves), and signal each rank of our host."""
    lanes = tl.arange(0, BLOCK)
    for turn in tl.static_range(LOCAL):
        peer = peers.rank // LOCAL * LOCAL + (peers.rank + 1 + turn) % LOCAL
        if OURS or turn < LOCAL - 1:
            for begin in range(0, elements, BLOCK):
                inside = begin + lanes < elements
                values = tl.load(source + begin + lanes, mask=inside)
                heap.store(place + begin + lanes, values, peers.rank, peer, peers.bases, mask=inside)
        heap.signal(counter, peer, peers)


@triton.jit(do_not_specialize=["rank", "spin_limit"])
def all_gather_gemm_kernel(
    a, b, c, inbox, net, near, epoch_counter, rank, heap_bases, status, spin_limit,
    HOSTS: tl.constexpr, LOCAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """c [HOSTS * LOCAL * M, N] = all ranks' a [M, K] @ b [K, N]; 2 * HOSTS - 1 programs and one for each tile.

    On the heap, for each of two slots: inbox [HOSTS * LOCAL, M, K], net int64 [HOSTS, chunks] for puts, near int32
    [HOSTS * LOCAL, chunks]. CHUNK rows are put at a time; it divides M, BLOCK_M divides it, BLOCK_N N, BLOCK_K K.
    """
    peers = heap.Peers(rank, heap_bases, status, spin_limit)
    pid = tl.program_id(0)
    epoch = read_epoch(epoch_counter)
    WORLD: tl.constexpr = HOSTS * LOCAL
    CHUNKS: tl.constexpr = M // CHUNK
    PART: tl.constexpr = CHUNK * K
    inbox += (epoch & 1) * (WORLD * M * K)
    net += (epoch & 1) * (HOSTS * CHUNKS)
    near += (epoch & 1) * (WORLD * CHUNKS)
    if pid < HOSTS - 1:
        for chunk in range(CHUNKS):
            place = inbox + rank * M * K + chunk * PART
            size = PART * a.dtype.element_ty.primitive_bitwidth // 8
            word = net + rank // LOCAL * CHUNKS + chunk
            put_signal(place, a + chunk * PART, size, word, 1, (rank + (pid + 1) * LOCAL) % WORLD)
    elif pid == HOSTS - 1:
        for chunk in range(CHUNKS):
            place = inbox + rank * M * K + chunk * PART
            hand_on(a + chunk * PART, place, PART, near + rank * CHUNKS + chunk, peers, LOCAL, False, BLOCK)
    elif pid < 2 * HOSTS - 1:
        source = (rank + (2 * HOSTS - 1 - pid) * LOCAL) % WORLD
        for chunk in range(CHUNKS):
            late = wait_in_slot(net + source // LOCAL * CHUNKS + chunk, epoch, 1, peers)
            place = inbox + source * M * K + chunk * PART
            hand_on(place + late, place, PART, near + source * CHUNKS + chunk, peers, LOCAL, False, BLOCK)
    else:
        ACROSS: tl.constexpr = N // BLOCK_N
        tile = pid - (2 * HOSTS - 1)
        unit = tile // (CHUNK // BLOCK_M * ACROSS)
        distance, unit = unit // (CHUNKS * LOCAL), unit % (CHUNKS * LOCAL)
        if distance == 0:  # whole shards, ours first
            turn, chunk = unit // CHUNKS, unit % CHUNKS
        else:  # a chunk of every rail, then the next
            turn, chunk = unit % LOCAL, unit // LOCAL
        host = (rank // LOCAL + HOSTS - distance) % HOSTS
        source = host * LOCAL + (rank + turn) % LOCAL
        first = chunk * CHUNK + tile // ACROSS % (CHUNK // BLOCK_M) * BLOCK_M
        shard = a
        if source != rank:
            shard = inbox + source * M * K + wait_in_slot(near + source * CHUNKS + chunk, epoch, 1, peers)
        rows, columns = first + tl.arange(0, BLOCK_M), tile % ACROSS * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for begin in range(0, K, BLOCK_K):
            depth = begin + tl.arange(0, BLOCK_K)
            left = tl.load(shard + rows[:, None] * K + depth[None, :])
            total = tl.dot(left, tl.load(b + depth[:, None] * N + columns[None, :]), total)
        tl.store(c + (source * M + rows)[:, None] * N + columns[None, :], total.to(c.dtype.element_ty))
    if finish(epoch_counter, tl.num_programs(0)):
        quiet()
    heap.seal(status, c, WORLD * M * N)
