"""iris-autotune in vLLM: tuned GEMM + collective kernels in tensor parallel layers, where they are faster.

    vllm serve MODEL -tp 2 --compilation-config "$(python -m iris_autotune_vllm --tp 2)"

Layers that are not compiled are taken without the option. ``IRIS_AUTOTUNE_VLLM=0`` switches all of it off.
"""

from __future__ import annotations

from autotune.compiled.served import CALLS as CALLS
from iris_autotune_vllm import operators as operators  # registers what a graph from vLLM's cache calls
from iris_autotune_vllm.fusing import Fusing
from iris_autotune_vllm.settings import switched_off

PASS = Fusing()
"""Found by its name in this module, before plugins are loaded: ``inductor_passes`` of vLLM's compilation config."""


def register() -> None:
    """The plugin, in each of vLLM's processes, maybe twice: put our layer in the place of ``RowParallelLinear``."""
    if not switched_off():
        from iris_autotune_vllm import layers

        layers.register()
