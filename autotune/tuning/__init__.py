"""The tuning loop (ask, evaluate, tell, save) and its parts: screening, search, effort, finals."""

from autotune.tuning.effort import EFFORTS, Budget, Effort, limits_of
from autotune.tuning.standing import Standing
from autotune.tuning.tune import Evaluator, Result, TurningEvaluator, tune

__all__ = ["EFFORTS", "Budget", "Effort", "Evaluator", "Result", "Standing", "TurningEvaluator", "limits_of", "tune"]
