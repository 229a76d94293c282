"""The protocols by which finished data travels, as the kernels' PROTOCOL."""

from __future__ import annotations

import triton.language as tl

SIGNAL = tl.constexpr(0)
"""Data in its own type, then a signal."""
LL = tl.constexpr(1)
"""Words of data and flag: ``ll.py``."""
SENTINEL = tl.constexpr(2)
"""Data alone, polled until it is there: ``sentinel.py``."""

PROTOCOLS = {"signal": SIGNAL, "ll": LL, "sentinel": SENTINEL}
