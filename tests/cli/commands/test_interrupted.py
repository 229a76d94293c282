"""``tune``, interrupted: what was measured is kept, and the same command goes on."""

from __future__ import annotations

import json

from fakes import Bench

SMALL = ("all-gather-gemm", "--trials", "12", "--effort", "quick")


def test_interrupted_it_says_so_and_the_same_command_measures_nothing_twice(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 7)
    result = gpus.tune(*SMALL, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 130 and told["interrupted"] and not told["finished"]
    assert told["microseconds"] == told["latency"]["median"] > 0 and gpus.gangs[0].closed
    gpus.prepare = lambda gang: None
    values = gpus.json(*SMALL)
    assert values["resumed"] == 7 and values["finished"]
    second = gpus.gangs[1].calls
    searched = second[: 12 - 7]
    assert not set(searched) & set(gpus.gangs[0].calls), "a config was measured twice in the search"
    assert sum(count for outcome, count in values["outcomes"].items() if outcome != "invalid") == 12


def test_interrupted_before_anything_was_measured(gpus: Bench) -> None:
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 0)
    assert gpus.tune(*SMALL).exit_code == 130
    assert gpus.json(*SMALL)["config"] is None
