"""The decision compares what the caller would get either way; a compiler's key differs by all that decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import latency_of
from test_candidates import gather, reduce
from test_patterns import graph_of

import autotune
from autotune.compiled import decisions
from autotune.compiled.decisions import Table, Verdict
from autotune.compiled.fusing import Fusing
from autotune.compiled.graphs import NoMatch
from autotune.compiled.patterns import candidates
from autotune.config import Config
from autotune.db import CacheKey, Entry, Winner
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.machine import INTERPRETED
from autotune.outcome import Latency, Regime
from autotune.runtime.call import LISTENERS
from autotune.runtime.entries import Entries
from autotune.task import Task
from autotune.workloads import provenance_of, workload

Tensor = torch.Tensor
K, N = 64, 32


@dataclass
class Opened:
    """A context without ranks."""

    entries: Sequence[Entry] = ()
    measured: Sequence[tuple[Config, Latency]] = ()
    regime: Regime = Regime.PIPELINED
    handle: int = 1
    ranks: tuple[int, ...] = (0, 1)
    machine: Any = INTERPRETED
    heap: Any = field(default_factory=lambda: SimpleNamespace(world_size=2, rank=0))
    tunes_first_calls: bool = False
    invariant: bool = False

    def tuned(self, name: str) -> Entries:
        return Entries((each for each in self.entries if each.key.workload == name), lambda entry: self.measured)


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs' groups: ``all`` is the context's, any other one is the first rank's own."""
    monkeypatch.setattr(decisions, "process_group", lambda name: name)
    monkeypatch.setattr(decisions, "ranks_of", lambda name: (0, 1) if name == "all" else (0,))


def tuned(
    n: int = N, latency: float | Latency = 50.0, baselines: Mapping[str, float | Latency] | None = None,
    gathers: float | None = None, regime: Regime = Regime.PIPELINED, m: int = 16,
) -> Entry:  # fmt: skip
    """Of a GEMM [m, K] @ [K, n] on each rank, behind a gather."""
    problem = AllGatherGemm(m=m, n=2 * n, k=K, dtype="fp32", world_size=2)
    found = workload(problem.workload)
    config = next(
        each for each in found.first_configs(Task(problem, INTERPRETED))
        if each["mode"] != "bsp" and found.space.violation(each, Task(problem, INTERPRETED)) is None
    )  # fmt: skip
    times = {name: _latency(each) for name, each in (baselines or {"bsp": 100.0}).items()}
    limits = {} if gathers is None else {"all_gather": latency_of(gathers)}
    winner = Winner(config, _latency(latency), times, limits)
    return Entry(
        CacheKey.of(Task(problem, INTERPRETED), regime), provenance_of(found), winner, 1,
        datetime(2026, 1, 1, tzinfo=UTC), 1, 0, 1,
    )  # fmt: skip


def _latency(given: float | Latency) -> Latency:
    return given if isinstance(given, Latency) else latency_of(given)


def decided(
    function: Callable[..., Any], *shapes: tuple[int, ...], entries: Sequence[Entry], **options: Any
) -> list[Verdict]:  # fmt: skip
    """The verdicts on the first way of the one collective."""
    graph = graph_of(function, *map(torch.ones, shapes), decomposed=False)
    ((_, (found, *_)),) = candidates(graph)
    assert not isinstance(found, str), found
    return Table(Opened(entries, **options)).verdicts(found)  # type: ignore[arg-type]


def one(*entries: Entry, **options: Any) -> Verdict:
    (found,) = decided(lambda x, b: gather(x) @ b, (8, K), (K, N), entries=entries, **options)
    return found


def test_the_librarys_way_is_the_fastest_that_the_caller_could_take() -> None:
    found = one(tuned(baselines={"bsp": 100.0, "slower": 300.0, "captured graph": 60.0}))
    assert found.replaced and found.gain == 50.0
    assert not one(tuned(latency=100.0)).replaced, "it is no faster"
    in_graphs = tuned(baselines={"bsp": 100.0, "captured graph": 60.0}, regime=Regime.GRAPH)
    assert one(in_graphs, regime=Regime.GRAPH).gain == 10.0


@pytest.mark.parametrize("collective", [80.0, 120.0])
def test_where_the_winner_takes_a_detour_what_stands_in_for_it_decides(collective: float) -> None:
    """A push in tiles of 16 rows, tuned with 16 rows on each rank and used with 8."""
    steps = {"comm_programs": 2, "copy_kib": 2, "peer_order": "rotate", "protocol": "signal"}
    ours = Config({"mode": "custom_collective", **steps}), latency_of(collective)
    library = Config({"mode": "bsp", "launch": "eager"}), latency_of(100.0)
    (found,) = decided(
        lambda x, b: gather(x) @ b, (8, K), (K, N), entries=[tuned(m=32)], measured=[ours, library]
    )  # fmt: skip
    assert found.replaced == (collective < 100.0) and found.gain == max(0.0, 100.0 - collective)
    assert ("custom_collective" in found.reason) == found.replaced


def test_the_contexts_regime_decides() -> None:
    """By its own entries and their latencies in it."""
    isolated = Regime.ISOLATED
    alone = tuned(
        latency=latency_of(50.0, isolated=80.0), baselines={"bsp": latency_of(60.0, isolated=100.0)}, regime=isolated
    )
    assert one(alone, tuned(latency=10.0), regime=isolated).gain == 20.0
    assert one(alone).entry is None


@pytest.mark.parametrize(
    ("gathers", "gain"),
    [((10.0, 40.0, 20.0), 300.0 - 2 * 40.0 - 150.0), ((None, None, None), 300.0 - 2 * 300.0 - 150.0)],
)
def test_the_library_gathers_once_for_several(gathers: tuple[float | None, ...], gain: float) -> None:
    """That saves it the time of a gather, of the longest; where none was timed nothing is replaced."""

    def several(x: Tensor, one: Tensor, two: Tensor, three: Tensor) -> list[Tensor]:
        whole = gather(x)
        return [whole @ one, whole @ two, whole @ three]

    widths = N, 2 * N, 3 * N
    entries = [tuned(n, gathers=time) for n, time in zip(widths, gathers, strict=True)]
    found = decided(several, (8, K), *((K, n) for n in widths), entries=entries)
    assert [(each.gain, each.replaced) for each in found] == [(gain, gain > 0)] * 3


def test_a_collective_of_other_ranks_is_left() -> None:
    def elsewhere(x: Tensor, b: Tensor) -> Tensor:
        c10d = torch.ops._c10d_functional
        whole: Tensor = c10d.wait_tensor(c10d.all_gather_into_tensor(x, 2, "own"))
        return whole @ b

    with pytest.raises(NoMatch):
        decided(elsewhere, (8, K), (K, N), entries=[tuned()])


def test_a_bias_before_a_sum_is_divided_by_the_ranks() -> None:
    with pytest.raises(NoMatch):
        decided(lambda x, b, c: reduce(torch.addmm(c / 3, x, b)), (16, K), (K, N), (N,), entries=[])
    assert decided(lambda x, b, c: reduce(torch.addmm(c / 2, x, b)), (16, K), (K, N), (N,), entries=[])


def test_a_compilers_key_differs_by_all_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(*entries: Entry, replicated: bool = False, **options: Any) -> str:
        return Fusing(Table(Opened(entries, **options), replicated=replicated)).uuid()  # type: ignore[arg-type]

    keys = [
        key(tuned()), key(), key(tuned(latency=60.0)), key(tuned(), replicated=True), key(tuned(), handle=2),
        key(tuned(), regime=Regime.GRAPH), key(tuned(), ranks=(1, 0)), key(tuned(baselines={"bsp": 40.0})),
        key(tuned(gathers=20.0)),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys) and key(tuned()) == keys[0]
    entry = tuned()
    monkeypatch.setattr(decisions, "provenance_of", lambda found: f"other sources of {found.name}")
    assert key(entry) not in keys


def test_the_options_are_the_callers_and_ours() -> None:
    given = {"max_autotune": True, "post_grad_custom_pre_pass": None}
    found = autotune.fusing(Opened(), replicated=True, inductor=given)  # type: ignore[arg-type]
    assert found.pop("post_grad_custom_pre_pass").table.replicated and found == {"max_autotune": True}


def test_a_program_that_fails_is_no_longer_listened_to() -> None:
    before = list(LISTENERS)
    with pytest.raises(ValueError, match="in the midst"), autotune.collect():
        raise ValueError("in the midst")
    assert before == LISTENERS
