"""Mutants: the kernels with one thing broken. Read as a table: where, what stands there, what stands there instead.

A snippet must occur in its file exactly as often as is said, so that the table cannot rot. ``case`` is a name in
``mutant_cases.CASES``: the problem and config whose evaluation has to find the mutant out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Edit = tuple[str, str] | tuple[str, str, int]
"""The text, its replacement, and the number of its occurrences if not one."""


@dataclass(frozen=True)
class Mutant:
    """A file of the package with edits; what they break."""

    breaks: str
    file: str
    edits: tuple[Edit, ...]
    case: str
    equivalent: str = ""
    """Why no result can change, if so: it is not counted then."""
    hardware: bool = False
    """Only GPUs can show it: the interpreter runs a rank's programs in turn and every rank sees stores in their order."""

    @property
    def name(self) -> str:
        """One word for each mutant: its case and what it breaks."""
        return f"{self.case}: {self.breaks}"


def _in(file: str, *rows: tuple[Any, ...]) -> list[Mutant]:
    """Rows of one file: what breaks, the case, and the edits; a dictionary at the end has further fields."""
    made = []
    for breaks, case, *rest in rows:
        more = rest.pop() if isinstance(rest[-1], dict) else {}
        made.append(Mutant(breaks, file, tuple(rest), case, **more))
    return made


GPU = {"hardware": True}
ANSWERED = {
    "equivalent": "whoever sends a part again has had the result, and whoever sends a result again a part from everybody"
}

DONE = "    wait_for_all(done, epoch + 1, status, spin_limit, WORLD)\n"
PUSHED = """        if ROTATE:
            heap.signal(counter, (rank + FIRST + turn) % WORLD, rank, heap_bases)
        else:
            heap.signal_each(counter, rank, heap_bases, WORLD, FIRST)
"""
PUSH_LOOP = "        for step in range(part, tl.cdiv(end - first, STEP_ROWS) * across, parts):\n"
FETCH_LOOP = "        for step in range(part + late, tl.cdiv(end - first, STEP_ROWS) * across, parts):\n"
FETCHED = "        heap.signal(arrivals + (chunk * WORLD + peer) * units + unit, rank, rank, heap_bases)\n"
SCALES_SENT = "            if (chunk == 0) & (unit % parts == part):\n"
MC_SIGNAL = "        heap.signal(arrivals + (slot * blocks + block) * SPLIT + unit % SPLIT, peer, rank, heap_bases)\n"
MC_BEGIN = "        begin = first_column + unit % SPLIT * COLUMNS\n"
RS_SEND = """            send_tile(
                acc, inbox, place, rank if PULL else owner, rank, heap_bases, BLOCK_M, BLOCK_N, scales=inbox_scales
            )
"""
RS_SIGNAL = "                announce(index, tiles, sent, arrivals, owner, rank, heap_bases, TRANSFER_TILES)\n"
RS_LATE = "        announce(stored_index, tiles, sent, arrivals, stored_owner, rank, heap_bases, TRANSFER_TILES)\n\n"
ARN_SENT = "    for turn in tl.static_range(PEERS):\n        heap.store(place, value, rank, (first + turn) % WORLD, heap_bases, mask=inside, hint=(1, 16))\n"
ARN_SIGNAL = "    if PROTOCOL == SIGNAL:\n        if PEERS == 1:\n            heap.signal(counter, first, rank, heap_bases)\n        else:\n            heap.signal_each(counter, rank, heap_bases, WORLD, 0)\n"
ROUTED_SIGNAL = "    if not LL:\n        heap.signal_each(arrivals + slot * WORLD + rank, rank, heap_bases, WORLD, 0)\n"
TOKENS_SIGNAL = "        if not LL:\n            heap.signal_each(arrivals + (slot * WORLD + rank) * blocks + block, rank, heap_bases, WORLD, 0)\n"
AR_SENT = """        if PROTOCOL == SENTINEL:
            part = sentinel_bits(part.to(TYPE))
        for turn in tl.static_range(PEERS):
            peer = (first + turn) % WORLD
            send_tile(part, inbox, index, peer, rank, heap_bases, BLOCK_M, BLOCK_N, rows, scales, of_rows)
"""
AR_SIGNAL = """        if PROTOCOL == SIGNAL:
            if PEERS == 1:
                heap.signal(counter, first, rank, heap_bases)
            else:
                heap.signal_each(counter, rank, heap_bases, WORLD, 0)
"""
FD_ANNOUNCE = "    announce_unit(unit, units, owner, arrivals, rank, heap_bases, WORLD, OWNED, DELIVERY)\n"
FD_PUSH = "\n\n@triton.jit\ndef push_unit("
FD_REDUCE = (
    '    """Merge a unit\'s splits and deliver it. MEMORY, for ``tune taxes`` alone: by way of our own records."""\n'
    "    first, end = rows_of_unit(unit, heads_of_group, UNITS, BLOCKS, HPP, TRANSFER_HEADS)\n"
    "    owner, excess = home_of_unit(first, WORLD, OWNED)\n"
)
POLLING = "    while (missing > 0) & (spins < spin_limit):\n"
EMPTIED = "    sentinel_empty(place, mask)\n"
TIMED_OUT = "    if missing > 0:\n        tl.atomic_xchg(status, 1)\n"
ZERO_LOST = (
    ("bits = (bits | ((bits == 0).to(tl.uint32) << 31)).to(", "bits = bits.to("),
    ("bits = (bits | ((bits == 0).to(tl.uint16) << 15)).to(", "bits = bits.to("),
)
EPOCH_STAYS = ("-programs + EPOCH_STEP,", "-programs,")
NOT_RESET = ("-programs + EPOCH_STEP,", "EPOCH_STEP,")
ALIKE = ("flag = epoch.to(tl.int32) + 1", "flag = epoch.to(tl.int32) * 0 + 1")

MUTANTS: list[Mutant] = [
    *_in(
        "kernels/primitives/counters.py",
        ("nobody is told: ready", "ag pull", ("heap.signal_each(ready + rank, rank, heap_bases, WORLD, 0)", "pass")),
        ("waits for nobody", "ag gather", ("heap.wait_each(counters + ranks, ranks < WORLD, target, status, spin_limit)", "pass")),
        ("waits for the launch before", "rs copies", ("ranks < WORLD, target, status", "ranks < WORLD, target - 1, status")),
        ("waits for rank 0 alone", "ag gather", ("ranks < WORLD, target, status", "ranks < 1, target, status")),
        ("finished programs are not reset", "ag push", NOT_RESET),
        ("tiles of a unit are not reset", "rs units", ("        tl.atomic_xchg(counter, 0)\n", "        pass\n")),
        ("the last tile but one signals the unit", "rs units", ('scope="gpu") == programs - 1', 'scope="gpu") == programs - 2')),
        ("the epoch stays", "ag push", EPOCH_STAYS),
        ("the epoch stays", "rs push", EPOCH_STAYS),
        ("the epoch stays", "ag copies", EPOCH_STAYS),
        ("the epoch grows by two", "rs pull", ("-programs + EPOCH_STEP,", "-programs + 2 * EPOCH_STEP,")),
        ("the epoch stays", "fd signal", ("1 - programs + EPOCH_STEP, 1)", "1 - programs, 1)")),
        ("finished programs are not reset", "fd ll", ("1 - programs + EPOCH_STEP, 1)", "EPOCH_STEP, 1)")),
        ("the epoch stays", "ar one", ("1 - programs + EPOCH_STEP, 1)", "1 - programs, 1)")),
        ("the epoch stays", "ar two ll", ("1 - programs + EPOCH_STEP, 1)", "1 - programs, 1)")),
        ("two launches have one epoch", "ar one", (">> EPOCH_SHIFT\n", ">> (EPOCH_SHIFT + 1)\n")),
        ("two launches have one epoch", "ar ll", (">> EPOCH_SHIFT\n", ">> (EPOCH_SHIFT + 1)\n")),
        ("finished programs count unordered", "rs split", ('tl.atomic_add(counter, 1, sem="acq_rel"', 'tl.atomic_add(counter, 1, sem="relaxed"'), GPU),
        ("finished programs do not wait for their threads", "rs split", ("    tl.debug_barrier()\n    last = ", "    last = "), GPU),
    ),
    *_in(
        "kernels/primitives/barrier.py",
        ("ranks pass the barrier by", "ag copies", ("    wait_for_all(counters, epoch + 1, status, spin_limit, WORLD)\n", "")),
        ("the first barrier ends the epoch", "ag copies", ("    if FINISH:\n", "    if True:\n")),
        ("the last barrier does not end the epoch", "ag copies", ("    if FINISH:\n", "    if FINISH and WORLD == 1:\n")),
    ),
    *_in(
        "heap/device.py",
        ("signals nothing", "rs push", ("iris.atomic_add(counter, 1, rank, peer,", "iris.atomic_add(counter, 0, rank, peer,")),
        ("signals twice", "rs push", ("iris.atomic_add(counter, 1, rank, peer,", "iris.atomic_add(counter, 2, rank, peer,")),
        ("signals itself", "ag push", ("iris.atomic_add(counter, 1, rank, peer,", "iris.atomic_add(counter, 1, rank, rank,")),
        ("leaves the last rank out", "ag pull", ("(lanes >= FIRST) & (lanes < WORLD)", "(lanes >= FIRST) & (lanes < WORLD - 1)")),
        ("signals each rank twice", "ag pull", ("iris.atomic_add(counter + lanes * 0, 1,", "iris.atomic_add(counter + lanes * 0, 2,")),
        ("signals each rank twice", "fd signal", ("iris.atomic_add(counter + lanes * 0, 1,", "iris.atomic_add(counter + lanes * 0, 2,")),
        ("waits for one less", "rs push", ("    spins = 0\n    behind = target -", "    spins = 0\n    target -= 1\n    behind = target -")),
        ("waits for one less", "ag push", ("    spins = 0\n    behind = target -", "    spins = 0\n    target -= 1\n    behind = target -")),
        ("waits for the first to come", "fd signal", ("tl.max(tl.where(mask, target - reached, 0), axis=0)", "tl.min(tl.where(mask, target - reached, 1 << 30), axis=0)")),
        ("waits for the first to come", "rs gather", ("tl.max(tl.where(mask, target - reached, 0), axis=0)", "tl.min(tl.where(mask, target - reached, 1 << 30), axis=0)")),
        ("times out at once", "ar one", ("    while (behind > 0) & (spins < spin_limit):\n", "    while (behind > 0) & (spins < 1):\n", 2)),
        ("times out without a mark", "rs push", ("        tl.atomic_xchg(status, 1)\n    return late", "        pass\n    return late"),
         {"equivalent": "no wait of a right kernel times out; the check of a wrong one sees the result"}),
        ("signals before its threads have stored", "rs push", ('    tl.debug_barrier()\n    iris.atomic_add(counter, 1,', '    iris.atomic_add(counter, 1,'), GPU),
        ("signals unordered", "rs push", ('mask=mask, sem="release", scope="sys")', 'mask=mask, sem="relaxed", scope="sys")', 2), GPU),
        ("signals for this GPU alone", "rs push", ('mask=mask, sem="release", scope="sys")', 'mask=mask, sem="release", scope="gpu")', 2), GPU),
        ("waits unordered", "rs push", ('sem="acquire", scope="sys")', 'sem="relaxed", scope="sys")', 3), GPU),
        ("no fence before TMA reads", "ag tma", ("if ENABLED and compiles_for_cuda():", "if ENABLED and compiles_for_cuda() and False:"), GPU),
    ),
    *_in(
        "kernels/primitives/tiles.py",
        ("a step beyond the edge of K", "ag ragged", ("< end_k - k\n", "< BLOCK_K\n")),
        ("the last of K is lost", "ag ragged", ("< end_k - k\n", "< end_k - k - 1\n")),
        ("a step of K is lost", "rs push", ("        for k in range(first_k, end_k, BLOCK_K):\n            if EVEN_K:", "        for k in range(first_k + BLOCK_K, end_k, BLOCK_K):\n            if EVEN_K:")),
        ("the last step of K is lost", "ar one", ("        for k in range(first_k, end_k, BLOCK_K):\n            if EVEN_K:", "        for k in range(first_k, end_k - BLOCK_K, BLOCK_K):\n            if EVEN_K:")),
        ("B stays where it is", "rs push", ("            b_pointers += BLOCK_K * stride_bk\n", "")),
        ("no bias", "ag push", ("return acc + tl.load(bias", "return acc + 0 * tl.load(bias")),
        ("no bias", "rs push", ("return acc + tl.load(bias", "return acc + 0 * tl.load(bias")),
        ("bias twice", "ag push", ("return acc + tl.load(bias", "return acc + 2 * tl.load(bias")),
        ("the next column's bias", "rs push", ("    columns = tile_columns(column, width, BLOCK_N, HALVES)\n    return", "    columns = tile_columns(column + 1, width, BLOCK_N, HALVES)\n    return")),
        ("no residual", "rs residual", ("return acc + tl.load(pointers,", "return acc + 0 * tl.load(pointers,")),
        ("no residual", "ar residual", ("return acc + tl.load(pointers,", "return acc + 0 * tl.load(pointers,")),
        ("the next row's residual", "rs residual", ("pointers = residual + rs.to", "pointers = residual + width + rs.to")),
        ("residual twice", "ar residual two", ("return acc + tl.load(pointers,", "return acc + 2 * tl.load(pointers,")),
        ("no bias in the last column", "ag ragged", ("mask=columns < width, other=0.0)", "mask=columns < width - 1, other=0.0)")),
        ("the last row is not stored", "ag ragged", ("mask=(rs < rows)[:, None]", "mask=(rs < rows - 1)[:, None]")),
        ("stores over the right edge", "ag ragged", ("(cs < width)[None, :])", "(cs < width + 1)[None, :])")),
        ("tiles in another order", "rs push", ("return first_m + local % rows, local // rows", "return first_m + local // tiles_n, local % tiles_n"),
         {"equivalent": "the same tiles, each once"}),
        ("rows beyond the edge are read", "rs push", ("rows = tl.minimum(a_row + tl.arange(0, BLOCK_M), a_rows - 1).to(tl.int64)", "rows = (a_row + tl.arange(0, BLOCK_M)).to(tl.int64)", 2),
         {"equivalent": "what comes of them is not stored"}),
    ),
    *_in(
        "kernels/primitives/scales.py",
        ("A's scales are dropped", "rs scales", ("        acc *= tl.load(scale_a + tl.minimum(row + tl.arange(0, BLOCK_M), rows - 1))[:, None]\n", "")),
        ("the next row's scale", "ag scales", ("tl.minimum(row + tl.arange(0, BLOCK_M)", "tl.minimum(row + 1 + tl.arange(0, BLOCK_M)")),
        ("B's scales are dropped", "ag scales", ("return acc * tl.load(scale_b + tl.minimum(", "return acc + 0 * tl.load(scale_b + tl.minimum(")),
        ("the next column's scale", "ag scales pull", ("return acc * tl.load(scale_b + tl.minimum(tile_columns(column,", "return acc * tl.load(scale_b + tl.minimum(tile_columns(column + 1,")),
        ("scales twice", "rs scales", ("rows - 1))[:, None]\n", "rows - 1))[:, None] * tl.load(scale_a)\n")),
        ("B's scale is dropped", "ar scale", ("acc *= tl.load(scale_a) * tl.load(scale_b)", "acc *= tl.load(scale_a)")),
        ("A's scale is dropped", "ar scale", ("acc *= tl.load(scale_a) * tl.load(scale_b)", "acc *= tl.load(scale_b)")),
        ("C's scales are the next row's", "ag swiglu fp8", ("places = scales + rs.to(tl.int64) * (columns // SIDE) + column // SIDE", "places = scales + (rs ^ 1).to(tl.int64) * (columns // SIDE) + column // SIDE")),
        ("C's scales are all in the first block", "ag swiglu fp8", ("places = scales + rs.to(tl.int64) * (columns // SIDE) + column // SIDE", "places = scales + rs.to(tl.int64) * (columns // SIDE)")),
        ("a row's largest is that of its first", "ag swiglu fp8", ("largest = tl.max(tl.abs(value), axis=1)", "largest = tl.max(value, axis=1)"),
         {"equivalent": "of rows whose largest element is positive"}),
        ("the first block's scale of B for all of K", "rs blocks", ("    at = scale_b + k // SIDE\n", "    at = scale_b\n")),
        ("the first block's scale of B for all columns", "rs blocks", ("tl.load(at + column // SIDE * pitch)", "tl.load(at)")),
        ("blocks of B transposed", "rs blocks", ("    at = scale_b + k // SIDE\n", "    at = scale_b + k // SIDE * 2\n"), ("tl.load(at + column // SIDE * pitch)", "tl.load(at + column // SIDE)")),
    ),
    *_in(
        "kernels/all_gather_gemm/push.py",
        ("the gathered A is the other slot's", "ag gathered", ("(read_epoch(epoch_counter) - 1) & (SLOTS - 1)", "read_epoch(epoch_counter) & (SLOTS - 1)")),
        ("own rows are taken from the inbox", "ag gathered", ("if row // shard_rows == rank:", "if row < 0:")),
        ("the last of K is not given back", "ag gathered staged", ("    inside = column < K\n    slot", "    inside = column < K - 1\n    slot")),
    ),
    *_in(
        "kernels/primitives/activate.py",
        ("no activation behind the library's GEMM", "ag swiglu gather", ("value = activated(gate.to(tl.float32), EPILOGUE)", "value = gate.to(tl.float32)")),
        ("gate and up swapped behind the library's GEMM", "ag swiglu gather", ("+ row * 2 * columns + column, mask", "+ row * 2 * columns + columns + column, mask"),
         ("+ row * 2 * columns + columns + column, mask=inside, other=0.0)\n    else", "+ row * 2 * columns + column, mask=inside, other=0.0)\n    else")),
        ("C's scales are another block's behind the library's GEMM", "ag swiglu fp8 gather", ("part = first // SIDE + tl.arange(0, parts)", "part = first // SIDE + (tl.arange(0, parts) + 1) % parts")),
    ),
    *_in(
        "kernels/primitives/gated.py",
        ("no activation", "ag swiglu", ("value = gate * tl.sigmoid(gate)", "value = gate")),
        ("the sigmoid alone", "ag swiglu turns", ("value = gate * tl.sigmoid(gate)", "value = tl.sigmoid(gate)")),
        ("no activation", "ag geglu", ("value = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))", "value = gate")),
        ("SiLU in place of GELU", "ag geglu", ("value = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))", "value = gate * tl.sigmoid(gate)")),
        ("gate and up swapped", "ag swiglu", ("gate, up = tl.split(pairs)", "up, gate = tl.split(pairs)")),
        ("gate and up swapped", "ag swiglu turns", ("gate, up = tl.split(pairs)", "up, gate = tl.split(pairs)")),
        ("up is the gate", "ag swiglu", ("activated(gate, EPILOGUE) * up", "activated(gate, EPILOGUE) * gate")),
        ("not multiplied by up", "ag swiglu turns", ("activated(gate, EPILOGUE) * up", "activated(gate, EPILOGUE)")),
        ("both halves from the first half of B", "ag swiglu", ("columns // 2 + place - half", "place - half")),
        ("the next column's up", "ag swiglu", ("columns // 2 + place - half", "columns // 2 + place - half + 1")),
        ("halves are taken for turns", "ag swiglu", ("    if HALVES:\n        pairs", "    if HALVES and BLOCK_M < 1:\n        pairs")),
    ),
    *_in(
        "kernels/primitives/splits.py",
        ("the rest of the depth is lost", "ag split", ("tl.cdiv(tl.cdiv(depth, BLOCK_K), SPLITS) * BLOCK_K", "(tl.cdiv(depth, BLOCK_K) // SPLITS) * BLOCK_K")),
        ("a split is not added", "rs split", ("tl.static_range(1, SPLITS)", "tl.static_range(2, SPLITS)")),
        ("splits share a place", "ar split", ("tl.store(parts + split * (BLOCK_M * BLOCK_N), acc)", "tl.store(parts, acc)")),
        ("the last split is not the last to come", "rs split", ("last = last_of(tickets + tile, SPLITS)", "last = split == SPLITS - 1"), GPU),
    ),
    *_in(
        "kernels/launching/contract.py",
        ("the copy of the scales is an earlier call's", "ag scales staged", ("    for place, given in copies:\n", "    for place, given in copies[:1]:\n")),
        ("the copy of the scales is an earlier call's", "ag scales pull", ("    for place, given in copies:\n", "    for place, given in copies[:1]:\n")),
    ),
    *_in(
        "kernels/primitives/transfer.py",
        ("scales are not sent", "ag scales", (SCALES_SENT, "            if chunk < 0:\n", 2)),
        ("scales are not sent", "ag scales gather", (SCALES_SENT, "            if chunk < 0:\n", 2)),
        ("scales are not fetched", "ag scales staged", (SCALES_SENT, "            if chunk < 0:\n", 2)),
        ("the first unit's scales alone are sent", "ag blocks", (SCALES_SENT, SCALES_SENT.replace("(chunk == 0)", "(unit == 0)"), 2)),
        ("scales of the own rows are fetched", "ag scales staged", ("scale = heap.load(scales + here, rank, peer,", "scale = heap.load(scales + here, rank, rank,")),
        ("units are not signalled", "ag push", ("            heap.signal(counter, (rank + FIRST + turn) % WORLD, rank, heap_bases)\n", "            pass\n")),
        ("units are signalled before they are stored", "ag push", (PUSHED, ""), (PUSH_LOOP, PUSHED + PUSH_LOOP)),
        ("units are signalled before they are stored", "ag fanout", (PUSHED, ""), (PUSH_LOOP, PUSHED + PUSH_LOOP)),
        ("a unit's last step is not sent", "ag push", (PUSH_LOOP, PUSH_LOOP.replace(" * across, parts", " * across - 1, parts"))),
        ("a step beyond the unit's rows", "ag ragged", ("inside = (rows < end_row) & ", "inside = (rows < end_row + STEP_ROWS) & ")),
        ("a tile does not wait for its last unit", "ag units", ("tl.minimum(last, rows - 1) // transfer_rows + 1):", "tl.minimum(last, rows - 1) // transfer_rows):")),
        ("units of the launch before will do", "ag push", ("late += heap.wait(arrivals + source * units + unit, target,", "late += heap.wait(arrivals + source * units + unit, target - 1,")),
        ("does not wait for the last source", "ag K", ("(sources <= last_source)", "(sources < last_source)")),
        ("does not wait for the first source", "ag ragged", ("(sources >= first_source)", "(sources > first_source)")),
        ("peers are read before they are ready", "ag staged", ("late = heap.wait(ready + peer, epoch + 1, status, spin_limit)", "late = 0")),
        ("nobody is told: read", "ag staged", ("heap.signal_each(done + rank, rank, heap_bases, WORLD, 0)", "pass")),
        ("units are signalled before they are fetched", "ag staged", (FETCHED, ""), (FETCH_LOOP, FETCHED + FETCH_LOOP), GPU),
    ),
    *_in(
        "kernels/all_gather_gemm/device.py",
        ("scales in one slot", "ag scales", ("scale_place_of(rank, slot,", "scale_place_of(rank, 0,"), ("scale_row = base_row", "scale_row = 0")),
        ("scales of the launch before", "ag scales", ("scale_row = base_row", "scale_row = M - base_row")),
        ("one slot", "ag push", ("slot = epoch & (SLOTS - 1)", "slot = epoch & 0")),
        ("one slot", "ag split", ("slot = epoch & (SLOTS - 1)", "slot = epoch & 0")),
        ("one slot", "ag K", ("slot = epoch & (SLOTS - 1)", "slot = epoch & 0")),
        ("rank 1 is in the other slot", "ag push", ("slot = epoch & (SLOTS - 1)", "slot = (epoch + rank) & (SLOTS - 1)")),
        ("rank 1 is an epoch ahead", "ag push", ("epoch = read_epoch(epoch_counter)\n    slot", "epoch = read_epoch(epoch_counter) + rank\n    slot")),
        ("waits for the launch before", "ag push", ("target = (epoch + 1) * comm_programs", "target = epoch * comm_programs")),
        ("A is overwritten while peers read it", "ag staged deep", ("            wait_for_all(done, target, status, spin_limit, WORLD)\n", "            pass\n")),
        ("a chunk of K is lost", "ag chunks", ("            for chunk in range(CHUNKS):\n                low, high = chunk_of(chunk, rank, K, WORLD, CHUNKS, ROWS)\n                traces", "            for chunk in range(1, CHUNKS):\n                low, high = chunk_of(chunk, rank, K, WORLD, CHUNKS, ROWS)\n                traces")),
        ("chunks wait for the first one's units", "ag chunks", ("arrivals + chunk * WORLD * tl.cdiv(shard_rows, transfer_rows), source", "arrivals, source")),
        ("a tile waits for its first row alone", "ag units", ("row_in_shard + BLOCK_M - 1, shard_rows", "row_in_shard, shard_rows")),
    ),
    *_in(
        "kernels/all_gather_gemm/push.py",
        ("another rank's scales", "ag scales", ("tl.cast(pitch, tl.int64) + rank * apart", "tl.cast(pitch, tl.int64) + (1 - rank) * apart")),
        ("inboxes are overwritten while they are read", "ag gather wide", ("WORLD)\n    wait_for_all(ready, epoch + 1, status, spin_limit, WORLD)\n", "WORLD)\n")),
        ("the GEMM begins before all is there", "ag gather", ("        wait_for_all(arrivals, (epoch + 1) * programs, status, spin_limit, WORLD)\n", "        pass\n")),
    ),
    *_in(
        "kernels/all_gather_gemm/pull.py",
        ("a peer's rows with the own scales", "ag scales pull", ("late * 4)[:, None], rank, owner, heap_bases)", "late * 4)[:, None], rank, rank, heap_bases)")),
        ("peers are read before they are ready", "ag pull", ("late = heap.wait_each(ready + peers, peers < WORLD, epoch + 1, status, spin_limit)", "late = 0")),
        ("A is overwritten while peers read it", "ag pull", ("        heap.signal_each(done + rank, rank, heap_bases, WORLD, 0)\n    " + DONE, "        pass\n")),
        ("the last of K is lost", "ag pull ragged", ("mask=ks[None, :] < width - k, other=0.0, hint", "mask=ks[None, :] < width - k - 1, other=0.0, hint")),
    ),
    *_in(
        "kernels/all_gather_gemm/push.py",
        ("one slot of words", "ag words alone", ("slot = words + (epoch & 1) * WORLD * elements", "slot = words")),
        ("words are not emptied", "ag words", ("taken = sentinel_take(", "taken = sentinel_wait("), ("import sentinel_bits, sentinel_take", "import sentinel_bits, sentinel_wait")),
        ("a peer's words are not taken", "ag words", ("for back in range(1, WORLD):\n        source", "for back in range(2, WORLD + 1):\n        source")),
        ("words lie a row apart", "ag words", ("place = place_of(source, 0, M, K, shard_rows, width, ROWS) + at // width * K + at % width", "place = place_of(source, 0, M, K, shard_rows, width, ROWS) + at // width * width + at % width")),
    ),
    *_in(
        "kernels/all_gather_gemm/launch.py",
        ("one slot", "ag own stream", ('return 2 if self.mode == "push"', 'return 1 if self.mode == "push"')),
    ),
    *_in(
        "kernels/all_gather_gemm/chunks.py",
        ("chunks are not waited for", "ag pushed copies", ("    heap.wait(arrivals + counter, read_epoch(epoch_counter) + 1, status, spin_limit)\n", "    pass\n")),
        ("waits for the launch before", "ag pushed copies", ("read_epoch(epoch_counter) + 1, status", "read_epoch(epoch_counter), status")),
        ("the epoch stays", "ag pushed copies", ("        finish(epoch_counter, 1)\n", "        pass\n")),
    ),
    *_in(
        "kernels/all_gather_gemm/copy_engine.py",
        ("copies before peers are ready", "ag copies", ("        self._enter.run()\n", "")),
        ("a chunk is not copied", "ag copies", ("for copies, signal in zip(self._copies", "self._copies[0] = []\n        for copies, signal in zip(self._copies")),
        ("copies before peers are ready", "ag pushed copies", ("        self._enter.run()\n", "")),
        ("chunks are announced before they are copied", "ag pushed copies", ("            self._copy(copies)\n            with on(self._copying):\n                signal.run()\n", "            with on(self._copying):\n                signal.run()\n            self._copy(copies)\n")),
        ("a chunk goes to the wrong rows", "ag pushed copies", ("there = slice(own.start + begin, own.start + end)", "there = slice(own.start + begin // 2, own.start + end - begin + begin // 2)")),
    ),
    *_in(
        "kernels/primitives/exchange.py",
        ("parts are not waited for", "rs push", ("late = heap.wait(arrivals + counter + source * counters_apart, target, status, spin_limit)", "late = 0")),
        ("parts are not waited for", "rs pull", ("late = heap.wait(arrivals + counter + source * counters_apart, target, status, spin_limit)", "late = 0")),
        ("a peer's part is not added", "rs push", ("for back in range(1, WORLD):", "for back in range(2, WORLD):")),
        ("a part is not added", "ar one", ("for part in tl.static_range(PARTS):", "for part in tl.static_range(1, PARTS):")),
        ("a row's scale on the wire is dropped", "rs wire", ("part *= heap.load(places, rank, holder, heap_bases)[:, None]", "part *= 1.0")),
        ("a row's scale on the wire is dropped", "ar wire", ("tile = tile.to(tl.float32) * tl.load(places, mask=tl.arange(0, BLOCK_M) < rows, other=0.0)[:, None]", "tile = tile.to(tl.float32)")),
        ("scales on the wire are the next row's", "rs wire", ("places = scales + place * BLOCK_M + tl.arange(0, BLOCK_M)", "places = scales + place * BLOCK_M + (tl.arange(0, BLOCK_M) + 1) % BLOCK_M")),
        ("scales on the wire are our own tile's", "rs wire pull", ("part *= heap.load(places, rank, holder, heap_bases)[:, None]", "part *= heap.load(places, rank, rank, heap_bases)[:, None]")),
        ("scales on the wire are not sent", "rs wire", ("heap.store(places, of_rows, rank, peer, heap_bases, mask=tl.arange(0, BLOCK_M) < rows)", "pass")),
        ("scales on the wire are not sent", "ar wire two", ("heap.store(places, of_rows, rank, peer, heap_bases, mask=tl.arange(0, BLOCK_M) < rows)", "pass")),
        ("our own part is not rounded", "rs push", ("acc = acc.to(inbox.dtype.element_ty).to(tl.float32)", "acc = acc"),
         {"equivalent": "nearer to the exact sum than what is allowed"}),
    ),
    *_in(
        "kernels/gemm_reduce_scatter/device.py",
        ("one slot", "rs push", ("slot = epoch & 1 ", "slot = epoch & 0 ")),
        ("one slot", "rs pull", ("slot = epoch & 1 ", "slot = epoch & 0 ")),
        ("rank 1 is in the other slot", "rs push", ("slot = epoch & 1 ", "slot = (epoch + rank) & 1 ")),
        ("tiles are signalled before they are stored", "rs push", (RS_SIGNAL, "                pass\n"), (RS_SEND, RS_SIGNAL[4:] + RS_SEND)),
        ("each tile signals its unit", "rs units", ("last_of(sent + owner * units + unit, in_unit))", "in_unit > 0)")),
        ("the last late signal is forgotten", "rs late", ("    if LATE:\n" + RS_LATE, "\n")),
        ("waits for the launch before", "rs push", ("tiles, arrivals, epoch + 1, rank, heap_bases, status,\n", "tiles, arrivals, epoch, rank, heap_bases, status,\n")),
        ("sums before the copies have come", "rs copies", (DONE + "    for back", "    for back")),
        ("no residual", "rs residual copies", ("        acc += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)\n", "        pass\n", 2)),
        ("no residual", "rs residual gather", ("        acc += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)\n", "        pass\n", 2)),
        ("no bias", "rs copies", ("        acc += tl.load(bias + place % N, mask=inside, other=0.0).to(tl.float32)\n", "        pass\n", 2)),
        ("products are read before they are whole", "rs gather", ("    wait_for_all(ready, epoch + 1, status, spin_limit, WORLD)\n    for back", "    for back")),
        ("the product is overwritten while peers read it", "rs gather", ("        arrive(done, rank, heap_bases, WORLD)\n    " + DONE, "        pass\n")),
        ("a peer's part is not added", "rs gather", ("    for back in tl.static_range(1, WORLD):\n        source = (rank + WORLD - back) % WORLD\n        acc +=", "    for back in tl.static_range(2, WORLD):\n        source = (rank + WORLD - back) % WORLD\n        acc +=")),
    ),
    *_in(
        "kernels/gemm_reduce_scatter/copy_engine.py",
        ("inboxes are overwritten while they are summed", "rs copies", ("            self._enter.run()\n", "            pass\n")),
        ("a chunk is not multiplied", "rs copies", ("    for begin in range(0, m, transfer_rows):", "    for begin in range(transfer_rows, m, transfer_rows):")),
    ),
    *_in(
        "kernels/gemm_all_reduce/device.py",
        ("one slot", "ar one", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("one slot", "ar two", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("one slot", "ar separate ll", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("one slot", "ar two ll", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2),
         ANSWERED),
        ("one slot", "ar separate sentinel", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("one slot", "ar gather", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("the epoch stays", "ar gather", ("tl.program_id(0) == first)", "tl.program_id(0) < 0)")),
        ("no residual", "ar gather", ("    acc = read_tile(parts, tile, BLOCK_M, BLOCK_N).to(tl.float32)\n", "    acc = read_tile(parts, tile, BLOCK_M, BLOCK_N).to(tl.float32)\n    residual = None\n")),
        ("the first part for all", "ar gather", ("acc = read_tile(parts, tile,", "acc = read_tile(parts, tile * 0,")),
        ("parts are not waited for", "ar one", ("        wait_in_slot(counter, epoch, SOURCES, status, spin_limit)\n", "")),
        ("waits for all parts but one", "ar one", ("epoch, SOURCES, status", "epoch, SOURCES - 1, status")),
        ("waits for the slot's launch before", "ar two", ("(counter, epoch, SOURCES", "(counter, epoch - 2, SOURCES")),
        ("tiles are signalled before they are stored", "ar two", (AR_SENT + AR_SIGNAL, AR_SIGNAL + AR_SENT)),
        ("tiles are signalled before they are stored", "ar one", (AR_SENT + AR_SIGNAL, AR_SIGNAL + AR_SENT)),
        ("the owner adds no bias", "ar two", ("                total = add_bias(total, bias, n * BLOCK_N, N, BLOCK_N)\n", "                total = total\n")),
        ("the owner adds no residual", "ar residual two", ("                total = add_residual(total,", "                total + 0 * add_residual(total,")),
        ("the owner and every rank add the residual", "ar residual two", ("residual=residual if MODE != TWO_SHOT else None", "residual=residual")),
        ("bias twice", "ar two", ("False, BIAS and MODE != TWO_SHOT,", "False, BIAS,")),
        ("rank 1 is an epoch ahead", "ar one", ("epoch = wide_epoch(epoch_counter)\n                traces.begin(trace, traces.SENT, item", "epoch = wide_epoch(epoch_counter) + rank\n                traces.begin(trace, traces.SENT, item")),
        ("finishes before it has read the epoch", "ar one", ("    if not PHASED:\n        finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)\n", ""), ("    pid = tl.program_id(0)\n    # Fetched", "    pid = tl.program_id(0)\n    finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)\n    # Fetched")),
        ("results are sent to the wrong tile", "ar two", ("total, results, here, returns", "total, results, slot * tiles, returns")),
    ),
    *_in(
        "kernels/gemm_all_reduce/own_collective.py",
        ("every rank adds the bias", "ar gather", ("tensors.bias if heap.rank == 0 else None", "tensors.bias")),
        ("the all-reduce does not wait for its GEMM", "ar gather", ("wait([self._reducing], [main])", "pass"), GPU),
        ("the call does not wait for its all-reduces", "ar gather", ("wait([main], [self._reducing])", "pass"), GPU),
    ),
    *_in(
        "kernels/all_reduce_norm/device.py",
        ("one slot", "arn one", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("one slot", "arn two", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("one slot", "arn ll", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("parts are not waited for", "arn one", ("        wait_in_slot(counter, epoch, SIGNALS, status, spin_limit)\n", "")),
        ("waits for all parts but one", "arn one", ("epoch, SIGNALS, status", "epoch, SIGNALS - 1, status")),
        ("rows are signalled before they are stored", "arn two", (ARN_SENT + ARN_SIGNAL, ARN_SIGNAL + ARN_SENT)),
        ("sums are sent to the wrong block", "arn two", ("part, sums, here, returns", "part, sums, slot * blocks, returns")),
        ("every sender sends the first columns", "arn senders", ("block, column = pid // SENDERS, pid % SENDERS * WIDTH", "block, column = pid // SENDERS, 0")),
        ("the last row is not sent", "arn one", ("inside = (row + rows < M)[:, None] & (columns < N // PER_WORD)", "inside = (row + rows < M - 1)[:, None] & (columns < N // PER_WORD)")),
        ("no residual", "arn one", ("(acc + residual.to(tl.float32))", "(acc + 0 * residual.to(tl.float32))")),
        ("the norm is of the sum without the residual", "arn two", ("scale = 1.0 / tl.sqrt(tl.sum(acc * acc,", "bare = acc - residual.to(tl.float32)\n    scale = 1.0 / tl.sqrt(tl.sum(bare * bare,")),
        ("the mean is over the padded row", "arn one", ("/ N + eps)", "/ BLOCK_N + eps)")),
        ("no eps", "arn one", ("/ N + eps)", "/ N)")),
        ("no weight", "arn one", (" * weight.to(tl.float32)", "")),
        ("rank 1 is an epoch ahead", "arn ll", ("epoch = wide_epoch(epoch_counter)\n", "epoch = wide_epoch(epoch_counter) + rank\n")),
    ),
    *_in(
        "kernels/moe/plan.py",
        ("one slot of the routing", "md push", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("the routing is not waited for", "md push", ("        late = heap.wait_each(arrivals + slot * WORLD + ranks, ranks < WORLD, target, status, spin_limit)\n", "")),
        ("the routing of rank 0 alone is waited for", "md push", ("ranks < WORLD, target, status", "ranks < 1, target, status")),
        ("the routing is signalled before it is stored", "md push", (ROUTED_SIGNAL, ""), ("    for begin in range(part * STEP, pairs, parts * STEP):\n", ROUTED_SIGNAL + "    for begin in range(part * STEP, pairs, parts * STEP):\n")),
        ("words of gates are those of ids", "md ll", ("heap.store(place + pairs + number, gate,", "heap.store(place + pairs + number, chosen,")),
        ("an expert counts those before it twice", "md push", ("    row = 0\n    of_lower = 0\n", "    row = expert\n    of_lower = 0\n")),
        ("the last expert of a rank is the next rank's first", "md push", ("    first = rank * local\n", "    first = rank * local + 1\n")),
        ("pairs of an expert are in no order", "md push", ("place = row + tl.cumsum(count, axis=0) - count", "place = row + tl.sum(count, axis=0) - tl.cumsum(count, axis=0)")),
        ("gates of the pair before", "md push", ("tl.store(listed_gates + place, gate", "tl.store(listed_gates + (place + 1) % capacity, gate")),
    ),
    *_in(
        "kernels/moe/tokens.py",
        ("one slot of tokens", "md push", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 3)),
        ("tokens are signalled before they are stored", "md push", (TOKENS_SIGNAL, ""), ("        for column in range(unit % SPLIT * COLUMNS, H, SPLIT * COLUMNS):\n", TOKENS_SIGNAL + "        for column in range(unit % SPLIT * COLUMNS, H, SPLIT * COLUMNS):\n")),
        ("a token goes to the rank of its first expert alone", "md push", ("    return tl.where(chosen >= 0, chosen // local, WORLD)\n", "    return tl.where((chosen >= 0) & (places == 0), chosen // local, WORLD)\n")),
        ("an expert's rank is the one before", "md pull", ("tl.where(chosen >= 0, chosen // local, WORLD)", "tl.where(chosen >= 0, (chosen + 1) // local, WORLD)")),
        ("the last token of a block stays", "md push", ("inside = (tokens < T)[:, None] & (columns < H)[None, :]\n            value = tl.load(x + tokens", "inside = (tokens < T - 1)[:, None] & (columns < H)[None, :]\n            value = tl.load(x + tokens")),
        ("each part sends the first columns", "md split", ("range(unit % SPLIT * COLUMNS, H, SPLIT * COLUMNS)", "range(0, H, SPLIT * COLUMNS)")),
        ("tokens are not waited for", "md push", ("    return heap.wait_each(counters, wanted, target, status, spin_limit)\n", "    return 0\n")),
        ("one part of a block is waited for", "md split", ("target = (((epoch >> 1) + 1) * signals)", "target = (((epoch >> 1) + 1) * signals - 1)")),
        ("a peer's tokens are read before they are in place", "md pull", ("late = heap.wait(routings + slot * WORLD + source, target, status, spin_limit)", "late = heap.wait(routings + slot * WORLD + rank, target, status, spin_limit)")),
        ("nobody is told: done", "md pull", ("    heap.signal_each(done + rank, rank, heap_bases, WORLD, 0)\n", "")),
        ("words of the upper half are those of the lower", "md ll", ("high = ((found >> 16) & 0xFFFF)", "high = (found & 0xFFFF)")),
    ),
    *_in(
        "kernels/moe/arrivals.py",
        ("the plan is not waited for", "md push", ("    wait_in_slot(planned + (epoch & 1).to(tl.int32), epoch, local, status, spin_limit)\n", "    pass\n"), GPU),
        ("peers are not waited for: done", "md pull", ("            wait_for_all(done, ((epoch + 1) * comm_programs).to(tl.int32), status, spin_limit, WORLD)\n", "            pass\n")),
        ("the plan of one expert is waited for", "mdg push", ("epoch, local, status, spin_limit)\n", "epoch, 1, status, spin_limit)\n"), GPU),
    ),
    *_in(
        "kernels/moe_dispatch/device.py",
        ("the last row stays", "md push", ("exists = row < end\n", "exists = row < end - 1\n")),
        ("rows are read from the other slot", "md push", ("slot = (epoch & 1).to(tl.int32)", "slot = ((epoch + 1) & 1).to(tl.int32)")),
        ("rank 1 is an epoch ahead", "md ll", ("epoch = wide_epoch(epoch_counter)\n", "epoch = wide_epoch(epoch_counter) + rank\n")),
    ),
    *_in(
        "kernels/moe_dispatch_gemm/device.py",
        ("rows are read from the other slot", "mdg push", ("slot = (epoch & 1).to(tl.int32)", "slot = ((epoch + 1) & 1).to(tl.int32)")),
        ("tokens are not waited for", "mdg push", ("        late = wait_for_tokens(\n            arrivals, token, token // T != rank, T, SPLIT, epoch, status, spin_limit, WORLD, TOKENS\n        )  # fmt: skip\n", "        late = 0\n")),
        ("tokens of rank 0 alone", "mdg pull", ("there = slot.to(tl.int64) * WORLD * T + token + late", "there = slot.to(tl.int64) * WORLD * T + token % T + late")),
        ("the last of the depth is lost", "mdg push", ("inbox, there * H), row, H, b,", "inbox, there * H), row, H - 8, b,")),
        ("a peer's token is taken for our own", "mdg own", ("ours = token // T == rank", "ours = token // T != rank")),
        ("a tile with others' rows waits for none", "mdg own", ("token // T != rank, T, SPLIT", "(token // T != rank) & (tile < 0), T, SPLIT")),
        ("rank 1 is an epoch ahead", "mdg ll", ("epoch = wide_epoch(epoch_counter)\n", "epoch = wide_epoch(epoch_counter) + rank\n")),
    ),
    *_in(
        "kernels/primitives/ll.py",
        ("words of every launch are alike", "ar ll", ALIKE),
        ("words of every launch are alike", "ar two ll", ALIKE),
        ("words are not waited for", "ar ll", (POLLING, POLLING.replace("missing > 0", "missing < 0")), (TIMED_OUT, "")),
        ("words are not waited for", "fd ll", (POLLING, POLLING.replace("missing > 0", "missing < 0")), (TIMED_OUT, "")),
        ("words of every launch are alike", "fd ll", ALIKE),
        ("words of every launch are alike", "mc ll", ALIKE),
    ),
    *_in(
        "kernels/moe/sums.py",
        ("one slot", "mc push", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 5)),
        ("the last of a token's rows is left out", "mc push", ("exists[:, None] & (choice < K), other=0)", "exists[:, None] & (choice < K - 1), other=0)")),
        ("rows of other launches count", "mc push", ("here = (place >> 32).to(tl.int32) == flag", "here = (place >> 32) != 0")),
        ("no gates", "mc push", ("tl.sum(gate[:, :, None] * value.to(tl.float32), axis=1)", "tl.sum(0 * gate[:, :, None] + value.to(tl.float32), axis=1)")),
        ("sums are not waited for", "mc push", ("        late = heap.wait(arrivals + (slot * blocks + block) * SPLIT + unit % SPLIT, target, status, spin_limit)\n", "        late = 0\n")),
        ("sums are not waited for", "mc pull", ("        late = heap.wait(arrivals + (slot * blocks + block) * SPLIT + unit % SPLIT, target, status, spin_limit)\n", "        late = 0\n")),
        ("waits for all ranks but one", "mc push", ("((epoch >> 1) + 1) * WORLD)", "((epoch >> 1) + 1) * (WORLD - 1))")),
        ("sums are signalled before they are stored", "mc push", (MC_SIGNAL, ""), (MC_BEGIN, MC_SIGNAL + MC_BEGIN)),
        ("a rank's sums are left out", "mc push", ("for source in tl.static_range(WORLD):", "for source in tl.static_range(1, WORLD):")),
        ("sums that were not sent are added", "mc push", ("goes_to(owner, source)[:, None]", "(token < T)[:, None]")),
        ("a rank reads its own sums for others'", "mc pull", ("heap.load(place, rank, source,", "heap.load(place, rank, rank,")),
        ("the last row is not sent", "mc one", ("range(part, end * SPLIT, parts)", "range(part, (end - 1) * SPLIT, parts)")),
        ("rows go to another's place", "mc one", ("row = (slot * T * K + pair % (T * K))", "row = (slot * T * K + (pair + 1) % (T * K))")),
        ("places without expert are added", "mc one", ("mask=token < T, other=-1)\n                    chosen = (chosen >= 0) & (chosen < experts)", "mask=token < T, other=-1)\n                    chosen = chosen < experts")),
        ("no gates", "mgc one", ("(acc * gate[:, None]).to(TYPE)", "(acc + 0 * gate[:, None]).to(TYPE)")),
    ),
    *_in(
        "kernels/moe_combine/device.py",
        ("rows are not waited for", "mc one", ("            wait_in_slot(arrivals + slot, epoch, WORLD * sending, status, spin_limit)\n", "            pass\n")),
        ("places are not waited for", "mc push", ("            wait_in_slot(placed + slot, epoch, placing, status, spin_limit)\n", ""), GPU),
        ("peers may not have read", "mc ll", ("                wait_for_all(done, epoch.to(tl.int32) - 1, status, spin_limit, WORLD)\n", "                pass\n")),
        ("does not say that it has read", "mc ll", ("            arrive(done, rank, heap_bases, WORLD)\n", "            pass\n")),
        ("rank 1 is an epoch ahead", "mc push", ("epoch = wide_epoch(epoch_counter)\n", "epoch = wide_epoch(epoch_counter) + rank\n")),
    ),
    *_in(
        "kernels/moe_gemm_combine/device.py",
        ("a rank without rows says nothing", "mgc idle", ("(rows_of_tiles == 0) & (part == 0)", "(rows_of_tiles < 0) & (part == 0)")),
        ("a rank without rows says nothing", "mgc idle one", ("(rows_of_tiles == 0) & (part == 0)", "(rows_of_tiles < 0) & (part == 0)")),
        ("all groups compute the first columns", "mgc push", ("column = (group * wide + n) * BLOCK_N", "column = n * BLOCK_N")),
        ("the last group is not sent", "mgc push", ("for group in range(GROUPS):\n                late", "for group in range(GROUPS - 1):\n                late")),
        ("products are not waited for", "mgc push", ("late = heap.wait(ready + group, epoch.to(tl.int32) + 1, status, spin_limit)", "late = 0"), GPU),
        ("rows are not waited for", "mgc one", ("            wait_in_slot(arrivals + slot, epoch, WORLD, status, spin_limit)\n", "            pass\n")),
        ("the last tile is left out", "mgc one", ("range(part, rows_of_tiles * tiles_n, parts)", "range(part, rows_of_tiles * tiles_n - 1, parts)")),
    ),
    *_in(
        "kernels/moe/grouped_gemm.py",
        ("one expert's B for all", "mgc push", ("b + expert.to(tl.int64) * stride_be", "b + 0 * expert.to(tl.int64) * stride_be")),
        ("the last of K is lost", "mgc push", ("tile = tl.load(pointers, mask=(ks < K)[:, None], other=0.0)", "tile = tl.load(pointers, mask=(ks < K - 1)[:, None], other=0.0)")),
        ("a tile has the next expert's rows", "mgc one", ("first, end = tl.load(offsets + expert), tl.load(offsets + expert + 1)\n    m, n", "first, end = tl.load(offsets + expert), tl.load(offsets + expert + 1) + 1\n    m, n")),
        ("tiles behind our own are left out", "mdg own", ("tl.where(m < begin, 0, count))", "0)")),
    ),
    *_in(
        "kernels/primitives/sentinel.py",
        ("words are not waited for", "ar sentinel", (POLLING, POLLING.replace("missing > 0", "missing < 0")), (TIMED_OUT, "")),
        ("words are not waited for", "arn sentinel", (POLLING, POLLING.replace("missing > 0", "missing < 0")), (TIMED_OUT, "")),
        ("words are not emptied", "ar sentinel", (EMPTIED, "")),
        ("words are not emptied", "ar two sentinel", (EMPTIED, "")),
        ("words are not emptied", "arn sentinel", (EMPTIED, "")),
        ("a zero goes as an empty word", "ag words", *ZERO_LOST),
        ("a zero goes as an empty word", "ar sentinel", *ZERO_LOST),
        ("a zero goes as an empty word", "ar two sentinel", *ZERO_LOST),
        ("a zero goes as an empty word", "arn sentinel", *ZERO_LOST),
        ("a zero goes as an empty word", "fd sentinel", *ZERO_LOST),
        ("one word that comes is enough", "ar sentinel", ("    missing = tl.sum(((words == 0) & mask).to(tl.int32))\n    spins", "    missing = tl.min(((words == 0) & mask).to(tl.int32))\n    spins")),
    ),
    *_in(
        "kernels/gemm_all_reduce/polled_tiles.py",
        ("a rank's part is left out", "ar sentinel", ("    words = sentinel_take(pointers,", "    exists = exists & (tl.arange(0, triton.next_power_of_2(SOURCES)) > 0)[:, None, None]\n    words = sentinel_take(pointers,")),
    ),
    *_in(
        "kernels/flash_decode/exchange.py",
        ("one slot", "fd kernel", ("(epoch & 1) * WORLD + rank", "(epoch & 0) * WORLD + rank"), ("slot = epoch & (SLOTS - 1)", "slot = epoch & 0")),
        ("one slot", "fd two shot", ("(epoch & 1) * WORLD + rank", "(epoch & 0) * WORLD + rank"), ("slot = epoch & (SLOTS - 1)", "slot = epoch & 0"),
         ANSWERED),
        ("one slot", "fd kernel ll", ("(epoch & 1) * WORLD + rank", "(epoch & 0) * WORLD + rank"), ("slot = epoch & (SLOTS - 1)", "slot = epoch & 0")),
        ("results are read from the other slot", "fd signal", ("slot = epoch & (SLOTS - 1)", "slot = (epoch + 1) & (SLOTS - 1)")),
        ("units are not waited for", "fd signal", ("    heap.wait_each(arrivals + unit + sources * units, sources < WORLD, epoch + 1, status, spin_limit)\n", "    pass\n")),
        ("waits for the launch before", "fd kernel", ("sources < WORLD, epoch + 1, status", "sources < WORLD, epoch, status")),
        ("units are announced before they are delivered", "fd kernel", (FD_ANNOUNCE + FD_PUSH, FD_PUSH), (FD_REDUCE, FD_REDUCE + FD_ANNOUNCE)),
        ("outputs are read before they have come back", "fd two shot", ("        heap.wait(returns + unit, epoch + 1, status, spin_limit)\n", "        pass\n")),
        ("a rank's part is left out", "fd signal", ("rows, valid, WORLD, D, CHUNK)", "rows, valid, WORLD - 1, D, CHUNK)")),
        ("a split is left out", "fd signal", ("valid, splits, D, CHUNK)", "valid, splits - 1, D, CHUNK)")),
        ("one slot", "fd kernel sentinel", ("(epoch & 1) * WORLD + rank", "(epoch & 0) * WORLD + rank"), ("slot = epoch & (SLOTS - 1)", "slot = epoch & 0")),
        ("values are not emptied", "fd sentinel", ("words = sentinel_take(place,", "words = sentinel_wait(place,"), GPU),
        ("log-sum-exps are not emptied", "fd sentinel", ("    sentinel_empty(place_lse, there)\n", "    pass\n")),
        ("log-sum-exps are not waited for", "fd sentinel", ("    sentinel_wait(place_lse, there, status, spin_limit)\n", "    pass\n")),
        ("an empty log-sum-exp is sent", "fd sentinel", ("sent_lse = sentinel_bits(lse)", "sent_lse = sentinel_bits(lse) * (rows % 2)")),
        ("values are sent to all in place of their owner", "fd heads sentinel", ("        if DELIVERY == TWO_SHOT or OWNED > 0:\n            combiner =", "        if DELIVERY == TWO_SHOT:\n            combiner =")),
        ("heads of all sequences fall together", "fd heads", ("first - first // (WORLD * OWNED) * OWNED - first % OWNED", "first - first % OWNED")),
        ("heads go to another owner", "fd heads", ("owner = first // OWNED % WORLD", "owner = (first // OWNED + 1) % WORLD")),
        ("an owner's heads are not waited for", "fd heads", ("    heap.wait_each(arrivals + unit + sources * units, sources < WORLD, epoch + 1, status, spin_limit)\n", "    pass\n")),
        ("who keeps no heads combines them", "fd heads ll", ("        here = combiner_of(unit, owner, WORLD, DELIVERY) == rank\n", "        pass\n")),
        ("an owner is told nothing", "fd heads", ("heap.signal(counter, combiner_of(unit, owner, WORLD, DELIVERY), rank, heap_bases)", "heap.signal(counter, rank, rank, heap_bases)")),
        ("one slot", "fd heads kernel ll", ("(epoch & 1) * WORLD + rank", "(epoch & 0) * WORLD + rank"), ("slot = epoch & (SLOTS - 1)", "slot = epoch & 0")),
        ("records of all owners fall together", "fd heads gather", ("    if OWNED > 0:\n        mine +=", "    if OWNED < 0:\n        mine +=")),
        ("log-sum-exps are not sent", "fd signal", ("                heap.store(place_lse, sent_lse, rank, peer, heap_bases, mask=valid)\n", "                pass\n")),
    ),
    *_in(
        "kernels/flash_decode/device.py",
        ("the keys' scale is dropped", "fd cache", ("        scale *= tl.load(key_scale)\n", "        pass\n")),
        ("the values' scale is dropped", "fd cache", ("        acc *= tl.load(value_scale)\n", "        pass\n")),
        ("the first head's scales for all", "fd cache", ("of_head = kv_row % kv_heads if SCALE_OF_HEAD else 0", "of_head = 0")),
        ("the last token counts twice", "fd signal", ("(start + tl.arange(0, BLOCK_N) < end)[None, :]", "(start + tl.arange(0, BLOCK_N) < end + 1)[None, :]")),
        ("the last token is lost", "fd signal", ("(start + tl.arange(0, BLOCK_N) < end)[None, :]", "(start + tl.arange(0, BLOCK_N) < end - 1)[None, :]")),
        ("sums are not rescaled", "fd signal", ("total = total * alpha + tl.sum(weights, axis=1)", "total = total + tl.sum(weights, axis=1)")),
        ("no soft cap", "fd cap", ("if CAP > 0:", "if CAP > 1000:")),
        ("the last split but one reduces", "fd last", ("if before + 1 == target:", "if before + 2 == target:")),
        ("splits are reduced before they are there", "fd signal", ("        heap.wait(arrived + first_unit // UNITS, target, status, spin_limit)\n", "        pass\n"), GPU),
        ("records are combined before they have come", "fd gather", ("    if WAIT:\n        first, _ =", "    if WAIT and WORLD == 1:\n        first, _ =")),
    ),
    *_in(
        "kernels/primitives/softmax.py",
        ("weights ignore the other's size", "fd signal", ("weights = tl.exp2(lse - shift[None, :])", "weights = tl.exp2(lse * 0.0)")),
        ("a merged part keeps its own size", "fd signal", ("return acc, total * alpha + tl.sum(weights, axis=0), new_max", "return acc, total + tl.sum(weights, axis=0), new_max"),
         {"equivalent": "at two ranks and two splits all parts are taken in at once: what fades is zero"}),
    ),
]  # fmt: skip
