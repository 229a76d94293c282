"""``tune model --measure``: what the ranks that measure are given, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import Bench, FakeScreen
from model_configs import config

from autotune.cli import session
from autotune.db import Store
from autotune.machine import Machine
from autotune.model_runs.comparison import row
from autotune.model_runs.dense import DenseLayers


def test_measured_is_what_was_tuned_on_ranks_that_have_ended(
    gpus: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the database and the regime; nothing where the tuning was interrupted."""
    orders, file = [], f"{tmp_path / 'other.db'}"

    def rows(order: DenseLayers, machine: Machine) -> Iterator[dict[str, Any]]:
        orders.append((order.url, order.regime.value, all(gang.closed for gang in gpus.gangs)))
        yield {"tokens": 4, **row({"plain eager": [6.0, 6.0], "styles eager": [5.0, 5.0]}, 1e-3), "not_captured": ""}

    monkeypatch.setattr(session, "measured_rows", rows)
    started: list[None] = []
    monkeypatch.setattr(FakeScreen, "start", lambda screen: started.append(None))
    words = ("model", config(tmp_path), "--tp", "2", "--tokens", "4", "--trials", "2", "--regime", "graph")
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 1)
    assert gpus.tune(*words, "--db", file, "--measure").exit_code == 130 and not orders
    gpus.prepare = lambda gang: None
    result = gpus.tune(*words, "--db", file, "--measure")
    assert result.exit_code == 0, result.output
    assert orders == [(file, "graph", True)] and len(started) == 2
    with Store.open(file) as store:
        assert {entry.key.regime for entry in store.entries()} == {"graph"}
    assert gpus.tune(*words, "--db", file).exit_code == 0 and len(gpus.gangs) == 2, "all from the cache"
