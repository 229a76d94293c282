"""For ``tune taxes``: our GEMM in a launch of its own."""

from __future__ import annotations

from typing import Any

from autotune.kernels.gemm.tile import GemmTile
from autotune.kernels.launching.contract import Call
from autotune.kernels.launching.plan import Launch
from autotune.kernels.primitives.kept_tiles import keep_tiles_kernel


def keep_tiles(call: Call[Any, Any, Any, Any], programs: int, **tiles: Any) -> Launch:
    """The GEMM of a config; ``tiles``: where it keeps them, and how it cuts them."""
    mode: GemmTile = call.knobs
    (m, k), n = call.tensors.a.shape, call.problem.n
    known = mode.common(call.task, call.tensors) | call.common()
    arguments = {name: known[name] for name in keep_tiles_kernel.arg_names if name in known} | {
        "a": mode.a_operand(call.tensors.a, in_two_parts=mode.in_two_parts(call.task)),
        **vars(call.scratch.splits), "M": m, "N": n, "K": k, "SPLITS": mode.split_k, **tiles,
    }  # fmt: skip
    return Launch(keep_tiles_kernel, programs, arguments, mode.options)
