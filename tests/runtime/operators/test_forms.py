"""Operators in every form of call: operands of any dimensions and strides, what follows a GEMM, torch's modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from calls import MODES, url, wrong_of
from ranks_of_functions import run_ranks
from two_ranks import TWO_GPUS

GATHER, SCATTER, REDUCE, DECODE = (len(modes - {"bsp"}) for modes in MODES.values())
FORMS: dict[str, dict[str, int]] = {
    "dimensions": {
        "dimensions": 6, "averages": 2 * 5, "scaled": 2, "strides": 5 * (GATHER + SCATTER + REDUCE),
        "ragged": 2 * 4 + 3,
    },
    "epilogues": {
        "quantised": 1 + GATHER, "residual": 2, "several": 1, "gathered": 2 * (GATHER - 1) + 1,
        "gathered_bits": GATHER, "infinite": SCATTER + REDUCE,
    },
    "torch_modes": {
        "inference_mode": 8, "default_device": 4, "current_device": GATHER, "tangents": 6, "dispatched": 10,
        "negated": 8, "negated_parts": 5,
    },
}  # fmt: skip
"""By file and function the least number of its answers: errors, or True for what has to be."""


@pytest.mark.parametrize("gpu", TWO_GPUS)
@pytest.mark.parametrize("forms", FORMS)
def test_every_form_of_call_is_right(forms: str, gpu: str, tmp_path: Path) -> None:
    file = str(Path(__file__).with_name(f"{forms}_on_ranks.py"))
    for found in run_ranks(file, "everything", 2, tmp_path, gpu=gpu, argument=url(tmp_path)):
        assert found.keys() == FORMS[forms].keys()
        for name, least in FORMS[forms].items():
            assert not wrong_of(found[name], least), name
