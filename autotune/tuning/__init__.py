"""The tuning loop (ask, evaluate, tell, save) and its parts: screening, search, effort, finals."""

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

# Optuna keeps the errors of its optional imports, hence the frames that it is imported from, hence their tensors: in a
# thread of its own there are none. A program that tunes on its own ranks may import it in the midst of a model.
with ThreadPoolExecutor(1) as _thread:
    _thread.submit(import_module, "optuna").result()

from autotune.tuning.effort import EFFORTS as EFFORTS
from autotune.tuning.effort import Budget as Budget
from autotune.tuning.effort import Effort as Effort
from autotune.tuning.effort import limits_of as limits_of
from autotune.tuning.evaluator import Evaluator as Evaluator
from autotune.tuning.loop import Result as Result
from autotune.tuning.loop import tune as tune
from autotune.tuning.progress import Progress as Progress
from autotune.tuning.search import Given as Given
from autotune.tuning.search import JointSampler as JointSampler
