"""The language of joint search spaces. The spaces themselves lie beside their kernels: kernels/…/space.py, modes.py."""

from autotune.search_spaces.dimension import COMPILER_OPTIONS, Dimension, choices, flags, numbers
from autotune.search_spaces.space import Constraint, Space
from autotune.task import Task

__all__ = ["COMPILER_OPTIONS", "Constraint", "Dimension", "Space", "Task", "choices", "flags", "numbers"]
