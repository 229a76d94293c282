"""An entry as lines and as values: every figure is its own, of the regime that the entry is of, from its own source."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest
from fakes import EIGHT_GPUS, LAPTOP, latency_of

from autotune.cli.entry_text import entry_dict, entry_lines, entry_title, short_problem, speedup_text
from autotune.db import CacheKey, Entry, Roofline, Routed, Winner
from autotune.outcome import Regime
from autotune.workloads import provenance_of, workload

FOUND = workload("moe_dispatch")
PROBLEM = FOUND.problem_type(tokens=128, hidden=7168, experts=64, top_k=8, world_size=8, routing="zipf", exponent=0.5)
WINNER = Winner(
    FOUND.default_config(PROBLEM, EIGHT_GPUS),
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
        "uniform": Routed(latency_of(300.0, 8, 350.0, 1000.0), {"bsp eager": latency_of(450.0, 8, 500.0, 3000.0)})
    },
)
ENTRY = Entry(
    CacheKey.of(PROBLEM, EIGHT_GPUS, Regime.ISOLATED), provenance_of(FOUND), WINNER, 3,
    datetime(2026, 2, 14, 9, 30, tzinfo=UTC), 77, 5, 900, datetime(2026, 3, 25, 16, 45, tzinfo=UTC), "some.py:Thing",
)  # fmt: skip


def told(entry: Entry) -> dict[str, str]:
    """By name; a name's further lines follow its first."""
    found: dict[str, str] = {}
    last = ""
    for name, text in entry_lines(entry):
        last = name or last
        found[last] = "\n".join(filter(None, [found.get(last), text]))
    return found


def test_values() -> None:
    values = entry_dict(ENTRY)
    assert (values["study"], values["trials"], values["origin"]) == (3, 77, "some.py:Thing")
    assert values["finished_at"] == "2026-02-14T09:30:00+00:00"
    assert values["imported_at"] == "2026-03-25T16:45:00+00:00"
    assert entry_dict(replace(ENTRY, imported_at=None))["imported_at"] is None
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


def test_what_is_slower_within_its_noise_is_not_called_slower() -> None:
    near = replace(WINNER, latency=latency_of(432.0, 8, 603.0, 1206.0))
    assert entry_dict(replace(ENTRY, winner=near))["slower_than"] == {}
    far = replace(WINNER, latency=latency_of(500.0, 8, 603.0, 1206.0))
    assert entry_dict(replace(ENTRY, winner=far))["slower_than"] == {"graph": "bsp slow"}


def test_lines() -> None:
    lines = told(ENTRY)
    assert lines["device"].startswith("8 × NVIDIA H200 (")
    assert lines["winner"] == "800.0 µs ± 1.0 %, isolated, skew 1.60 µs"
    assert [line.partition(" as fast as ")[2] for line in lines["speedup"].splitlines()] == [
        "bsp eager (1.200 ms ± 1.0 %)", "bsp graph (1.600 ms ± 1.0 %)", "bsp slow (2.400 ms ± 1.0 %)",
    ]  # fmt: skip
    winner = "winner: in a graph 400.0 µs, pipelined 500.0 µs, isolated 800.0 µs"
    assert lines["regimes"].splitlines()[0] == winner
    uniform = "uniform: 1.000 ms ± 1.0 %, 3.00 ± 0.04 (by spread) times as fast as bsp eager (3.000 ms ± 1.0 %)"
    assert lines["routings"].splitlines() == [uniform, "zipf 1: not timed: the budget ended",
                                              "one expert: not timed: the budget ended"]  # fmt: skip
    assert lines["limit"] == "0.50 of the limit: all_to_all alone 100.0 µs, gemm alone 200.0 µs"
    assert lines["overlap"].startswith("13 % of what the fastest baseline adds")
    assert lines["roofline"] == "0.40 of the roofline: memory busy for 160.0 µs at this device's rates"
    assert lines["trials"] == "77, finals and invalid ones included"
    assert lines["tuned"] == "2026-02-14 09:30 UTC, study 3, imported 2026-03-25 16:45 UTC"
    assert lines["file"] == "some.py:Thing" and "kernel" not in lines and "stale" not in lines
    assert "note" not in lines


def test_lines_that_depend() -> None:
    rounds = replace(WINNER.latency, rounds=(400.0, 401.0))
    assert "note" not in told(replace(ENTRY, winner=replace(WINNER, latency=rounds)))
    assert told(replace(ENTRY, imported_at=None))["tuned"] == "2026-02-14 09:30 UTC, study 3"
    usual = replace(ENTRY, key=replace(ENTRY.key, regime="pipelined"))
    assert told(usual)["winner"] == "500.0 µs ± 1.0 %, skew 1.60 µs", "the usual regime is not named"
    old = replace(ENTRY, provenance=replace(ENTRY.provenance, triton="2.0.0"))
    assert told(old)["stale"].startswith("triton 2.0.0 is now ")
    apart = replace(WINNER, baselines={"bsp eager": latency_of(450.0, 8)})
    assert "pipelined 500.0 µs" in told(replace(ENTRY, winner=apart))["regimes"], "though the baseline has one alone"
    interpreted = replace(ENTRY, key=CacheKey.of(PROBLEM, LAPTOP, Regime.ISOLATED))
    lines = told(interpreted)
    assert lines["winner"] == "800.0 µs ± 1.0 %, skew 1.60 µs", "no word of a regime"
    assert not {"limit", "overlap", "roofline"} & {*lines} and "interpreter" in lines["note"].splitlines()[0]


def test_titles() -> None:
    assert entry_title(ENTRY).startswith("moe-dispatch  ") and entry_title(ENTRY).endswith(" --regime isolated")
    assert "tokens=128" in short_problem(ENTRY.key) and "dtype=bf16" not in short_problem(ENTRY.key)
    kernel = replace(ENTRY.key, problem='{"dtype":"bf16","x.dtype":"torch.float32"}')
    assert "dtype=bf16" in short_problem(kernel).split(), "a kernel of the same name has defaults of its own"
    assert speedup_text(WINNER, Regime.ISOLATED) == "1.50x bsp eager"
    assert speedup_text(WINNER, Regime.GRAPH) == "1.07x bsp slow"
    assert speedup_text(replace(WINNER, baselines={}), Regime.GRAPH) == ""
