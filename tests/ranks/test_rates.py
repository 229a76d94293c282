"""The rates of GPUs and links, from what their times are said to be. Starts no process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.ranks import rates
from autotune.ranks.rates import COPIED, LEAST_SENT, MOST_SENT, SIDE, measured_rates


def found(monkeypatch: pytest.MonkeyPatch, world_size: int, left: int) -> tuple[dict[str, float], list[int]]:
    """The rates where an exchange takes 100 µs, a copy 1000 and a GEMM 2000; and the bytes sent."""
    sent: list[int] = []
    monkeypatch.setattr(rates, "_exchange_time", lambda heap, piece: sent.append(piece) or 100.0)
    monkeypatch.setattr(rates, "_copy_time", lambda device: 1000.0)
    monkeypatch.setattr(rates, "_gemm_time", lambda device, dtype: 2000.0)
    heap: Any = SimpleNamespace(world_size=world_size, left=left, device="cpu")
    return measured_rates(heap, "bf16"), sent


def test_a_copy_reads_and_writes_and_all_peers_send_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, sent = found(monkeypatch, 4, 1 << 40)
    assert measured == {
        "links": 3 * MOST_SENT / 100, "memory": 2 * COPIED / 1000, "flops": 2 * SIDE**3 / 2000,
    }  # fmt: skip
    assert sent == [MOST_SENT]


@pytest.mark.parametrize(
    ("world_size", "left", "sent"),
    [(4, 6 * LEAST_SENT, [LEAST_SENT]), (4, 6 * LEAST_SENT - 1, []), (1, 1 << 40, [])],
    ids=["an inbox of each rank and a source fit", "a full heap", "one rank"],
)
def test_what_the_heap_has_left_is_sent_or_nothing(
    monkeypatch: pytest.MonkeyPatch, world_size: int, left: int, sent: list[int]
) -> None:
    measured, told = found(monkeypatch, world_size, left)
    assert told == sent and ("links" in measured) is bool(sent)
