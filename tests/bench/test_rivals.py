"""Rivals: what one does around its exchange, and what becomes of one that cannot be set up here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import flash_decode
import pytest
import rival_flashinfer
import rival_quack
import rivals
import torch
import torch.distributed as dist
import winners
from listed import HEADS
from rival_dispatch import laid_out, leaving, symm_mem_dispatch

from autotune.config import Config
from autotune.kernels.moe.routing import Kind, drawn_routing, planned
from autotune.kernels.moe_dispatch.problem import MoeDispatch
from autotune.machine import H100
from autotune.task import Task
from autotune.workloads import workload
from autotune.workloads.user_files import BUILT_IN, instances

CPU = torch.device("cpu")
ABSENT = (
    rival_flashinfer.gather, rival_flashinfer.reduce(True), rival_flashinfer.reduce_norm(False), rival_quack.gather,
)  # fmt: skip


def exchanged(sent: list[tuple[torch.Tensor, torch.Tensor]], rank: int, room: int) -> torch.Tensor:
    """What all_to_all_vdev leaves at a rank: its part of what each rank sends, one behind the other."""
    parts = [rows[counts[:rank].sum() :][: counts[rank]] for rows, counts in sent]
    arrived = torch.full((room, parts[0].shape[1]), torch.nan)
    arrived[: sum(map(len, parts))] = torch.cat(parts)
    return arrived


@pytest.mark.parametrize("kind", ["plain", "holes", "one expert"])
@pytest.mark.parametrize(("world_size", "top_k"), [(2, 3), (3, 1), (4, 6)])
def test_a_dispatch_by_torchs_exchange_has_the_rows_of_the_plan(world_size: int, top_k: int, kind: Kind) -> None:
    problem = MoeDispatch(tokens=7, hidden=8, experts=2 * world_size, top_k=top_k, world_size=world_size)
    routing = drawn_routing(problem, CPU, 5, kind)
    tokens = torch.randn(world_size, problem.tokens, problem.hidden)
    sent = [leaving(problem, tokens[rank], routing.ids[rank]) for rank in range(world_size)]
    for rank in range(world_size):
        plan = planned(problem, routing, rank)
        exist = int(plan.offsets[-1])
        arrived = exchanged(sent, rank, world_size * problem.tokens)
        rows = laid_out(problem, arrived, routing, rank)
        assert rows.shape == (problem.capacity, problem.hidden)
        assert torch.equal(rows[:exist], tokens.flatten(0, 1)[plan.pairs[:exist] // top_k])


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Operation(rivals.Rivals):
    """An operation whose right result is ones, and which has one rival."""

    def __init__(self, rival: Callable[[Any], Callable[[], torch.Tensor]]) -> None:
        self._problem, self._heap = SimpleNamespace(), SimpleNamespace(group=None)
        self.offers = lambda _: {"it": rival}

    def refresh(self, seed: int) -> None:
        pass

    def expected(self) -> torch.Tensor:
        return torch.ones(4)


def giving(result: torch.Tensor) -> Callable[[Any], Callable[[], torch.Tensor]]:
    return lambda _: lambda: result


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "rival",
    [
        pytest.param(symm_mem_dispatch, id="no backend"),
        *(pytest.param(each, id="not installed") for each in ABSENT),
        pytest.param(lambda _: torch.ops.symm_mem.there_is_no_such, id="no such operator"),
        pytest.param(giving(torch.zeros(4)), id="wrong"),
        pytest.param(giving(torch.ones(5)), id="too many"),
        pytest.param(giving(torch.full((4,), torch.nan)), id="nan"),
    ],
)
def test_a_rival_that_fails_is_one_line_and_left_out(
    rival: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("torch.distributed._symmetric_memory.is_nvshmem_available", lambda: False)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.setitem(sys.modules, "quack", None)
    assert Operation(rival).parts() == {}
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "rival" in line]
    assert line.startswith("rival it: ")


def test_every_rival_is_a_workload_that_ranks_load() -> None:
    loaded = {each.name for each in instances(rivals.__file__)} - {*BUILT_IN}
    assert {name.partition("_")[0] for name in loaded} == set(winners.SUPPLIERS)


def test_the_papers_config_of_flash_decode_is_one_of_the_space() -> None:
    """One that is not is left out of the sweep without a word."""
    found = workload("flash_decode")
    problem = found.problem_type(batch=1, kv_len=8192, page_size=1, world_size=2, **HEADS)
    assert found.space.violation(Config(flash_decode.PAPER), Task(problem, H100)) is None
