"""What the compiler knows, in named tuples: made at a kernel's top by ``known``, and passed on as one constant."""

from __future__ import annotations

from typing import Any, NamedTuple

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


class Gemm(NamedTuple):
    """The tiles of a GEMM."""

    BLOCK_M: Any
    BLOCK_N: Any
    BLOCK_K: Any
    TMA: Any
    """``b``, and ``a`` unless said otherwise, are tensor descriptors."""
    B_TRANSPOSED: Any
    """B's storage is [N, K]."""
    EVEN_K: Any
    """Every step of K is a whole one."""
    SCALES: Any = 0
    """See ``scales.py``."""
    PROMOTE: Any = None
    """See ``products.add_product``."""
    EPILOGUE: Any = 0
    HALVES: Any = 0
    """See ``gated.py``."""
    SWAP: Any = False
    """See ``moe/grouped_gemm.py``, and there alone, as the last two."""
    PARTS: Any = False
    A_TMA: Any = False
