"""Mutants of flash decode."""

from __future__ import annotations

from mutants.table import ANSWERED, GPU, Mutant, rows_of

FD_ANNOUNCE = "    announce_unit(unit, units, owner, arrivals, rank, heap_bases, WORLD, OWNED, DELIVERY)\n"
FD_PUSH = "\n\n@triton.jit\ndef push_unit("
FD_REDUCE = (
    '    """Merge a unit\'s splits and deliver it. MEMORY, for ``tune taxes`` alone: by way of our own records."""\n'
    "    first, end = rows_of_unit(unit, heads_of_group, UNITS, BLOCKS, HPP, TRANSFER_HEADS)\n"
    "    owner, excess = home_of_unit(first, WORLD, OWNED)\n"
)

MUTANTS: list[Mutant] = [
    *rows_of(
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
        ("values are not emptied", "fd sentinel", ("data = sentinel_take(place,", "data = sentinel_wait(place,"), GPU),
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
    *rows_of(
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
    *rows_of(
        "kernels/primitives/softmax.py",
        ("weights ignore the other's size", "fd signal", ("weights = tl.exp2(lse - shift[None, :])", "weights = tl.exp2(lse * 0.0)")),
        ("a merged part keeps its own size", "fd signal", ("return acc, total * alpha + tl.sum(weights, axis=0), new_max", "return acc, total + tl.sum(weights, axis=0), new_max"),
         {"equivalent": "at two ranks and two splits all parts are taken in at once: what fades is zero"}),
    ),
]  # fmt: skip
