"""The view of the winners, which people read with other programs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sample import KEY, PROVENANCE
from sqlalchemy import URL, create_engine

from autotune.config import Config
from autotune.db import Store, Winner
from autotune.outcome import Latency, Regime

OURS = Latency(100.0, 99.0, 101.0, 1.0, 9, host=120.0, isolated=300.0)
THEIRS = {"slow": Latency(400.0, 399.0, 401.0, 1.0, 9), "fast": Latency(150.0, 149.0, 151.0, 1.0, 9, host=240.0)}


def rows_of(store_url: URL, what: str) -> list[Any]:
    engine = create_engine(store_url)
    try:
        with engine.connect() as connection:
            return list(connection.exec_driver_sql(f"SELECT {what} FROM tuning_winners ORDER BY study").fetchall())
    finally:
        engine.dispose()


@pytest.mark.parametrize("regime", Regime)
def test_a_winner_is_a_row_with_its_speedup_in_its_regime(store_url: URL, store: Store, regime: Regime) -> None:
    of = dataclasses.replace(KEY, problem='{"M":512,"n":"x","x.dtype":"torch.float16"}', regime=regime.value)
    for _ in range(2):
        study = store.study(of, PROVENANCE, seed=0, space_size=1)
        store.finish(study.id, Winner(Config({"mode": "push", "block_m": 64}), OURS, THEIRS))
        store.forget(study.id)
    store.study(of, PROVENANCE, seed=0, space_size=1)
    assert rows_of(store_url, "study") == [], "superseded and running ones are left out"
    study = store.study(dataclasses.replace(of, device="other"), PROVENANCE, seed=0, space_size=1)
    store.finish(study.id, Winner(Config({"mode": "push", "block_m": 64}), OURS, THEIRS))
    [(found, m, mode, ours, baseline, speedup)] = rows_of(
        store_url, "study, m, mode, microseconds, baseline_microseconds, speedup"
    )
    expected = min(latency.of(regime) for latency in THEIRS.values())
    assert (found, m, mode, ours, baseline) == (study.id, 512, "push", OURS.of(regime), expected)
    assert speedup == pytest.approx(expected / OURS.of(regime))


def test_without_baselines_there_is_no_speedup(store_url: URL, store: Store) -> None:
    study = store.study(KEY, PROVENANCE, seed=0, space_size=1)
    store.finish(study.id, Winner(Config({"mode": "push"}), OURS))
    assert rows_of(store_url, "speedup") == [(None,)]
