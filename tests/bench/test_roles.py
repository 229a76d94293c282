"""The bench of warp-specialized GEMMs alone: its kernels compile, and keep their sums in registers."""

from __future__ import annotations

import pytest
import roles
from compile_worker import DEADLINE, Compilers
from every_mode import whole

from autotune.machine import H100


@pytest.mark.parametrize("dtype", [whole("bf16"), "fp8_block"])
def test_sums_stay_in_registers(dtype: str, compilers: Compilers) -> None:
    variant = roles.VARIANTS[dtype][0]
    said = compilers.submit(H100, roles.survey_one, dtype, variant).result(DEADLINE)
    assert said.endswith("registers 168, spills 0"), said
