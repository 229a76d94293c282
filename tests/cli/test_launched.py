"""``tune`` under torchrun, on one host and on two: rank 0 runs the command, the others serve it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks_of_functions import without_gpus
from scripts import run_script

from autotune.db import Store
from autotune.errors import GangError
from autotune.outcome import Outcome
from autotune.ranks import launched
from autotune.ranks.launch import Launch

TUNE = ("all-gather-gemm", "--m", "32", "--n", "64", "--k", "64", "--trials", "1", "--effort", "quick", "--json")
SECONDS = 600


def test_two_hosts_tune_one_size_after_the_other(tmp_path: Path) -> None:
    """The larger one on a larger heap; the same command again needs no ranks."""
    words = ("-m", "autotune.cli", "grid", *TUNE, "--no-verify", "--db", str(tmp_path / "cache.db"))
    words = tuple("32,64" if word == "32" else word for word in words)
    first, again = (run_script(*words, ranks=2, hosts=2) for _ in range(2))
    assert first.returncode == again.returncode == 0, first.stderr
    found, same = json.loads(first.stdout), json.loads(again.stdout)
    assert [row["problem"]["m"] for row in found] == [32, 64] and found == same
    assert all(row["problem"]["world_size"] == len(row["latency"]["by_rank"]) == 2 for row in found)


@pytest.mark.parametrize(
    "on_gpus",
    [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.gpu(2, each=True))],
    ids=["interpreter", "GPUs"],
)
def test_two_launches_of_torchrun_are_two_hosts(on_gpus: bool, tmp_path: Path) -> None:
    """They meet in this process's store."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=SECONDS))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend",
        "c10d", "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-conf", "is_host=false", "--local-addr",
        "127.0.0.1", "-m", "--", "autotune.cli", *TUNE, "--db", str(tmp_path / "cache.db"),
    ]  # fmt: skip
    hosts = [
        subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **({"CUDA_VISIBLE_DEVICES": str(number)} if on_gpus else without_gpus())},
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        said = [host.communicate(timeout=SECONDS) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], said
    (found,) = [json.loads(out) for out, _ in said if out]
    assert found["problem"]["world_size"] == len(found["latency"]["by_rank"]) == 2


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [(("list",), 0, "nothing is tuned yet"), (("all-gather-gemm", "--world-size", "3"), 2, "torchrun has started 2")],
)
def test_what_rank_0_says_is_said_once_and_the_others_go(words: tuple[str, ...], code: int, told: str) -> None:
    done = run_script("-m", "autotune.cli", *words, ranks=2)
    assert done.returncode == code and done.stderr.count(told) == 1, done.stderr


def test_a_rank_whose_rank_0_has_gone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def check(self, *given: object) -> bool:
            raise dist.DistNetworkError("connection was closed")

        add = check

    monkeypatch.setattr(launched, "rendezvous", lambda url: iter([(Gone(), 1, 2)]))
    with pytest.raises(GangError, match="rank 0"):
        launched.Launched(Launch(1, 2, 1, 2)).serve()


def test_a_config_that_loses_the_ranks_is_not_tried_by_the_next_run(tmp_path: Path) -> None:
    flawed = str(Path(__file__).parents[1] / "runtime" / "in_program" / "flawed_workload.py:FlawedWorkload")
    sizes = ("--width", "256", "--trouble", "loses its device", "--trials", "9", "--db", str(tmp_path / "cache.db"))
    for _ in range(2):
        done = run_script("-m", "autotune.cli", "run", flawed, *sizes, ranks=2)
        assert done.returncode and "illegal memory access" in done.stderr, done.stderr
    with Store.open(tmp_path / "cache.db") as store:
        [study] = store.studies()
        crashed = [each.config for each in store.trials(study.id) if each.evaluation.outcome is Outcome.CRASHED]
    assert len(crashed) == len(set(crashed)) == 2
