"""Mutants of GEMM + reduce-scatter, GEMM + all-reduce and all-reduce + RMSNorm."""

from __future__ import annotations

from mutants.table import ANSWERED, DONE, GPU, Mutant, rows_of

RS_SEND = """            send_tile(
                acc, inbox, place, rank if PULL else owner, rank, heap_bases, BLOCK_M, BLOCK_N, scales=inbox_scales
            )
"""
RS_SIGNAL = "                announce(index, tiles, sent, arrivals, owner, rank, heap_bases, TRANSFER_TILES)\n"
RS_LATE = "        announce(stored_index, tiles, sent, arrivals, stored_owner, rank, heap_bases, TRANSFER_TILES)\n\n"
ARN_SENT = "    for turn in tl.static_range(PEERS):\n        heap.store(place, value, rank, (first + turn) % WORLD, heap_bases, mask=inside, hint=(1, 16))\n"
ARN_SIGNAL = "    if PROTOCOL == SIGNAL:\n        if PEERS == 1:\n            heap.signal(counter, first, rank, heap_bases)\n        else:\n            heap.signal_each(counter, rank, heap_bases, WORLD, 0)\n"
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

MUTANTS: list[Mutant] = [
    *rows_of(
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
    *rows_of(
        "kernels/gemm_reduce_scatter/copy_engine.py",
        ("inboxes are overwritten while they are summed", "rs copies", ("            self._enter.run()\n", "            pass\n")),
        ("a chunk is not multiplied", "rs copies", ("    for begin in range(0, m, unit):", "    for begin in range(unit, m, unit):")),
    ),
    *rows_of(
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
    *rows_of(
        "kernels/gemm_all_reduce/own_collective.py",
        ("every rank adds the bias", "ar gather", ("tensors.bias if heap.rank == 0 else None", "tensors.bias")),
        ("the all-reduce does not wait for its GEMM", "ar gather", ("wait([self._reducing], [main])", "pass"), GPU),
        ("the call does not wait for its all-reduces", "ar gather", ("wait([main], [self._reducing])", "pass"), GPU),
    ),
    *rows_of(
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
    *rows_of(
        "kernels/gemm_all_reduce/polled_tiles.py",
        ("a rank's part is left out", "ar sentinel", ("    data = sentinel_take(pointers,", "    exists = exists & (tl.arange(0, triton.next_power_of_2(SOURCES)) > 0)[:, None, None]\n    data = sentinel_take(pointers,")),
    ),
]  # fmt: skip
