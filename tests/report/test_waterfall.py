"""The taxes as text: units, shares, and what cannot be told."""

from __future__ import annotations

import dataclasses

from autotune.config import Config
from autotune.report.waterfall import notes, table
from autotune.taxes.result import Taxes

RUNGS = {"E0": 400.0, "E1": 300.0, "G": 250.0, "B": 260.0, "D": 200.0}
TAXES = Taxes(
    winner=Config({"mode": "push"}),
    base=Config({"mode": "push"}),
    origin="the winner",
    configs={},
    missing={"F": "not here"},
    rounds={letter: (time,) * 4 for letter, time in RUNGS.items()},
    parts={"gemm": (180.0,) * 4, "all_gather": (90.0,) * 4},
    clocks={},
    launches={"B": {0.0: (260.0,) * 4, 4.0: (266.0,) * 4}},
    boundaries=3,
    late={
        "B": {0.0: (100.0,) * 4, 10.0: (110.0,) * 4, 50.0: (150.0,) * 4},
        "D": {0.0: (100.0,) * 4, 50.0: (100.0, 104.0, 100.0, 104.0)},
    },
    barrier=(1.5,) * 4,
)


def test_each_tax_has_its_share_of_the_first_rung() -> None:
    assert dict(table(TAXES)) == {
        "kernel launch": "154.5 ± 0.0 µs, 39 % of E0",
        "bulk synchrony": "55.50 ± 0.00 µs, 14 % of E0",
        "locality": "not told apart: there is no rung F",
        "a launch": "B 1.50 ± 0.00 µs for each more between the phases",
        "a late rank": "B passes on 100 ± 0 %, absorbs 5.0 µs\nD passes on 4 ± 4 %, absorbs over 50 µs",
        "a barrier": "1.50 ± 0.00 µs, of all ranks on the device",
    }
    without_d = dataclasses.replace(
        TAXES, rounds={letter: each for letter, each in TAXES.rounds.items() if letter != "D"}
    )
    assert dict(table(without_d))["locality"] == "not told apart: there is no rung D, F"
    undosed = dict(table(dataclasses.replace(TAXES, launches={})))
    assert undosed["bulk synchrony"] == "not told apart: empty launches were not measured on B"
    noisy = dataclasses.replace(TAXES, rounds={**TAXES.rounds, "D": (253.5, 257.5, 252.5, 259.5)})
    assert dict(table(noisy))["bulk synchrony"].startswith("≈ 0 ± ") and "%" not in dict(table(noisy))["bulk synchrony"]
    larger = dataclasses.replace(TAXES, rounds={**TAXES.rounds, "B": (904.5,) * 4})
    assert dict(table(larger))["bulk synchrony"] == "700.0 ± 0.0 µs", "more than the whole is no share of it"


def test_rounds_that_do_not_count_are_said() -> None:
    assert not any("Clocks" in line or "clocks" in line for line in notes(TAXES))
    clocks = {"E0": (1980.0, 1980.0, 1980.0, 1700.0), "B": (1980.0,) * 4}
    throttled = dataclasses.replace(TAXES, clocks=clocks)
    assert notes(throttled)[-1].startswith("Not counted: 1 more round,") and "3 rounds," in notes(throttled)[-2]
    every = dataclasses.replace(TAXES, clocks={**clocks, "E0": (1700.0,) * 4})
    assert notes(every)[-1].startswith("Clocks differed by more than 3 % in nearly every round")
