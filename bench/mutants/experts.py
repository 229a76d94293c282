"""Mutants of mixtures of experts: the plan, the dispatches, the combines, the grouped GEMM."""

from __future__ import annotations

from mutants.table import GPU, Mutant, rows_of

MC_SIGNAL = "        heap.signal(arrivals + (slot * blocks + block) * FORM.SPLIT + unit % FORM.SPLIT, peer, peers)\n"
MC_BEGIN = "        begin = first_column + unit % FORM.SPLIT * FORM.COLUMNS\n"
ROUTED_SIGNAL = "    if not FORM.ROUTING_LL:\n        heap.signal_each(routing.arrivals + slot * FORM.WORLD + peers.rank, peers, FORM.WORLD, 0)\n"
TOKENS_SIGNAL = "        if not FORM.LL:\n            counter = inbox.arrivals + (slot * FORM.WORLD + peers.rank) * blocks + block\n            heap.signal_each(counter, peers, FORM.WORLD, 0)\n"

MUTANTS: list[Mutant] = [
    *rows_of(
        "kernels/moe/plan.py",
        ("one slot of the routing", "md push", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 2)),
        ("the routing is not waited for", "md push", ("        late = heap.wait_each(routing.arrivals + slot * FORM.WORLD + ranks, ranks < FORM.WORLD, target, peers)\n", "")),
        ("the routing of rank 0 alone is waited for", "md push", ("ranks < FORM.WORLD, target, peers", "ranks < 1, target, peers")),
        ("the routing is signalled before it is stored", "md push", (ROUTED_SIGNAL, ""), ("    for begin in range(part * FORM.STEP, pairs, routing.parts * FORM.STEP):\n", ROUTED_SIGNAL + "    for begin in range(part * FORM.STEP, pairs, routing.parts * FORM.STEP):\n")),
        ("words of gates are those of ids", "md ll", ("heap.store(place + pairs + number, gate,", "heap.store(place + pairs + number, chosen,")),
        ("an expert counts those before it twice", "md push", ("    row = 0\n    of_lower = 0\n", "    row = expert\n    of_lower = 0\n")),
        ("the last expert of a rank is the next rank's first", "md push", ("    first = peers.rank * local\n", "    first = peers.rank * local + 1\n")),
        ("pairs of an expert are in no order", "md push", ("place = row + tl.cumsum(count, axis=0) - count", "place = row + tl.sum(count, axis=0) - tl.cumsum(count, axis=0)")),
        ("gates of the pair before", "md push", ("tl.store(plan.gates + place, gate", "tl.store(plan.gates + (place + 1) % capacity, gate")),
    ),
    *rows_of(
        "kernels/moe/tokens.py",
        ("one slot of tokens", "md push", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 3)),
        ("tokens are signalled before they are stored", "md push", (TOKENS_SIGNAL, ""), ("        for column in range(unit % FORM.SPLIT * FORM.COLUMNS, H, FORM.SPLIT * FORM.COLUMNS):\n", TOKENS_SIGNAL + "        for column in range(unit % FORM.SPLIT * FORM.COLUMNS, H, FORM.SPLIT * FORM.COLUMNS):\n")),
        ("a token goes to the rank of its first expert alone", "md push", ("    return tl.where(chosen >= 0, chosen // local, WORLD)\n", "    return tl.where((chosen >= 0) & (places == 0), chosen // local, WORLD)\n")),
        ("an expert's rank is the one before", "md pull", ("tl.where(chosen >= 0, chosen // local, WORLD)", "tl.where(chosen >= 0, (chosen + 1) // local, WORLD)")),
        ("the last token of a block stays", "md push", ("inside = (token < T)[:, None] & (columns < H)[None, :]\n            value = tl.load(tokens.x", "inside = (token < T - 1)[:, None] & (columns < H)[None, :]\n            value = tl.load(tokens.x")),
        ("each part sends the first columns", "md split", ("range(unit % FORM.SPLIT * FORM.COLUMNS, H, FORM.SPLIT * FORM.COLUMNS)", "range(0, H, FORM.SPLIT * FORM.COLUMNS)")),
        ("tokens are not waited for", "md push", ("    return heap.wait_each(counters, wanted, ((epoch >> 1) + 1) * signals, peers)\n", "    return 0\n")),
        ("one part of a block is waited for", "md split", ("((epoch >> 1) + 1) * signals,", "((epoch >> 1) + 1) * signals - 1,")),
        ("a peer's tokens are read before they are in place", "md pull", ("late = heap.wait(routing.arrivals + slot * FORM.WORLD + source, target, peers)", "late = heap.wait(routing.arrivals + slot * FORM.WORLD + peers.rank, target, peers)")),
        ("nobody is told: done", "md pull", ("    heap.signal_each(inbox.done + peers.rank, peers, FORM.WORLD, 0)\n", "")),
        ("words of the upper half are those of the lower", "md ll", ("high = ((found >> 16) & 0xFFFF)", "high = (found & 0xFFFF)")),
    ),
    *rows_of(
        "kernels/moe_dispatch/device.py",
        ("the plan is not waited for", "md push", ("late = wait_in_slot(planned + (epoch & 1).to(tl.int32), epoch, local, peers)", "late = 0"), GPU),
        ("peers are not waited for: done", "md pull", ("            wait_for_all(done, (epoch + 1) * comm_programs, peers, WORLD)\n", "            pass\n")),
        ("the last row stays", "md push", ("exists = row < end\n", "exists = row < end - 1\n")),
        ("rows are read from the other slot", "md push", ("slot = (epoch & 1).to(tl.int32)", "slot = ((epoch + 1) & 1).to(tl.int32)")),
        ("rank 1 is an epoch ahead", "md ll", ("epoch = read_epoch(epoch_counter)\n", "epoch = read_epoch(epoch_counter) + rank\n")),
    ),
    *rows_of(
        "kernels/moe_dispatch_gemm/device.py",
        ("the plan of one expert is waited for", "mdg push", ("epoch, local, peers)\n", "epoch, 1, peers)\n"), GPU),
        ("rows are read from the other slot", "mdg push", ("slot = (epoch & 1).to(tl.int32)", "slot = ((epoch + 1) & 1).to(tl.int32)")),
        ("tokens are not waited for", "mdg push", ("        late = wait_for_tokens(inbox.arrivals, token, theirs, T, MOVES.SPLIT, epoch, peers, MOVES.WORLD, MOVES.TOKENS)\n", "        late = 0\n")),
        ("tokens of rank 0 alone", "mdg pull", ("there = slot.to(tl.int64) * MOVES.WORLD * T + token + late", "there = slot.to(tl.int64) * MOVES.WORLD * T + token % T + late")),
        ("the last of the depth is lost", "mdg push", ("grouped.Experts(b, H, N,", "grouped.Experts(b, H - 8, N,")),
        ("a peer's token is taken for our own", "mdg own", ("ours = token // T == peers.rank", "ours = token // T != peers.rank")),
        ("a tile with others' rows waits for none", "mdg own", ("theirs = token // T != peers.rank", "theirs = (token // T != peers.rank) & (tile < 0)")),
        ("rank 1 is an epoch ahead", "mdg ll", ("epoch = read_epoch(epoch_counter)\n", "epoch = read_epoch(epoch_counter) + rank\n")),
    ),
    *rows_of(
        "kernels/moe/sums.py",
        ("one slot", "mc push", ("slot = (epoch & 1).to(tl.int32)", "slot = (epoch & 0).to(tl.int32)", 5)),
        ("the last of a token's rows is left out", "mc push", ("exists[:, None] & (choice < K), other=0)", "exists[:, None] & (choice < K - 1), other=0)")),
        ("rows of other launches count", "mc push", ("here = (place >> 32).to(tl.int32) == flag", "here = (place >> 32) != 0")),
        ("no gates", "mc push", ("tl.sum(gate[:, :, None] * value.to(tl.float32), axis=1)", "tl.sum(0 * gate[:, :, None] + value.to(tl.float32), axis=1)")),
        ("sums are not waited for", "mc push", ("        late = wait_in_slot(counter, epoch, FORM.WORLD, peers)\n", "        late = 0\n")),
        ("sums are not waited for", "mc pull", ("        late = wait_in_slot(counter, epoch, FORM.WORLD, peers)\n", "        late = 0\n")),
        ("waits for all ranks but one", "mc push", ("(counter, epoch, FORM.WORLD, peers)", "(counter, epoch, FORM.WORLD - 1, peers)")),
        ("sums are signalled before they are stored", "mc push", (MC_SIGNAL, ""), (MC_BEGIN, MC_SIGNAL + MC_BEGIN)),
        ("a rank's sums are left out", "mc push", ("for source in tl.static_range(FORM.WORLD):", "for source in tl.static_range(1, FORM.WORLD):")),
        ("sums that were not sent are added", "mc push", ("goes_to(owner, source)[:, None]", "(token < T)[:, None]")),
        ("a rank reads its own sums for others'", "mc pull", ("heap.load(place, peers.rank, source,", "heap.load(place, peers.rank, peers.rank,")),
        ("the last row is not sent", "mc one", ("range(part, end * FORM.SPLIT, parts)", "range(part, (end - 1) * FORM.SPLIT, parts)")),
        ("rows go to another's place", "mc one", ("(slot * all_pairs + pair % all_pairs).to(tl.int64) *", "(slot * all_pairs + (pair + 1) % all_pairs).to(tl.int64) *")),
        ("places without expert are added", "mc one", ("mask=token < T, other=-1)\n                    chosen = (chosen >= 0) & (chosen < experts)", "mask=token < T, other=-1)\n                    chosen = chosen < experts")),
        ("no gates", "mgc one", ("(acc * gate[:, None]).to(FORM.TYPE)", "(acc + 0 * gate[:, None]).to(FORM.TYPE)")),
    ),
    *rows_of(
        "kernels/moe_combine/device.py",
        ("rows are not waited for", "mc one", ("            wait_in_slot(arrivals + slot, epoch, WORLD * sending, peers)\n", "            pass\n")),
        ("places are not waited for", "mc push", ("            wait_in_slot(placed + slot, epoch, placing, peers)\n", ""), GPU),
        ("peers may not have read", "mc ll", ("                wait_for_all(done, epoch - 1, peers, WORLD)\n", "                pass\n")),
        ("does not say that it has read", "mc ll", ("            arrive(done, peers, WORLD)\n", "            pass\n")),
        ("rank 1 is an epoch ahead", "mc push", ("epoch = read_epoch(epoch_counter)\n", "epoch = read_epoch(epoch_counter) + rank\n")),
    ),
    *rows_of(
        "kernels/moe_gemm_combine/device.py",
        ("a rank without rows says nothing", "mgc idle", ("(rows_of_tiles == 0) & (part == 0)", "(rows_of_tiles < 0) & (part == 0)")),
        ("a rank without rows says nothing", "mgc idle one", ("(rows_of_tiles == 0) & (part == 0)", "(rows_of_tiles < 0) & (part == 0)")),
        ("all groups compute the first columns", "mgc push", ("column = (group * wide + n) * FORM.BLOCK_N", "column = n * FORM.BLOCK_N")),
        ("the last group is not sent", "mgc push", ("for group in range(GROUPS):\n                late", "for group in range(GROUPS - 1):\n                late")),
        ("products are not waited for", "mgc push", ("late = heap.wait(ready + group, epoch + 1, peers)", "late = 0"), GPU),
        ("rows are not waited for", "mgc one", ("            wait_in_slot(arrivals + slot, epoch, WORLD, peers)\n", "            pass\n")),
        ("the last tile is left out", "mgc one", ("range(part, rows_of_tiles * tiles_n, parts)", "range(part, rows_of_tiles * tiles_n - 1, parts)")),
    ),
    *rows_of(
        "kernels/moe/grouped_gemm.py",
        ("one expert's B for all", "mgc push", ("experts.b + expert.to(tl.int64) * experts.stride_be", "experts.b + 0 * expert.to(tl.int64) * experts.stride_be")),
        ("the last of K is lost", "mgc push", ("tile = tl.load(pointers, mask=(ks < experts.K)[:, None], other=0.0)", "tile = tl.load(pointers, mask=(ks < experts.K - 1)[:, None], other=0.0)")),
        ("a tile has the next expert's rows", "mgc one", ("first, end = tl.load(offsets + expert), tl.load(offsets + expert + 1)\n    m, n", "first, end = tl.load(offsets + expert), tl.load(offsets + expert + 1) + 1\n    m, n")),
        ("tiles behind our own are left out", "mdg own", ("tl.where(m < begin, 0, count))", "0)")),
        ("a tile overwrites another expert's rows", "mdg unfused", ("whole is not None and row + FORM.BLOCK_M <= end", "whole is not None")),
        ("whole tiles are not stored", "mdg unfused", ("        store_tile(acc, Output(whole, end, columns), row,", "        store_tile(acc, Output(whole, end, columns), row + end,")),
        ("lower rows are the upper ones", "mgc parts", ("_load_a(a_lower, row + FORM.BLOCK_M // 2, k,", "_load_a(a_lower, row, k,")),
        ("lower rows are the upper ones", "mdg parts", ("_load_a(a_lower, row + FORM.BLOCK_M // 2, k,", "_load_a(a_upper, row, k,")),
        ("lower rows have the upper ones' scales", "mgc parts blocks", ("tl.load(lower_scales + at)", "tl.load(upper_scales + at)")),
        ("scales are a step late", "mgc parts blocks", ("at = tl.minimum(k + FORM.BLOCK_K, experts.K - 1) // SIDE", "at = k // SIDE")),
        ("a part's step is lost", "mdg parts", ("lower = add_now(lower, tl.dot(lower_tile, b_tile))", "lower = add_now(lower, tl.dot(lower_tile, b_tile) * (k > 0))")),
    ),
]  # fmt: skip
