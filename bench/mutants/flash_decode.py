"""Mutants of flash decode."""

from __future__ import annotations

from mutants.table import ANSWERED, GPU, Mutant, rows_of

FD_ANNOUNCE = "    announce_unit(unit, owner, records, peers, FORM, DELIVERY)\n"
FD_DELIVER = "    kept, kept_lse = own_block(records, owner, FORM)\n    for tile"


def late(line: str) -> tuple[str, str]:
    """20 µs before a line: whoever has less to do comes early by itself."""
    indent = line[: len(line) - len(line.lstrip())]
    return (
        line,
        f'{indent}tl.inline_asm_elementwise("nanosleep.u32 20000; mov.u32 $0, 0;", "=r", [], tl.int32, False, 1)\n{line}',
    )


FD_FIRST = late("            key = ring.value.index(stage).permute((1, 0))\n")
FD_OTHER = late("            value = ring.value.index(stage).slice(HALF, HALF, dim=1)\n")

MUTANTS: list[Mutant] = [
    *rows_of(
        "kernels/flash_decode/exchange.py",
        ("one slot", "fd kernel", ("slot = (epoch & 1).to", "slot = (epoch & 0).to"), ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)")),
        ("one slot", "fd two shot", ("slot = (epoch & 1).to", "slot = (epoch & 0).to"), ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)"),
         ANSWERED),
        ("one slot", "fd kernel ll", ("slot = (epoch & 1).to", "slot = (epoch & 0).to"), ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)")),
        ("results are read from the other slot", "fd signal", ("slot = (epoch & (SLOTS - 1))", "slot = ((epoch + 1) & (SLOTS - 1))")),
        ("units are not waited for", "fd signal", ("    heap.wait_each(records.arrivals + unit + sources * records.units, sources < WORLD, epoch + 1, peers)\n", "    pass\n")),
        ("waits for the launch before", "fd kernel", ("sources < WORLD, epoch + 1, peers", "sources < WORLD, epoch, peers")),
        ("units are announced before they are delivered", "fd kernel", (FD_ANNOUNCE, ""), (FD_DELIVER, FD_ANNOUNCE + FD_DELIVER)),
        ("outputs are read before they have come back", "fd two shot", ("        heap.wait(records.returns + unit, epoch + 1, peers)\n", "        pass\n")),
        ("a rank's part is left out", "fd signal", ("rows, valid, FORM.WORLD, FORM.D,", "rows, valid, FORM.WORLD - 1, FORM.D,")),
        ("a program's part is left out", "fd signal", ("parts.programs, FORM.D,", "parts.programs - 1, FORM.D,")),
        ("parts of the program before", "fd cap", ("shift = tl.cast(parts.first, tl.int64)", "shift = tl.cast(parts.first - 1, tl.int64)")),
        ("one slot", "fd kernel sentinel", ("slot = (epoch & 1).to", "slot = (epoch & 0).to"), ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)")),
        ("values are not emptied", "fd sentinel", ("data = sentinel_take(place,", "data = sentinel_wait(place,"), GPU),
        ("log-sum-exps are not emptied", "fd sentinel", ("    sentinel_empty(place_lse, there)\n", "    pass\n")),
        ("weights ignore the other's size", "fd ll", ("weights = tl.exp2(lse - tl.where(largest == float(\"-inf\"), 0.0, largest)[None, :])", "weights = tl.exp2(lse * 0.0)")),
        ("a last row is not read", "fd sentinel", ("within // WORDS < count", "within // WORDS < count - 1")),
        ("log-sum-exps are not waited for", "fd sentinel", ("    sentinel_wait(place_lse, there, peers)\n", "    pass\n")),
        ("an empty log-sum-exp is sent", "fd sentinel", ("sent_lse = sentinel_bits(lse)", "sent_lse = sentinel_bits(lse) * (rows % 2)")),
        ("values are sent to all in place of their owner", "fd heads sentinel", ("        if DELIVERY == TWO_SHOT or FORM.OWNED > 0:\n            combiner =", "        if DELIVERY == TWO_SHOT:\n            combiner =")),
        ("heads of all sequences fall together", "fd heads", ("first - first // (FORM.WORLD * FORM.OWNED) * FORM.OWNED - first % FORM.OWNED", "first - first % FORM.OWNED")),
        ("heads go to another owner", "fd heads", ("owner = first // FORM.OWNED % FORM.WORLD", "owner = (first // FORM.OWNED + 1) % FORM.WORLD")),
        ("an owner's heads are not waited for", "fd heads", ("    heap.wait_each(records.arrivals + unit + sources * records.units, sources < WORLD, epoch + 1, peers)\n", "    pass\n")),
        ("who keeps no heads combines them", "fd heads ll", ("        here = combiner_of(unit, owner, FORM, DELIVERY) == rank\n", "        pass\n")),
        ("an owner is told nothing", "fd heads", ("heap.signal(counter, combiner_of(unit, owner, FORM, DELIVERY), peers)", "heap.signal(counter, peers.rank, peers)")),
        ("one slot", "fd heads kernel ll", ("slot = (epoch & 1).to", "slot = (epoch & 0).to"), ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)")),
        ("records of all owners fall together", "fd heads gather", ("    if FORM.OWNED > 0:\n        mine +=", "    if FORM.OWNED < 0:\n        mine +=")),
        ("log-sum-exps are not sent", "fd signal", ("                heap.store(place_lse, sent_lse, peers.rank, peer, peers.bases, mask=valid)\n", "                pass\n")),
    ),
    *rows_of(
        "kernels/flash_decode/device.py",
        ("the keys' scale is dropped", "fd cache", ("        scale *= tl.load(cache.key_scale)\n", "        pass\n")),
        ("the values' scale is dropped", "fd cache", ("        acc *= tl.load(cache.value_scale)\n", "        pass\n")),
        ("the first head's scales for all", "fd cache", ("of_head = kv_head if SCALE_OF_HEAD else 0", "of_head = 0")),
        ("the last token counts twice", "fd signal", ("(start + tl.arange(0, BLOCK_N) < end)[None, :]", "(start + tl.arange(0, BLOCK_N) < end + 1)[None, :]")),
        ("the last token is lost", "fd signal", ("(start + tl.arange(0, BLOCK_N) < end)[None, :]", "(start + tl.arange(0, BLOCK_N) < end - 1)[None, :]")),
        ("sums are not rescaled", "fd signal", ("total = total * alpha + tl.sum(weights, axis=1)", "total = total + tl.sum(weights, axis=1)")),
        ("the rotary elements are left out", "fd latent", ("logits = tl.dot(query_turned, tl.trans(key_turned), tl.dot(query, tl.trans(key)))", "logits = tl.dot(query, tl.trans(key))")),
        ("rows of a latent are as long as its values", "fd latent", ("width = cache.kv_heads * (D + ROPE)", "width = cache.kv_heads * D")),
        ("no soft cap", "fd cap", ("if FORM.CAP > 0:", "if FORM.CAP > 1000:")),
        ("the last program but one reduces", "fd last", ("if before + 1 == sharing:", "if before + 2 == sharing:")),
        ("arrivals stay for the next launch", "fd last", ("                    tl.store(arrived + group, 0)\n", "")),
        ("arrivals stay for the next launch", "fd signal", ("                tl.store(counter, 0)\n", ""), GPU),
        ("parts are reduced before they are there", "fd signal", ("                heap.wait(counter, count, peers)\n", "                pass\n"), GPU),
        ("records are combined before they have come", "fd gather", ("    if WAIT:\n        first, _ =", "    if WAIT and WORLD == 1:\n        first, _ =")),
    ),
    *rows_of(
        "kernels/flash_decode/specialized_kernel.py",
        ("steps are multiplied before they are there", "fd specialized", ("            mbarrier.wait(ring.ready.index(stage), (step // FORM.STAGES) & 1)\n", ""), GPU),
        ("steps are overwritten before they are multiplied", "fd specialized", ("            mbarrier.wait(ring.empty.index(stage), ((step // FORM.STAGES) & 1) ^ 1)\n", ""), GPU),
        ("weights are taken before they are there", "fd specialized", ("            mbarrier.wait(given.ready, taken & 1)\n            fence", "            fence"), GPU),
        ("weights are overwritten before they are taken", "fd specialized", ("            mbarrier.wait(given.empty, (sent & 1) ^ 1)\n            given.weights", "            given.weights"), FD_OTHER, GPU),
        ("queries are overwritten before they are multiplied", "fd specialized", ("            mbarrier.wait(query.empty, (turn & 1) ^ 1)\n", ""), FD_FIRST, GPU),
        ("the other half is not rescaled", "fd specialized", ("            acc *= given.factor.load(gl.SliceLayout(1, layout))[:, None]\n            value", "            value"), GPU),
    ),
    *rows_of(
        "kernels/flash_decode/shares.py",
        ("the last block is lost", "fd cap", ("return tl.cdiv(length, BLOCK_N) + 1", "return length // BLOCK_N")),
        ("a share ends a block early", "fd signal", ("tl.minimum(end, total).to(tl.int32)", "tl.minimum(end, total - 1).to(tl.int32)")),
        ("shares begin with the sequence before", "fd last even", ("(each < batch) & (ends <= block)", "(each < batch) & (ends < block)")),
    ),
    *rows_of(
        "kernels/primitives/softmax.py",
        ("weights ignore the other's size", "fd signal", ("weights = tl.exp2(part_lse - shift)", "weights = tl.exp2(part_lse * 0.0)")),
        ("a part is left out", "fd signal", ("there = valid & (first + each < parts)\n            part_lse", "there = valid & (first + each < parts - 1)\n            part_lse")),
        ("a merged part keeps its own size", "fd signal", ("        total *= alpha\n", ""),
         {"equivalent": "at two ranks and two parts all of them are taken in at once: what fades is zero"}),
    ),
]  # fmt: skip
