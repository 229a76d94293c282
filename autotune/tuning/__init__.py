"""The tuning loop: ask, evaluate, tell, save; and what it calls: screening, search, effort, finals."""

from autotune.tuning.effort import EFFORTS, Budget, Effort
from autotune.tuning.standing import Standing
from autotune.tuning.tune import Evaluator, Result, tune

__all__ = ["EFFORTS", "Budget", "Effort", "Evaluator", "Result", "Standing", "tune"]
