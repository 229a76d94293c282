"""Joint search spaces: one literal per workload, and the words it is written in."""

from autotune.search_spaces.dimension import Dimension, choices, flags, numbers
from autotune.search_spaces.space import Constraint, Setting, Space

__all__ = ["Constraint", "Dimension", "Setting", "Space", "choices", "flags", "numbers"]
