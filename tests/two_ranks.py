"""Ways to run two ranks, for ``run_ranks``: under the interpreter, on two GPUs, taking turns on one."""

from __future__ import annotations

import pytest

GPUS = (
    pytest.param("each", id="2 GPUs", marks=pytest.mark.gpu(2)),
    pytest.param("one", id="two ranks on one GPU", marks=pytest.mark.gpu),
)
A_GPU_EACH = (pytest.param("", id="interpreter"), GPUS[0])
"""Where the library's collectives are part of what is tested."""

EVERYWHERE = (pytest.param("", id="interpreter"), *GPUS)

SAMPLED = (
    pytest.param(("", True), id="interpreter"),
    pytest.param(("", False), id="interpreter, all", marks=pytest.mark.slow),
    pytest.param(("each", False), id="2 GPUs", marks=pytest.mark.gpu(2)),
)
"""``A_GPU_EACH``, and whether the ranks are to run a sample."""
