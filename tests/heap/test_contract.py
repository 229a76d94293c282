"""One contract for every symmetric heap: shared memory here, Iris and torch's where there are GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from process_ends import left_in_shared_memory, shared_memory
from ranks_of_functions import RankDied, run_ranks

from autotune.heap import device, open_heap
from autotune.heap.status import new_status


def check(found: list[dict[str, Any]]) -> None:
    world_size = len(found)
    assert len({tuple(each["offsets"]) for each in found}) == 1
    for rank, each in enumerate(found):
        before, after = (rank - 1) % world_size, (rank + 1) % world_size
        assert each["stored to me"] == [100.0 * before + i for i in range(16)]
        assert each["loaded by me"] == [100.0 * before + i for i in range(16)]
        assert each["relayed"] == [rank] and each["relay status"] == 0
        assert each["peer reads"] == 100.0 * after
        assert each["peer wrote"] == 7000 + before
        assert each["borrowed"] == [[2, 4], True, [[0, 1, 2, 3], [-1, -1, -1, -1]]]
    assert found[0]["counted"] == sum(range(1, world_size + 1))


@pytest.mark.parametrize("world_size", [2, 3])
def test_shared_memory_keeps_the_contract(world_size: int, tmp_path: Path) -> None:
    before = shared_memory()
    check(run_ranks(__file__, "contract", world_size, tmp_path))
    assert not left_in_shared_memory(before)


def test_kernels_keep_the_contract_without_iris(tmp_path: Path) -> None:
    check(run_ranks(str(Path(__file__).with_name("test_providers.py")), "contract_without_iris", 3, tmp_path))


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize("heap", ["iris", "torch"])
def test_heaps_on_gpus_keep_the_contract(heap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HEAP", heap)
    check(run_ranks(__file__, "contract", torch.cuda.device_count(), tmp_path, gpu=True))


@pytest.mark.gpu
@pytest.mark.parametrize("heap", ["iris", "torch"])
@pytest.mark.parametrize("gpu", ["one", pytest.param("each", marks=pytest.mark.gpu(2))])
def test_a_closed_heap_gives_its_memory_back(
    heap: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_HEAP", heap)
    for before, opened, after in run_ranks(__file__, "opened_and_closed", 2, tmp_path, gpu=gpu):
        assert opened < before == after, "bytes that are free"


def test_a_killed_rank_leaves_no_shared_memory_behind(tmp_path: Path) -> None:
    before = shared_memory()
    with pytest.raises(RankDied):
        run_ranks(__file__, "die_halfway", 2, tmp_path)
    assert not left_in_shared_memory(before)


def test_what_killed_ranks_leave_is_removed_with_the_next_heap(tmp_path: Path) -> None:
    code = "import os; from pathlib import Path; from autotune.processes.folder import OwnFolder;"
    code += "print(OwnFolder(Path('/dev/shm')).path.name, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        left = process.stdout.readline().strip()
        assert left in shared_memory()
        process.kill()
    run_ranks(str(Path(__file__).parent / "test_corners.py"), "bookkeeping", 2, tmp_path)
    assert left not in shared_memory()


@triton.jit(do_not_specialize=["rank"])
def swap_kernel(mine, theirs, counter, rank, heap_bases, WORLD: tl.constexpr):
    """Store our row to the next rank, load its row from the one before, count ourselves on rank 0."""
    offsets = tl.arange(0, 16)
    after = (rank + 1) % WORLD
    before = (rank + WORLD - 1) % WORLD
    row = tl.load(mine + offsets)
    device.store(theirs + offsets, row, rank, after, heap_bases)
    fetched = device.load(mine + offsets, rank, before, heap_bases)
    tl.store(theirs + 16 + offsets, fetched)
    device.atomic_add(counter, rank + 1, rank, 0, heap_bases, sem="acq_rel", scope="sys")


@triton.jit(do_not_specialize=["rank"])
def relay_kernel(box, flag, out, status, rank, heap_bases, spin_limit, WORLD: tl.constexpr):
    """Rank 0 starts; every other rank waits for the one before, adds one to what came, hands it on."""
    peers = device.Peers(rank, heap_bases, status, spin_limit)
    offsets = tl.arange(0, 64)
    value = tl.zeros((64,), dtype=tl.int32)
    if rank > 0:
        late = device.wait(flag, 1, peers)
        value = tl.load(box + offsets + late * 0) + 1
    tl.store(out + offsets, value)
    if rank + 1 < WORLD:
        device.store(box + offsets, value, rank, rank + 1, heap_bases)
        device.signal(flag, rank + 1, peers)


def contract(argument: Any) -> dict[str, Any]:
    heap = open_heap(8 << 20, dist.new_group(backend="gloo"))
    rank, world_size = heap.rank, heap.world_size
    found: dict[str, Any] = {"rank": rank}

    mine = heap.allocate((16,), torch.float32)
    theirs = heap.allocate((2, 16), torch.float32)
    counter = heap.allocate((1,), torch.int32)
    found["offsets"] = [heap.offset(tensor) for tensor in (mine, theirs, counter)]
    mine.copy_(torch.arange(16) + 100 * rank)
    theirs.fill_(-1)
    counter.zero_()
    heap.barrier()
    swap_kernel[(1,)](mine, theirs, counter, rank, heap.bases, WORLD=world_size)
    heap.barrier()
    found["stored to me"], found["loaded by me"] = theirs[0].tolist(), theirs[1].tolist()
    found["counted"] = int(counter.item())

    box, out = heap.allocate((64,), torch.int32), heap.allocate((64,), torch.int32)
    flag, status = heap.allocate((1,), torch.int32), new_status(heap)
    for tensor in (box, out, flag):
        tensor.zero_()
    heap.barrier()
    # On GPUs a poll takes a microsecond, and another rank may still be compiling this for seconds.
    patience = 1 << (18 if heap.device.type == "cpu" else 25)
    relay_kernel[(1,)](box, flag, out, status, rank, heap.bases, patience, WORLD=world_size)
    heap.barrier()
    found["relayed"], found["relay status"] = sorted(set(out.tolist())), int(status[0].item())

    next_rank = (rank + 1) % world_size
    found["peer reads"] = heap.peer(mine, next_rank).tolist()[0]
    heap.barrier()
    heap.peer(mine, next_rank)[0] = 7000 + rank
    heap.barrier()
    found["peer wrote"] = mine.tolist()[0]

    ordinary = torch.arange(8, dtype=torch.bfloat16, device=heap.device).view(2, 4)
    borrowed = heap.borrow(ordinary)
    borrowed[1] = -1
    found["borrowed"] = [list(borrowed.shape), borrowed.data_ptr() == ordinary.data_ptr(), ordinary.tolist()]

    heap.barrier()
    heap.close()
    return found


def opened_and_closed(argument: Any) -> list[int]:
    """Free bytes of the GPU before a heap is opened, meanwhile, and after; the first time also loads modules."""
    group = dist.new_group(backend="gloo")

    def free() -> int:
        dist.barrier(group)
        torch.cuda.synchronize()
        found = torch.tensor(torch.cuda.mem_get_info()[0])
        dist.barrier(group)
        dist.all_reduce(found, dist.ReduceOp.MIN, group=group)
        return int(found)

    for _ in range(2):
        before = free()
        heap = open_heap(256 << 20, group)
        tensor = heap.allocate((1 << 20,), torch.uint8)  # which does not keep the memory
        opened = free()
        heap.close()
        after = free()
        del tensor
    return [before, opened, after]


def die_halfway(argument: Any) -> None:
    heap = open_heap(1 << 20, dist.new_group(backend="gloo"))
    heap.barrier()
    if heap.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
