"""The taxes as text: units, shares, and what cannot be told."""

from __future__ import annotations

import dataclasses

from autotune.config import Config
from autotune.report.waterfall import table
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
    told = dict(table(TAXES))
    numbers = {
        "kernel launch": ("154.5", "39 %"), "bulk synchrony": ("55.50", "14 %"), "a launch": ("1.50",),
        "a late rank": ("100 ± 0 %", "5.0 µs", "4 ± 4 %", "50 µs"), "a barrier": ("1.50",),
    }  # fmt: skip
    assert told.keys() == {*numbers, "locality"}
    assert all(number in told[name] for name, every in numbers.items() for number in every), told
    undosed = dict(table(dataclasses.replace(TAXES, launches={})))
    assert "launches" in undosed["bulk synchrony"]
    noisy = dataclasses.replace(TAXES, rounds={**TAXES.rounds, "D": (253.5, 257.5, 252.5, 259.5)})
    assert dict(table(noisy))["bulk synchrony"].startswith("≈ 0 ± ") and "%" not in dict(table(noisy))["bulk synchrony"]
    larger = dataclasses.replace(TAXES, rounds={**TAXES.rounds, "B": (904.5,) * 4})
    assert dict(table(larger))["bulk synchrony"] == "700.0 ± 0.0 µs", "more than the whole is no share of it"
