"""The tuning loop: ask, evaluate, tell, save; and what it calls: screening, search, effort, finals."""

from autotune.tuning.effort import EFFORTS, Budget, Effort, limits_of
from autotune.tuning.search import Given, JointSampler
from autotune.tuning.standing import Standing
from autotune.tuning.tune import Evaluator, Result, TurningEvaluator, tune

__all__ = [
    "EFFORTS",
    "Budget",
    "Effort",
    "Evaluator",
    "Given",
    "JointSampler",
    "Result",
    "Standing",
    "TurningEvaluator",
    "limits_of",
    "tune",
]
