"""Marks of a call: torch's operations, and our kernels beside them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton import knobs
from triton.compiler.compiler import LazyDict

from autotune.ranks.marks import Marks
from autotune.timeline import BARRIER, CALL, COLLECTIVE, COPY, GEMM

A = torch.ones(4, 4)


def launch(name: str) -> None:
    launched = LazyDict({"name": name})
    knobs.runtime.launch_enter_hook(launched)
    knobs.runtime.launch_exit_hook(launched)


def marked(*calls: Any) -> list[int]:
    marks = Marks(torch.device("cpu"))
    begin = marks.now()
    with marks:
        for call in calls:
            launch(call) if isinstance(call, str) else call()
    launch("gather_kernel")  # behind the call: not its own
    events = marks.events(begin, marks.now())
    assert all(0 <= start <= end for *_, start, end in events)
    return [kind for _, _, kind, *_ in events]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gather_words_kernel", COLLECTIVE), ("all_reduce_kernel", COLLECTIVE), ("pull_sum_kernel", COLLECTIVE),
        ("dispatch_kernel", COLLECTIVE), ("combine_kernel", COLLECTIVE), ("grouped_gemm_kernel", GEMM),
        ("wait_for_chunk_kernel", BARRIER), ("barrier_kernel", BARRIER),
    ],
)  # fmt: skip
def test_our_kernels_are_marked_by_what_they_do(name: str, kind: int) -> None:
    assert marked(name, lambda: A @ A, lambda: A.copy_(A)) == [CALL, kind, GEMM, COPY]


def test_of_what_nobody_knows_there_is_no_timeline() -> None:
    assert marked("somebodys_kernel", lambda: A + A) == []
