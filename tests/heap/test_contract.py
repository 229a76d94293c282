"""One contract for every symmetric heap: shared memory here, Iris and torch's where there are GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process_ends import left_in_shared_memory, shared_memory
from ranks_of_functions import RankDied, run_ranks

ON_RANKS = str(Path(__file__).parent / "on_ranks.py")


def check(found: list[dict[str, Any]]) -> None:
    """The ranks' findings fulfil the contract."""
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
    check(run_ranks(ON_RANKS, "contract", world_size, tmp_path))
    assert not left_in_shared_memory(before)


def test_kernels_keep_the_contract_without_iris(tmp_path: Path) -> None:
    check(run_ranks(ON_RANKS.replace("on_ranks", "providers_on_ranks"), "contract_without_iris", 3, tmp_path))


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize("heap", ["iris", "torch"])
def test_heaps_on_gpus_keep_the_contract(heap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("AUTOTUNE_HEAP", heap)
    check(run_ranks(ON_RANKS, "contract", torch.cuda.device_count(), tmp_path, gpu=True))


@pytest.mark.gpu
@pytest.mark.parametrize("heap", ["iris", "torch"])
@pytest.mark.parametrize("gpu", ["one", pytest.param("each", marks=pytest.mark.gpu(2))])
def test_a_closed_heap_gives_its_memory_back(
    heap: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_HEAP", heap)
    for before, opened, after in run_ranks(ON_RANKS, "opened_and_closed", 2, tmp_path, gpu=gpu):
        assert opened < before == after, "bytes that are free"


def test_a_killed_rank_leaves_no_shared_memory_behind(tmp_path: Path) -> None:
    before = shared_memory()
    with pytest.raises(RankDied):
        run_ranks(ON_RANKS, "die_halfway", 2, tmp_path)
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
    run_ranks(str(Path(__file__).parent / "more_on_ranks.py"), "bookkeeping", 2, tmp_path)
    assert left not in shared_memory()
