"""A result as values: every figure is its own, of the regime that it was tuned for; configs told in words."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from fakes import EIGHT_GPUS, LAPTOP, latency_of

from autotune.config import Config
from autotune.db import CacheKey, Entry, Roofline, Routed, Winner
from autotune.outcome import HostOverhead, Regime
from autotune.results.lines import bars, entry_facts, in_words, sentence
from autotune.results.regimes import CAPTURE, called_alike, conclusion, verdicts
from autotune.results.result import Result, short_problem
from autotune.task import Task
from autotune.workloads import provenance_of, workload
from autotune.workloads.user_files import BUILT_IN

FOUND = workload("moe_dispatch")
PROBLEM = FOUND.problem_type(tokens=128, hidden=7168, experts=64, top_k=8, world_size=8, routing="zipf", exponent=0.5)
WINNER = Winner(
    FOUND.default_config(Task(PROBLEM, EIGHT_GPUS)),
    latency_of(400.0, 8, 500.0, 800.0),
    {
        # The order differs by the device's time, in the regime, and as they stand.
        "bsp slow": latency_of(430.0, 8, 600.0, 2400.0),
        "bsp eager": latency_of(450.0, 8, 700.0, 1200.0),
        "bsp graph": latency_of(440.0, 8, 650.0, 1600.0),
    },
    limits={"all_to_all": latency_of(100.0, 8, 999.0), "gemm": latency_of(200.0, 8)},
    roofline=Roofline({"flops": 1.0, "memory": 1.0}, {"flops": 40.0, "memory": 160.0}),
    routings={
        "uniform": Routed(latency_of(300.0, 8, 350.0, 1000.0), {"bsp eager": latency_of(450.0, 8, 500.0, 3000.0)}),
        "one expert": Routed(latency_of(400.0)),
    },
)
ENTRY = Entry(
    CacheKey.of(Task(PROBLEM, EIGHT_GPUS), Regime.ISOLATED), provenance_of(FOUND), WINNER, 3,
    datetime(2026, 2, 14, 9, 30, tzinfo=UTC), 77, 5, 900, datetime(2026, 3, 25, 16, 45, tzinfo=UTC), "some.py:Thing",
)  # fmt: skip
INTERPRETED = replace(ENTRY, key=CacheKey.of(Task(PROBLEM, LAPTOP), Regime.ISOLATED))


def result(entry: Entry = ENTRY, **winner: object) -> Result:
    return Result.of(replace(entry, winner=replace(entry.winner, **winner)))  # type: ignore[arg-type]


def test_values() -> None:
    values = result().to_dict()
    assert (values["study"], values["trials"], values["origin"]) == (3, 77, "some.py:Thing")
    assert values["finished_at"] == "2026-02-14T09:30:00+00:00"
    assert values["imported_at"] == "2026-03-25T16:45:00+00:00"
    assert values["microseconds"] == 800.0 and values["regime"] == "isolated"
    assert {name: each["value"] for name, each in values["speedups"].items()} == {
        "bsp slow": 3.0, "bsp eager": 1.5, "bsp graph": 2.0,
    }  # fmt: skip
    uniform = values["routings"]["uniform"]
    assert uniform["microseconds"] == 1000.0 and uniform["latency"]["median"] == 300.0
    assert {name: each["value"] for name, each in uniform["speedups"].items()} == {"bsp eager": 3.0}
    assert values["limit_share"] == pytest.approx(0.5) and values["roofline_share"] == pytest.approx(0.4)
    assert values["overlap_efficiency"] == pytest.approx(1 - 200 / 230), "of the fastest on the device"
    assert values["roofline"] == asdict(WINNER.roofline)  # type: ignore[arg-type]


def test_interpreted_times_say_nothing_about_gpus() -> None:
    of = result(INTERPRETED)
    assert of.limit is None and of.speedup_text == "" and of.speedups[0].ratio is None and of.verdicts == ()
    assert bars(of) == [] and "bsp" not in sentence(of)
    assert not {"overlap", "regimes"} & {name for name, _ in entry_facts(of)}


def test_defaults_are_left_out_of_a_workloads_problem_and_not_of_a_kernels() -> None:
    assert "tokens=128" in short_problem(ENTRY.key) and "dtype=bf16" not in short_problem(ENTRY.key)
    kernel = replace(ENTRY.key, problem='{"dtype":"bf16","x.dtype":"torch.float32"}')
    assert "dtype=bf16" in short_problem(kernel).split()


def test_what_is_slower_within_its_noise_is_not_called_slower() -> None:
    assert result(latency=latency_of(432.0, 8, 603.0, 1206.0)).to_dict()["slower_than"] == {}
    assert result(latency=latency_of(500.0, 8, 603.0, 1206.0)).to_dict()["slower_than"] == {"graph": "bsp slow"}


def test_a_baseline_that_is_the_winner_is_not_compared_with_itself() -> None:
    """The overhead is in the winner's times alone; the device's time is of the same calls."""
    library, overhead = latency_of(150.0, host=40.0), HostOverhead(9.0, 14.0)
    of = result(latency=library.through(overhead), baselines={"bsp eager": library, "bsp graph": latency_of(140.0)})
    assert [each.is_winner for each in of.speedups] == [False, True]
    routed = result(routings={"uniform": Routed(library.through(overhead), {"bsp eager": library})}).routings[1]
    assert routed.speedup is not None and routed.speedup.is_winner


def test_a_sentence_gives_a_ratio_only_where_it_is_told() -> None:
    eager = {"bsp eager": latency_of(450.0, 8, 700.0, 1200.0)}
    assert sentence(result(baselines=eager)).startswith("1.50 ± ")
    noisy = replace(latency_of(400.0, 8, 500.0, 1100.0), low=100.0, high=900.0)
    assert sentence(result(latency=noisy, baselines=eager)).startswith("not told apart from ")
    assert "stays" in sentence(result(latency=eager["bsp eager"], baselines=eager))
    assert "instead" not in sentence(result(baselines={}))


def test_a_row_for_each_routing() -> None:
    rows = result().routings
    assert [(row.routing, row.tuned_for, row.latency and row.latency.median) for row in rows] == [
        ("zipf 0.5", True, 400.0), ("uniform", False, 300.0), ("zipf 1", False, None), ("one expert", False, 400.0),
    ]  # fmt: skip
    assert rows[1].speedup is not None and rows[1].speedup.text.startswith("3.00 ±") and rows[3].speedup is None
    interpreted = result(INTERPRETED).routings[1].speedup
    assert len(result(routings={}).routings) == 1 and interpreted is not None and interpreted.ratio is None


BASELINES = {
    "bsp graph": latency_of(90.0, host=95.0, isolated=300.0),
    "bsp eager": latency_of(110.0, host=120.0, isolated=180.0),
    "other": latency_of(100.0),
}


def test_each_regime_has_its_own_fastest_baseline() -> None:
    found = verdicts(Winner(Config({"mode": "push"}), latency_of(100.0, host=100.0, isolated=200.0), BASELINES))
    told = [(each.regime, each.baseline, each.winner_microseconds, each.baseline_microseconds) for each in found]
    assert told == [
        (Regime.GRAPH, "bsp graph", 100.0, 90.0),
        (Regime.PIPELINED, "bsp graph", 100.0, 95.0),
        (Regime.ISOLATED, "bsp eager", 200.0, 180.0),
    ]
    only = {"other": latency_of(80.0), "bsp eager": BASELINES["bsp eager"]}
    isolated = verdicts(Winner(Config({"mode": "push"}), latency_of(100.0, isolated=200.0), only))
    assert [(each.regime, each.baseline) for each in isolated] == [
        (Regime.GRAPH, "other"), (Regime.ISOLATED, "bsp eager"),
    ], "what was not measured in a regime is not compared in it"  # fmt: skip


def test_only_a_graph_that_eager_callers_do_not_get_is_explained() -> None:
    def concluded(**regimes: float) -> str:
        return conclusion(verdicts(Winner(Config({"mode": "push"}), latency_of(100.0, **regimes), BASELINES)), str)  # type: ignore[arg-type]

    assert concluded(host=50.0, isolated=150.0).endswith(CAPTURE)
    assert CAPTURE not in concluded() and conclusion((), str) == ""


def test_callers_who_do_not_capture_do_not_get_a_captured_baseline() -> None:
    assert list(called_alike(BASELINES, Regime.GRAPH)) == list(BASELINES)
    assert list(called_alike(BASELINES, Regime.PIPELINED)) == ["bsp eager", "other"]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_declared_dimension_tells_its_values_apart(name: str) -> None:
    """A value that goes without saying is told by its absence."""
    found = workload(name)
    for config in found.first_configs(Task(found.default_problem(EIGHT_GPUS, 8), EIGHT_GPUS)):
        for dimension in found.space.dimensions_of(str(config["mode"])):
            told = [dimension.told({**config, dimension.name: value}) for value in dimension.values]
            assert dimension.say == "" or len(set(told)) == len(told), dimension
            assert not any("_" in each or "{" in each for each in told), "a value that has no words"


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("gemm_all_reduce", {"split_k": 1, "group_m": 1, "num_warps": 4}, "4 warps."),  # one is not said
        ("gemm_reduce_scatter", {"mode": "shove", "block_m": 16, "age": 3}, "shove; block_m 16, age 3."),
        ("matmul_kernel", {"BLOCK": 64, "EVEN": True}, "BLOCK 64, EVEN true."),
        ("theirs", {"mode": "ring\n", "x": 1}, "mode ring\\n; x 1."),
    ],
)
def test_values_in_words(name: str, values: dict[str, Any], told: str) -> None:
    assert in_words(name, Config(values)) == told
