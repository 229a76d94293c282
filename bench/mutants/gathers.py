"""Mutants of all-gather + GEMM."""

from __future__ import annotations

from mutants.table import DONE, GPU, Mutant, rows_of

MUTANTS: list[Mutant] = [
    *rows_of(
        "kernels/all_gather_gemm/push.py",
        ("the gathered A is the other slot's", "ag gathered", ("(read_epoch(epoch_counter) - 1) & (SLOTS - 1)", "read_epoch(epoch_counter) & (SLOTS - 1)")),
        ("own rows are taken from the inbox", "ag gathered", ("if row // shard_rows == rank:", "if row < 0:")),
        ("the last of K is not given back", "ag gathered staged", ("    inside = column < K\n    slot", "    inside = column < K - 1\n    slot")),
    ),
    *rows_of(
        "kernels/all_gather_gemm/device.py",
        ("scales of the first slot", "ag scales", ("        scale_row = row\n", "        scale_row = tile.row\n")),
        ("scales of the launch before", "ag scales", ("        scale_row = row\n", "        scale_row = (1 - inbox.slot) * inbox.rows + tile.row\n")),
        ("one slot", "ag push", ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)")),
        ("one slot", "ag split", ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)")),
        ("one slot", "ag K", ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)")),
        ("rank 1 is in the other slot", "ag push", ("slot = (epoch & (SLOTS - 1))", "slot = ((epoch + rank) & (SLOTS - 1))")),
        ("rank 1 is an epoch ahead", "ag push", ("epoch = read_epoch(epoch_counter)\n    slot", "epoch = read_epoch(epoch_counter) + rank\n    slot")),
        ("waits for the launch before", "ag push", ("target = ((epoch + 1) * comm_programs)", "target = (epoch * comm_programs)")),
        ("A is overwritten while peers read it", "ag staged deep", ("            wait_for_all(done, target, peers, WORLD)\n", "            pass\n")),
        ("a chunk of K is lost", "ag chunks", ("for chunk in range(LAYOUT.CHUNKS):", "for chunk in range(1, LAYOUT.CHUNKS):")),
        ("chunks wait for the first one's units", "ag chunks", ("counters += chunk * LAYOUT.WORLD", "counters += 0 * chunk * LAYOUT.WORLD")),
        ("a tile waits for its first row alone", "ag units", ("tile.row_in_shard + FORM.BLOCK_M - 1, shard.rows", "tile.row_in_shard, shard.rows")),
    ),
    *rows_of(
        "kernels/all_gather_gemm/push.py",
        ("inboxes are overwritten while they are read", "ag gather wide", ("WORLD)\n    wait_for_all(ready, epoch + 1, peers, WORLD)\n", "WORLD)\n")),
        ("the GEMM begins before all is there", "ag gather", ("        wait_for_all(arrivals, (epoch + 1) * programs, peers, WORLD)\n", "        pass\n")),
    ),
    *rows_of(
        "kernels/all_gather_gemm/pull.py",
        ("a peer's rows with the own scales", "ag scales pull", ("heap.load(of_rows, rank, owner, heap_bases", "heap.load(of_rows, rank, rank, heap_bases")),
        ("peers are read before they are ready", "ag pull", ("late = heap.wait_each(ready + ranks, ranks < WORLD, epoch + 1, peers)", "late = 0")),
        ("A is overwritten while peers read it", "ag pull", ("        heap.signal_each(done + rank, peers, WORLD, 0)\n    " + DONE, "        pass\n")),
        ("the last of K is lost", "ag pull ragged", ("(ks[None, :] < width - k)", "(ks[None, :] < width - k - 1)")),
    ),
    *rows_of(
        "kernels/all_gather_gemm/push.py",
        ("one slot of words", "ag words alone", ("slot = words + (epoch & 1) * WORLD * elements", "slot = words")),
        ("words are not emptied", "ag words", ("taken = sentinel_take(", "taken = sentinel_wait("), ("import pairs, sentinel_bits, sentinel_data, sentinel_take, together", "import pairs, sentinel_bits, sentinel_data, sentinel_wait, together")),
        ("a peer's words are not taken", "ag words", ("for first in tl.static_range(1, WORLD, TOGETHER):", "for first in tl.static_range(2, WORLD, TOGETHER):")),
        ("words lie a row apart", "ag words", ("within = at // width * pitch + at % width", "within = at // width * pitch + pitch + at % width")),
    ),
    *rows_of(
        "kernels/all_gather_gemm/specialized_kernel.py",
        ("rows are not waited for", "ag specialized", ("        late += wait(gather.arrivals + source * units + unit, gather.target, peers)\n", "        late += 0\n"), GPU),
        ("units are announced before they are sent", "ag specialized", ("        heap.signal(gather.arrivals + peers.rank * units + unit, peer, peers)\n", ""), ("        last = tl.cast(end, tl.int64) * K\n", "        last = tl.cast(end, tl.int64) * K\n        heap.signal(gather.arrivals + peers.rank * units + unit, peer, peers)\n"), GPU),
        ("TMA may read before the rows are seen", "ag specialized", ("return late + heap.fence_async_proxy(True)", "return late"), GPU),
        ("waits for the launch before", "ag specialized", ("target = ((epoch + 1) * gl.num_programs(0))", "target = (epoch * gl.num_programs(0))"), GPU),
        ("one slot", "ag specialized", ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)"), GPU),
        ("chunks are not waited for", "ag across", ("            late += wait(gather.arrivals + gather.slot * units + chunk, gather.target, peers)\n", ""), GPU),
        ("chunks are announced before they are sent", "ag across", ("        signal_each(gather.arrivals + gather.slot * units + chunk, peers, WORLD, WARPS)\n", ""), ("        traces.begin(gather.trace, traces.SENT, chunk, chunk)\n", "        signal_each(gather.arrivals + gather.slot * units + chunk, peers, WORLD, WARPS)\n"), GPU),
        ("TMA may read before chunks are seen", "ag across", ("            late += heap.fence_async_proxy(True)\n", ""), GPU),
        ("waits for the launch before last", "ag across", ("((epoch // SLOTS + 1) * WORLD", "((epoch // SLOTS) * WORLD"), GPU),
        ("one slot", "ag across", ("slot = (epoch & (SLOTS - 1))", "slot = (epoch & 0)"), GPU),
        ("B fills stages that are not empty", "ag across", ("        if step >= ahead:\n            open_stage(inbox, ring, step, FORM)\n", "        if step >= ahead:\n"), GPU),
        ("parts of K are not waited for", "ag tail", ("                wait(tail.stored + item.tail, tail.target, peers)\n", ""), GPU),
        ("waits for the parts of the launch before", "ag tail", ("((epoch + 1) * (SPLITS - 1)", "(epoch * (SPLITS - 1)"), GPU),
        ("a tile waits for its first row alone", "ag specialized", ("gl.minimum(row + FORM.PARTS * FORM.ROWS, gather.rows) - 1", "row"), GPU),
    ),
    *rows_of(
        "kernels/all_gather_gemm/split_tail.py",
        ("parts of K are taken before they are there", "ag tail", ("        await_step(ring, step, FORM)\n", ""), GPU),
        ("parts of K are announced before they are stored", "ag tail", ("        gl.atomic_add(tail.stored + item.tail, 1, sem=\"release\", scope=\"gpu\")\n", ""), ("        gl.store(tail.sums", "        gl.atomic_add(tail.stored + item.tail, 1, sem=\"release\", scope=\"gpu\")\n        gl.store(tail.sums"), GPU),
        ("later parts begin where the first one does", "ag tail", ("        begin = part * each\n", "        begin = part * 0\n"), GPU),
    ),
    *rows_of(
        "kernels/primitives/specialized.py",
        ("buffers are filled before they are read", "ag specialized", ("    mbarrier.wait(ring.empty.index(stage), ((step // FORM.STAGES) & 1) ^ 1)\n", ""), GPU),
        ("buffers are read before they are full", "ag specialized", ("    mbarrier.wait(ring.ready.index(step % FORM.STAGES), (step // FORM.STAGES) & 1)\n", ""), GPU),
        ("consumers take turns as they like", "ag pingpong", ("        mbarrier.wait(order.index(WHICH), ((tile // 2) & 1) ^ (1 - WHICH))\n", "        pass\n"), GPU),
        ("a result is overwritten while it is stored", "ag specialized", ("    tma.store_wait(0)\n", ""), GPU),
    ),
    *rows_of(
        "kernels/all_gather_gemm/fused.py",
        ("one slot", "ag own stream", ("return 2 if isinstance(mode, Push)", "return 1 if isinstance(mode, Push)")),
    ),
    *rows_of(
        "kernels/all_gather_gemm/chunks.py",
        ("chunks are not waited for", "ag pushed copies", ("    heap.wait(arrivals + counter, read_epoch(epoch_counter) + 1, peers)\n", "    pass\n")),
        ("waits for the launch before", "ag pushed copies", ("read_epoch(epoch_counter) + 1, peers", "read_epoch(epoch_counter), peers")),
        ("the epoch stays", "ag pushed copies", ("        finish(epoch_counter, 1)\n", "        pass\n")),
    ),
    *rows_of(
        "kernels/all_gather_gemm/copy_engine.py",
        ("copies before peers are ready", "ag copies", ("        self._enter.run()\n", "")),
        ("a chunk is not copied", "ag copies", ("for copies, signal in zip(self._copies", "self._copies[0] = []\n        for copies, signal in zip(self._copies")),
        ("copies before peers are ready", "ag pushed copies", ("        self._enter.run()\n", "")),
        ("chunks are announced before they are copied", "ag pushed copies", ("            self._copy(copies)\n            with on(self._copying):\n                signal.run()\n", "            with on(self._copying):\n                signal.run()\n            self._copy(copies)\n")),
        ("a chunk goes to the wrong rows", "ag pushed copies", ("there = slice(own.start + begin, own.start + end)", "there = slice(own.start + begin // 2, own.start + end - begin + begin // 2)")),
    ),
]  # fmt: skip
