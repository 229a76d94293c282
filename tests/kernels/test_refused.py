"""Problems that no kernel of a workload computes are refused by the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import InvalidProblem
from autotune.kernels.moe.histogram import histogram_text
from autotune.workloads import workload

FP8 = {"dtype": "fp8", "b_order": "nk"}
EXPERTS = {"tokens": 4, "hidden": 8, "experts": 4, "top_k": 2}
RECORDED = {"routing": "recorded"}
GEMM = {"m": 8, "n": 512, "k": 64}
TABLE: dict[str, tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = {
    "all_gather_gemm": (GEMM, [
        ({"quantised": True}, "epilogue"), ({"n": 600, "epilogue": "swiglu", "quantised": True}, "512"),
        ({"n": 6, "epilogue": "swiglu"}, "n=6"), ({"gate_up": "interleaved"}, "gate_up"),
        ({"epilogue": "relu"}, "epilogue"),
    ]),
    "gemm_reduce_scatter": (GEMM, [({"m": 7}, "m=7"), ({"k": 3}, "k=3")]),
    "gemm_all_reduce": (GEMM, [({"k": 101}, "k=101")]),
    "gemm_all_reduce_norm": (GEMM, [({"n": 100}, "n=100")]),
    "all_reduce_norm": ({"m": 1, "n": 64}, [
        ({"n": 100}, "n=100"), ({"n": 16392}, "n=16392"), ({"n": 520, "quantised": "block"}, "quantised=block"),
        ({"eps": -1.0}, "eps"),
    ]),
    "moe_dispatch": (EXPERTS, [
        ({"experts": 5}, "experts=5"), ({"hidden": 20}, "hidden=20"), ({"top_k": 5}, "top_k=5"),
        ({"experts": 2048}, "experts=2048"), ({"exponent": 1.0}, "exponent"), ({"routing": "zipf"}, "exponent"),
        ({"routing": "hot"}, "routing='hot'"), (RECORDED, "histogram"),
        ({"histogram": histogram_text(range(4))}, "histogram"),
        ({**RECORDED, "histogram": histogram_text(range(3))}, "experts=4"), ({**RECORDED, "exponent": 1.0}, "exponent"),
        ({**RECORDED, "histogram": "counts"}, "recorded_histogram"), ({**RECORDED, "histogram": 3}, "histogram=3"),
    ]),
    "moe_dispatch_gemm": ({**EXPERTS, "width": 8}, [
        ({"width": 20}, "width=20"), ({"epilogue": "none", "gate_up": "interleaved"}, "epilogue"),
        (FP8, "scales=none"), ({**FP8, "scales": "row"}, "columns of A"),
        ({**FP8, "scales": "block", "hidden": 64}, "128"),
        ({**FP8, "scales": "tensor"}, "scales='tensor'"), ({"scales": "row"}, "scales=row"),
        ({**FP8, "b_order": "kn", "scales": "row", "hidden": 16}, "transposed"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields", "told"), [(name, changed, told) for name, (_, rows) in TABLE.items() for changed, told in rows]
)
def test_what_no_kernel_computes_is_refused(name: str, fields: dict[str, Any], told: str) -> None:
    kind, sizes = workload(name).problem_type, {**TABLE[name][0], "world_size": 2}
    kind(**sizes)
    with pytest.raises(InvalidProblem, match=told):
        kind(**{**sizes, **fields})
