"""What the compiler knows, in named tuples: made at a kernel's top by ``known``, and passed on as one constant."""

from __future__ import annotations

from collections import namedtuple

import triton.language as tl
from triton import knobs
from triton.runtime.jit import constexpr_function


@constexpr_function
def known(kind, *values, **named):
    """A named tuple of constants, for a variable that is annotated as one: ``FORM: tl.constexpr = …``. In others the
    compiler makes ordinary numbers of them.
    """
    if not knobs.runtime.interpret:
        values = [tl.constexpr(value) for value in values]
        named = {name: tl.constexpr(value) for name, value in named.items()}
    return kind(*values, **named)


SPECIALIZED = tl.constexpr(2)

Gemm = namedtuple(
    "Gemm", "BLOCK_M BLOCK_N BLOCK_K TMA B_TRANSPOSED EVEN_K SCALES PROMOTE EPILOGUE HALVES SWAP PARTS A_TMA",
    defaults=(0, None, 0, 0, False, False, False),
)  # fmt: skip
"""The tiles of a GEMM: TMA, not 0, where ``b``, and ``a`` unless A_TMA says otherwise, are tensor descriptors, and
SPECIALIZED where their loads have warps of their own; B_TRANSPOSED where B's storage is [N, K], EVEN_K where every step
of K is a whole one. SCALES: ``scales.py``; PROMOTE: ``products.add_product``; EPILOGUE and HALVES: ``gated.py``; SWAP
and PARTS: ``moe/grouped_gemm.py``.
"""
