"""How fast data gets to a peer: stores through pointers and by TMA, added on arrival, signalled, as LL, as sentinels.

    torchrun --nproc-per-node 2 bench/transports.py [--json FILE]
    torchrun --nproc-per-node 2 bench/transports.py --toy      tiny, under Triton's interpreter: does it work at all?

Three tables: GB/s of long transfers, one way and both ways, by the programs that send and the block each moves at once;
µs from a transfer's begin until it is added to the receiver's sum, by an inbox and by adding on arrival; and µs of a
message of 2 to 64 KiB, there and back or both ways at once, by the programs that share it. Every result is checked.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tables
import torch
import torch.distributed as dist
from arguments import new_parser, output_file
from outside import start_ranks
from transport_kernels import LL, POINTERS, SENTINEL, TMA, TMA_ADD, WIDTH, add_kernel, message_kernel, send_kernel

from autotune.heap import open_heap
from autotune.heap.arena import SymmetricHeap
from autotune.heap.status import new_status
from autotune.kernels.launching.plan import Launch
from autotune.machine import machine, versions

SPIN_LIMIT = 1 << 22
MESSAGES = 200
REPEATS, UNCOUNTED = 7, 2
WAYS = {"signal": POINTERS, "tma, signal": TMA, "LL": LL, "sentinel": SENTINEL}
SLOTS = {"signal": 2, "tma, signal": 2, "LL": 2, "sentinel": 3}
BLOCKS = ((32, 32), (64, 64), (128, 64), (128, 128))
"""Rows and columns, of four bytes, that a program moves at once: 4, 16, 32 and 64 KiB."""


def send_launch(mine: torch.Tensor, theirs: torch.Tensor, way: Any, block: tuple[int, int], programs: int) -> Launch:
    """Moves all of ``mine`` to ``theirs``, int32 [rows, columns] (fp32 to be added)."""
    rows, columns = mine.shape
    operands = [mine, theirs] if way == POINTERS else [descriptor(each, block) for each in (mine, theirs)]
    arguments = {
        "mine": operands[0], "theirs": operands[1], "rows": rows, "WAY": way.value, "COLUMNS": columns,
        "BLOCK_ROWS": block[0], "BLOCK_COLUMNS": block[1],
    }  # fmt: skip
    return Launch(send_kernel, programs, arguments, {"num_warps": 4})


def message_launch(
    name: str, mine: torch.Tensor, inbox: torch.Tensor, theirs: torch.Tensor, counters: torch.Tensor,
    sums: torch.Tensor, status: torch.Tensor, words: int, *, rank: int, bases: torch.Tensor, turn: int, messages: int,
) -> Launch:  # fmt: skip
    """Exchanges messages of ``counters.numel()`` programs, ``words`` of each; see ``message_kernel``."""
    width = WIDTH.value
    place = descriptor(theirs.view(-1, width), (words // width, width)) if WAYS[name] == TMA else theirs
    arguments = {
        "mine": mine, "inbox": inbox, "theirs": place, "counters": counters, "sums": sums, "status": status,
        "rank": rank, "heap_bases": bases, "turn": turn, "messages": messages, "spin_limit": SPIN_LIMIT,
        "WAY": WAYS[name].value, "SLOTS": SLOTS[name], "WORDS": words,
    }  # fmt: skip
    return Launch(message_kernel, counters.numel(), arguments, {"num_warps": min(8, max(1, words // 128))})


def add_launch(inbox: torch.Tensor, out: torch.Tensor, programs: int) -> Launch:
    """Adds ``inbox`` to ``out``."""
    return Launch(
        add_kernel, programs, {"inbox": inbox, "out": out, "count": out.numel(), "BLOCK": 1024}, {"num_warps": 4}
    )


def rate(size: int, microseconds: float) -> float:
    """GB/s; 0 where nothing was timed."""
    return size / microseconds / 1e3 if microseconds else 0.0


def nothing() -> None:
    pass


def descriptor(tensor: torch.Tensor, block: tuple[int, int]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(block))


class Pair:
    """Two ranks with a heap, and a clock."""

    def __init__(self, heap: SymmetricHeap, toy: bool) -> None:
        self.heap, self.toy = heap, toy
        self.peer = 1 - heap.rank

    def time(self, run: Callable[[], None], before: Callable[[], None] = lambda: None) -> float:
        """Median µs on the slower rank."""
        took = []
        for _ in range(1 if self.toy else REPEATS + UNCOUNTED):
            self.heap.barrier()  # what the peer still adds is of the time before
            before()
            self.heap.barrier()
            if self.toy:
                run()
                took.append(0.0)
                continue
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            took.append(begin.elapsed_time(end) * 1e3)
        slowest = torch.tensor(took[UNCOUNTED:] or took, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self.heap.group)
        return statistics.median(slowest.tolist())

    def rates(self) -> Iterator[dict[str, Any]]:
        """GB/s of long transfers."""
        ways = {"store": POINTERS, "tma store": TMA} | ({} if self.toy else {"tma add": TMA_ADD})
        for name, way in ways.items():
            for block in BLOCKS[:1] if self.toy else BLOCKS:
                yield from self._rates(name, way, block)

    def _rates(self, name: str, way: Any, block: tuple[int, int]) -> Iterator[dict[str, Any]]:
        shape, dtype = (64, 128) if self.toy else (16384, 1024), torch.float32 if way == TMA_ADD else torch.int32
        mark = self.heap.mark()
        mine, inbox = (self.heap.allocate(shape, dtype) for _ in range(2))
        mine.copy_(self._numbers(self.heap.rank, shape))
        theirs, size = self.heap.peer(inbox, self.peer), mine.numel() * 4

        def clear() -> None:
            inbox.zero_()

        for programs in (2,) if self.toy else (1, 2, 4, 8, 16, 32, 64, 132):
            run = send_launch(mine, theirs, way, block, programs).run
            both = self.time(run, clear)
            self._expect(inbox, self._numbers(self.peer, shape), f"{name} {block} {programs}")
            one = self.time(run if self.heap.rank == 0 else nothing, clear)
            kib = block[0] * block[1] * 4 // 1024
            yield {"way": name, "KiB": kib, "programs": programs, "one way": rate(size, one), "both": rate(size, both)}
        self.heap.barrier()
        self.heap.release(mark)

    def sums(self) -> Iterator[dict[str, Any]]:
        """µs of a store to the peer's inbox, of its pass that adds the inbox to a sum, and of adding on arrival."""
        for mib in () if self.toy else (1, 4, 16, 64):  # the interpreter cannot add on arrival
            mark = self.heap.mark()
            mine, inbox, out = (self.heap.allocate((mib * 256, 1024), torch.float32) for _ in range(3))
            mine.copy_(self._numbers(self.heap.rank, tuple(mine.shape)))
            expected, programs = self._numbers(self.peer, tuple(mine.shape)) + 1, 64
            yield {"MiB": mib, **self._sums(mine, inbox, out, expected, programs)}
            self.heap.barrier()
            self.heap.release(mark)

    def _sums(
        self, mine: torch.Tensor, inbox: torch.Tensor, out: torch.Tensor, expected: torch.Tensor, programs: int
    ) -> dict[str, float]:
        def clear() -> None:
            out.fill_(1)

        found = {
            "store": self.time(send_launch(mine, self.heap.peer(inbox, self.peer), POINTERS, BLOCKS[2], programs).run)
        }
        found["add the inbox"] = self.time(add_launch(inbox, out, programs).run, clear)
        self._expect(out, expected, "the inbox added")
        found["add on arrival"] = self.time(
            send_launch(mine, self.heap.peer(out, self.peer), TMA_ADD, BLOCKS[2], programs).run, clear
        )
        self._expect(out, expected, "added on arrival")
        return found

    def messages(self) -> Iterator[dict[str, Any]]:
        """µs of a message."""
        for kib in (1,) if self.toy else (2, 4, 8, 16, 32, 64):
            for programs in (1, 2) if self.toy else (1, 2, 4, 8, 16, 32):
                words = kib * 256 // programs
                if 64 <= words <= 4096:
                    for name in WAYS:
                        yield self._message(name, kib, programs, words)

    def _message(self, name: str, kib: int, programs: int, words: int) -> dict[str, Any]:
        way, slots, count, messages = WAYS[name], SLOTS[name], programs * words, 3 if self.toy else MESSAGES
        mark, heap = self.heap.mark(), self.heap
        mine = self._numbers(heap.rank, (count,)).to(torch.int32)
        inbox = heap.allocate((slots * count,), torch.int64 if way == LL else torch.int32)
        counters, status = heap.allocate((programs,), torch.int32), new_status(heap)
        sums = torch.zeros(programs, dtype=torch.int64, device=heap.device)
        theirs = heap.peer(inbox, self.peer)
        found: dict[str, Any] = {"way": name, "KiB": kib, "programs": programs}
        for kind, turn in {"there and back": 1 + heap.rank, "both at once": 0}.items():
            launch = message_launch(
                name, mine, inbox, theirs, counters, sums, status, words, rank=heap.rank, bases=heap.bases, turn=turn,
                messages=messages,
            )  # fmt: skip

            def clear() -> None:
                inbox.fill_(-(2**31) if way == SENTINEL else 0)
                counters.zero_()
                status.zero_()

            took = self.time(launch.run, clear)
            expected = messages * self._numbers(self.peer, (programs, words)).sum(1)
            self._expect(sums, expected, f"{name} {kib} KiB, {programs} programs, {kind}")
            self._expect(status, torch.zeros_like(status), f"{name}: a wait timed out")
            found[kind] = took / messages / (1 if turn == 0 else 2)
        heap.barrier()
        heap.release(mark)
        return found

    def _numbers(self, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Small numbers that differ by place and rank."""
        count = 1
        for size in shape:
            count *= size
        return (torch.arange(count, device=self.heap.device) % 97 + rank).view(shape)

    def _expect(self, found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        """Exit on every rank unless it is so on all."""
        self.heap.barrier()
        wrong = torch.tensor(int(not torch.equal(found, expected.to(found.dtype))))
        dist.all_reduce(wrong, dist.ReduceOp.MAX, group=self.heap.group)
        if wrong:
            sys.exit(f"wrong result: {what}")


def table(rows: list[dict[str, Any]]) -> str:
    cells = [[f"{value:.2f}" if isinstance(value, float) else value for value in row.values()] for row in rows]
    return tables.table(list(rows[0]), cells, "l" * len(rows[0]))


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--json", type=output_file, help="write all rows there too")
    parser.add_argument("--only", choices=("rates", "sums", "messages"), action="append", help="default: all three")
    parser.add_argument("--toy", action="store_true", help="tiny, under Triton's interpreter")
    given = parser.parse_args()
    if os.environ.get("WORLD_SIZE") != "2":
        parser.error("two ranks are needed: torchrun --nproc-per-node 2 bench/transports.py")
    if not torch.cuda.is_available():
        if not given.toy:
            parser.error("no GPU found; --toy runs tiny transfers under Triton's interpreter")
        if os.environ.get("TRITON_INTERPRET") != "1":  # Triton reads it when it is imported, which torch has done
            os.environ["TRITON_INTERPRET"] = "1"
            os.execv(sys.executable, [sys.executable, *sys.argv])
    logging.disable(logging.INFO)
    start_ranks()
    try:
        heap = open_heap((32 if given.toy else 512) << 20, dist.new_group(backend="gloo"))
        pair, found = Pair(heap, given.toy), {}
        for kind in given.only or ("rates", "sums", "messages"):
            found[kind] = list(getattr(pair, kind)())
            if dist.get_rank() == 0 and found[kind]:
                print(f"\n{kind}\n\n{table(found[kind])}", flush=True)
        if given.json and dist.get_rank() == 0:
            place = {"device": machine().device, "versions": versions()}
            given.json.write_text(json.dumps({**place, **found}, indent=1) + "\n")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
