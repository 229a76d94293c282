"""Mutants of GEMM + reduce-scatter, GEMM + all-reduce and all-reduce + RMSNorm."""

from __future__ import annotations

from mutants.table import ANSWERED, DONE, GPU, Mutant, rows_of

RS_SEND = "            send_tile(acc, inbox, inbox_scales, place, rank if PULL else owner, peers)\n"
RS_SIGNAL = "                announce(index, tiles, sent, arrivals, owner, peers, TRANSFER_TILES)\n"
RS_LATE = "        announce(stored_index, tiles, sent, arrivals, stored_owner, peers, TRANSFER_TILES)\n\n"
DELIVERED = "    for turn in tl.static_range(PEERS):\n"
DELIVERY_SIGNAL = """    if FORM.PROTOCOL == SIGNAL:
        if PEERS == 1:
            heap.signal(counter, first, peers)
        else:
            heap.signal_each(counter, peers, FORM.WORLD, 0)
"""
SIGNALLED_FIRST = (DELIVERY_SIGNAL, ""), (DELIVERED, DELIVERY_SIGNAL + DELIVERED)
ONE_SLOT = ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)
OWNER_ADDS = ("            total = finished(total, out, row, column)\n", "")
ALL_ADD = (
    "    if FORM.MODE == ONE_SHOT:\n        acc = finished",
    "    if FORM.MODE >= ONE_SHOT:\n        acc = finished",
)

MUTANTS: list[Mutant] = [
    *rows_of(
        "kernels/gemm_reduce_scatter/device.py",
        ("one slot", "rs push", ("slot = (epoch & 1).to(tl.int32)  #", "slot = (epoch & 0).to(tl.int32)  #")),
        ("one slot", "rs pull", ("slot = (epoch & 1).to(tl.int32)  #", "slot = (epoch & 0).to(tl.int32)  #")),
        ("rank 1 is in the other slot", "rs push", ("slot = (epoch & 1).to(tl.int32)  #", "slot = ((epoch + rank) & 1).to(tl.int32)  #")),
        ("tiles are signalled before they are stored", "rs push", (RS_SIGNAL, "                pass\n"), (RS_SEND, RS_SIGNAL[4:] + RS_SEND)),
        ("each tile signals its unit", "rs units", ("last_of(sent + owner * units + unit, in_unit))", "in_unit > 0)")),
        ("the last late signal is forgotten", "rs late", ("    if NEXT_TURN:\n" + RS_LATE, "\n")),
        ("waits for the launch before", "rs push", ("units, epoch + 1, peers", "units, epoch, peers")),
        ("sums before the copies have come", "rs copies", (DONE + "    for back", "    for back")),
        ("no residual", "rs residual copies", ("        acc += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)\n", "        pass\n")),
        ("no residual", "rs residual gather", ("        acc += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)\n", "        pass\n")),
        ("no bias", "rs copies", ("        acc += tl.load(bias + place % N, mask=inside, other=0.0).to(tl.float32)\n", "        pass\n")),
        ("products are read before they are whole", "rs gather", ("    wait_for_all(ready, epoch + 1, peers, WORLD)\n    for back", "    for back")),
        ("the product is overwritten while peers read it", "rs gather", ("        arrive(done, peers, WORLD)\n    " + DONE, "        pass\n")),
        ("a peer's part is not added", "rs gather", ("    for back in tl.static_range(1, WORLD):\n        source = (rank + WORLD - back) % WORLD\n        acc +=", "    for back in tl.static_range(2, WORLD):\n        source = (rank + WORLD - back) % WORLD\n        acc +=")),
    ),
    *rows_of(
        "kernels/gemm_reduce_scatter/copy_engine.py",
        ("inboxes are overwritten while they are summed", "rs copies", ("            self._enter.run()\n", "            pass\n")),
        ("a chunk is not multiplied", "rs copies", ("    for begin in range(0, m, unit):", "    for begin in range(unit, m, unit):")),
    ),
    *rows_of(
        "kernels/gemm_all_reduce/device.py",
        ("the epoch stays", "ar gather", ("tl.num_programs(0), tile == 0)", "tl.num_programs(0), tile < 0)")),
        ("no residual", "ar gather", ("    acc = read_tile(parts,", "    out = Output(out.c, out.rows, out.columns, out.bias)\n    acc = read_tile(parts,")),
        ("rows of the product are stored", "rs one", ("        row -= peers.rank * block.owned\n", "")),
        ("the first part for all", "ar gather", ("acc = read_tile(parts, None, tile,", "acc = read_tile(parts, None, tile * 0,")),
        ("the owner and every rank add the residual", "ar residual two", ALL_ADD),
        ("bias twice", "ar two", ALL_ADD),
        ("rank 1 is an epoch ahead", "ar one", ("epoch = read_epoch(epoch_counter)\n            traces.begin(trace, traces.SENT, item", "epoch = read_epoch(epoch_counter) + rank\n            traces.begin(trace, traces.SENT, item")),
        ("finishes before it has read the epoch", "ar one", ("    finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)\n", ""), ("    pid = tl.program_id(0)\n    # Fetched", "    pid = tl.program_id(0)\n    finish_unordered(epoch_counter, tl.num_programs(0), pid == 0)\n    # Fetched")),
    ),
    *rows_of(
        "kernels/gemm_all_reduce/library.py",
        ("every rank adds the bias", "ar gather", ("tensors.bias if heap.rank == 0 else None", "tensors.bias")),
        ("the all-reduce does not wait for its GEMM", "ar gather", ("wait([self._reducing], [main])", "pass"), GPU),
        ("the call does not wait for its all-reduces", "ar gather", ("wait([main], [self._reducing])", "pass"), GPU),
    ),
    *rows_of(
        "kernels/all_reduce_norm/device.py",
        ("every sender sends the first columns", "arn senders", ("number, column = pid // SENDERS, pid % SENDERS * WIDTH", "number, column = pid // SENDERS, 0")),
        ("no residual", "arn one", ("(acc + residual.to(tl.float32))", "(acc + 0 * residual.to(tl.float32))")),
        ("the norm is of the sum without the residual", "arn two", ("scale = tl.rsqrt(tl.sum(acc * acc,", "bare = acc - residual.to(tl.float32)\n    scale = tl.rsqrt(tl.sum(bare * bare,")),
        ("the mean is over the padded row", "arn one", ("tl.cast(N, tl.float32)", "tl.cast(acc.shape[1], tl.float32)")),
        ("scales of the row before", "arn fp8", ("put_tile(of_rows, from_row(results.scales, row, columns)", "put_tile(of_rows, from_row(results.scales, row + 1, columns)")),
        ("the norm is twice as large", "arn fp8", ("parts = tl.reshape(value, (acc.shape[0] * PARTS, GROUP))", "parts = tl.reshape(value * 2, (acc.shape[0] * PARTS, GROUP))")),
        ("the total is fp8's", "arn fp8", ("put_tile(acc, from_row(results.total, row, N), 0, 0, M - row, N)", "put_tile(acc.to(tl.float8e4nv), from_row(results.total, row, N), 0, 0, M - row, N)")),
        ("no eps", "arn one", ("(root * root) + eps)", "(root * root))")),
        ("no weight", "arn one", (" * weight.to(tl.float32)", "")),
        ("rank 1 is an epoch ahead", "arn ll", ("epoch = read_epoch(epoch_counter)\n", "epoch = read_epoch(epoch_counter) + rank\n")),
    ),
    *rows_of(
        "kernels/primitives/all_reduce.py",
        ("one slot", "ar one", ONE_SLOT),
        ("one slot", "ar two", ONE_SLOT),
        ("one slot", "ar separate ll", ONE_SLOT),
        ("one slot", "ar two ll", ONE_SLOT,
         ANSWERED),
        ("one slot", "ar separate sentinel", ONE_SLOT),
        ("one slot", "ar gather", ONE_SLOT),
        ("parts are not waited for", "ar one", ("        wait_in_slot(counter, epoch, SIGNALS, peers)\n", "")),
        ("waits for all parts but one", "ar one", ("epoch, SIGNALS, peers", "epoch, SIGNALS - 1, peers")),
        ("waits for the slot's launch before", "ar two", ("(counter, epoch, SIGNALS", "(counter, epoch - 2, SIGNALS")),
        ("tiles are signalled before they are stored", "ar two", *SIGNALLED_FIRST),
        ("tiles are signalled before they are stored", "ar one", *SIGNALLED_FIRST),
        ("the owner adds no bias", "ar two", OWNER_ADDS),
        ("the owner adds no residual", "ar residual two", OWNER_ADDS),
        ("results are sent to the wrong tile", "ar two", ("total, boxes.results, here,", "total, boxes.results, slot * block.blocks,")),
        ("one slot", "arn one", ONE_SLOT),
        ("one slot", "arn two", ONE_SLOT),
        ("one slot", "arn ll", ONE_SLOT),
        ("parts are not waited for", "arn one", ("        wait_in_slot(counter, epoch, SIGNALS, peers)\n", "")),
        ("waits for all parts but one", "arn one", ("epoch, SIGNALS, peers", "epoch, SIGNALS - 1, peers")),
        ("rows are signalled before they are stored", "arn two", *SIGNALLED_FIRST),
        ("sums are sent to the wrong block", "arn two", ("total, boxes.results, here,", "total, boxes.results, slot * block.blocks,")),
        ("one slot", "rs one", ONE_SLOT),
        ("parts are not waited for", "rs one", ("        wait_in_slot(counter, epoch, SIGNALS, peers)\n", "")),
        ("an owner's first row is not sent", "rs one sentinel", ("(rows >= ahead) &", "(rows > ahead) &")),
        ("all get the first owner's rows", "rs one", ("ahead = rank * block.owned", "ahead = 0 * block.owned")),
        ("the last row is not sent", "arn one", ("exists = rows < block.rows\n", "exists = rows < block.rows - 1\n")),
        ("a rank's part is left out", "ar sentinel", ("        words = sentinel_take(pointers,", "        wanted = wanted & (sources > 0)[:, None]\n        words = sentinel_take(pointers,")),
        ("a part is not added", "ar one", ("for source in tl.static_range(SOURCES):", "for source in tl.static_range(1, SOURCES):")),
        ("a row's scale on the wire is dropped", "ar wire", ("received(part, tl.load(places, mask=inside, other=0.0))", "part.to(tl.float32)")),
        ("scales on the wire are not sent", "ar wire two", ("heap.store(places, of_rows, peers.rank, peer, peers.bases, mask=inside)", "pass")),
    ),
]  # fmt: skip
