"""Ways to run two ranks, for ``run_ranks``: under the interpreter, on two GPUs, taking turns on one."""

from __future__ import annotations

from typing import Any

import pytest

INTERPRETED = pytest.param("", id="interpreter")
GPUS = (
    pytest.param("each", id="2 GPUs", marks=pytest.mark.gpu(2)),
    pytest.param("one", id="two ranks on one GPU", marks=pytest.mark.gpu),
)

TWO_GPUS = (INTERPRETED, GPUS[0])
"""For tests to which turns on one GPU would add nothing; ``RANKS_PER_GPU=2`` lets their ranks take turns."""

A_GPU_EACH = (INTERPRETED, pytest.param("each", id="2 GPUs", marks=pytest.mark.gpu(2, each=True)))
"""For tests that call the library's collectives, which take one rank a GPU."""

EVERYWHERE = (INTERPRETED, *GPUS)


def sampled(ways: Any) -> list[Any]:
    """Each of these ways, and whether ranks are to run a sample: interpreted ones run all with ``-m slow`` alone."""
    interpreted, *gpus = ways
    return [
        pytest.param((*interpreted.values, True), id=interpreted.id),
        pytest.param((*interpreted.values, False), id=f"{interpreted.id}, all", marks=pytest.mark.slow),
        *(pytest.param((*each.values, False), id=each.id, marks=each.marks) for each in gpus),
    ]
