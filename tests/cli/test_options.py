"""Words, integers and databases of the command line, for completion and for messages."""

from __future__ import annotations

from fakes import Bench

from autotune.cli.options import completing, masked


def test_a_word_is_completed_by_its_beginning() -> None:
    assert completing(lambda: ["push", "pull", "bsp"])("p") == ["push", "pull"]


def test_a_password_is_not_shown_and_other_databases_stay_as_they_were_given() -> None:
    assert "secret" not in masked("postgresql://me:secret@host/db") and "host" in masked(
        "postgresql://me:secret@host/db"
    )
    for db in ("some/cache.db", "sqlite:///some/cache.db"):
        assert masked(db) == db


def test_several_sizes_lead_to_the_grid(gpus: Bench) -> None:
    for sizes in ("16,32", "16..32"):
        told = " ".join(gpus.tune("all-gather-gemm", "--m", sizes).stderr.replace("│", "").split())
        assert "several sizes are tuned by: tune grid WORKLOAD" in told
