"""The tuning loop (ask, evaluate, tell, save) and its parts: screening, search, effort, finals."""

from autotune.tuning.effort import EFFORTS, Budget, Effort, limits_of
from autotune.tuning.loop import Evaluator, Result, TurningEvaluator, tune
from autotune.tuning.progress import Progress

__all__ = ["EFFORTS", "Budget", "Effort", "Evaluator", "Result", "Progress", "TurningEvaluator", "limits_of", "tune"]
