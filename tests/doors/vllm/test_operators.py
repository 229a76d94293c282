"""Operators, graphs that the pass has rewritten, and the layer, on two of vLLM's ranks: right, and by our kernels."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ON_RANKS = str(Path(__file__).with_name("on_ranks.py"))
SECONDS = 180

REWRITTEN = {
    "gemm": ["gemm_all_reduce"], "gemm, norm": ["gemm_all_reduce_norm"], "experts, norm": ["all_reduce_norm"],
    "first norm": ["all_reduce_norm"], "sharded sequence": ["all_gather_gemm", "gemm_reduce_scatter"],
    "one token": ["all_reduce_norm"],
}  # fmt: skip
"""By graph; the others stay as they are."""


def run(environment: dict[str, str], **settings: str) -> list[dict[str, Any]]:
    """What each rank tells."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TEST_COMPILED_CPU": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, ON_RANKS], env={**environment, **world, **settings, "RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        logs = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    results = [[line for line in log.splitlines() if line.startswith("RESULT ")] for log in logs]
    assert all(results), "\n".join(log[-3000:] for log in logs)
    return [json.loads(lines[0].split(" ", 2)[2]) for lines in results]


@pytest.fixture(scope="module")
def told(environment: dict[str, str], database: Path) -> list[dict[str, Any]]:
    return run(environment)


def test_operators_run_ours_where_it_is_tuned_and_vllms_way_elsewhere(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert max(rank["16"].values()) < 1e-4 and max(rank["2048"].values()) < 1e-3
        assert set(rank["16"]) <= set(rank["calls"]), "each ran our kernel"
        assert all(f"{name} declined" in rank["calls"] for name in rank["2048"])
        assert rank["misplaced"] < 1e-4, "one rank's operand was copied"
    assert told[0]["calls"] == told[1]["calls"]


def test_graphs_are_rewritten_alike_on_all_ranks_and_compute_the_same(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert {name: found for name, (found, _) in rank["graphs"].items() if found} == REWRITTEN
        assert all(error < 1e-3 for _, error in rank["graphs"].values()), rank["graphs"]


def test_the_key_of_vllms_caches_is_the_table_once_there_is_one(told: list[dict[str, Any]]) -> None:
    (before, after), (others_before, others_after) = (rank["uuids"] for rank in told)
    assert before == others_before == "off" and after == others_after != "off"


def test_a_layer_adds_its_bias_once_and_is_left_where_it_reduces_nothing(told: list[dict[str, Any]]) -> None:
    for rank in told:
        layers = rank["layers"]
        assert layers["class"] == "TunedRowParallelLinear" and max(layers["errors"].values()) < 1e-4
        assert layers["biased"] == [[64, 128]] and rank["calls of layers"] == 1


@pytest.mark.parametrize("case", ["switched off", "unreadable"])
def test_without_a_table_all_is_vllms(environment: dict[str, str], case: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("not a database" * 100)
    settings = {"switched off": {"IRIS_AUTOTUNE_VLLM": "0"}, "unreadable": {"AUTOTUNE_DB": str(broken)}}
    for rank in run(environment, **settings[case]):
        assert all(name.endswith("declined") for name in rank["calls"])
        assert not any(found for found, _ in rank["graphs"].values())
        assert rank["uuids"] == ["off", "off"]


def test_what_the_heap_has_no_room_for_is_vllms(environment: dict[str, str], database: Path) -> None:
    for rank in run(environment, HEAP=str(16 << 10)):
        assert any(name.endswith("declined") for name in rank["calls"])
        assert max(rank["16"].values()) < 1e-4 and all(error < 1e-3 for _, error in rank["graphs"].values())


def test_the_command_refuses_what_it_cannot_tell(environment: dict[str, str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("not a database" * 100)
    for arguments, settings, word in (("1", {}, "--tp 1"), ("2", {"AUTOTUNE_DB": str(broken)}, str(broken))):
        command = [sys.executable, "-m", "iris_autotune_vllm", "--tp", arguments]
        found = subprocess.run(
            command, env={**environment, **settings}, capture_output=True, text=True, timeout=120, check=False
        )
        assert found.returncode == 2 and word in found.stderr and "Traceback" not in found.stderr
