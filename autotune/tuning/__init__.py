"""The tuning loop (ask, evaluate, tell, save) and its parts: screening, search, effort, finals."""

from importlib import import_module
from threading import Thread

# Optuna keeps the errors of its optional imports, hence the frames that it is imported from, hence their tensors: in a
# thread of its own there are none. A program that tunes on its own ranks may import it in the midst of a model.
_optuna = Thread(target=import_module, args=("optuna",))
_optuna.start()
_optuna.join()

from autotune.tuning.effort import EFFORTS, Budget, Effort, limits_of  # noqa: E402
from autotune.tuning.evaluator import Evaluator  # noqa: E402
from autotune.tuning.loop import Result, tune  # noqa: E402
from autotune.tuning.progress import Progress  # noqa: E402
from autotune.tuning.search import Given, JointSampler  # noqa: E402

__all__ = [
    "EFFORTS",
    "Budget",
    "Effort",
    "Evaluator",
    "Given",
    "JointSampler",
    "Progress",
    "Result",
    "limits_of",
    "tune",
]
