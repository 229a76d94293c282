"""Mutants: the kernels with one thing broken. Read as tables: where, what stands there, what stands there instead.

A snippet must occur in its file exactly as often as is said, so that the tables cannot rot. ``case`` is a name in
``mutant_cases.CASES``: the problem and config whose evaluation has to find the mutant out.
"""

from __future__ import annotations

from mutants import experts, flash_decode, gathers, reductions, shared
from mutants.table import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: list[Mutant] = [
    *shared.MUTANTS, *gathers.MUTANTS, *reductions.MUTANTS, *experts.MUTANTS, *flash_decode.MUTANTS,
]  # fmt: skip
