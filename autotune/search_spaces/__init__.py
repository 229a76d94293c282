"""Joint search spaces: one literal per workload, and the words it is written in."""

from autotune.search_spaces.dimension import COMPILER_OPTIONS, Dimension, choices, flags, numbers
from autotune.search_spaces.space import Constraint, Setting, Space

__all__ = ["COMPILER_OPTIONS", "Constraint", "Dimension", "Setting", "Space", "choices", "flags", "numbers"]
