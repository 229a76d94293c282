"""The tuning loop (ask, evaluate, tell, save) and its parts: screening, search, effort, finals."""

from autotune.tuning.effort import EFFORTS, Budget, Effort, limits_of
from autotune.tuning.loop import Evaluator, Result, TurningEvaluator, tune
from autotune.tuning.progress import Progress
from autotune.tuning.search import Given, JointSampler

__all__ = [
    "EFFORTS",
    "Budget",
    "Effort",
    "Evaluator",
    "Given",
    "JointSampler",
    "Progress",
    "Result",
    "TurningEvaluator",
    "limits_of",
    "tune",
]
