"""The search: which config next, and the surrogate that it asks."""

from importlib import import_module
from threading import Thread

# Optuna keeps the errors of its optional imports, hence the frames that it is imported from, hence their tensors: in a
# thread of its own there are none. A program that tunes on its own ranks may import it in the midst of a model.
_optuna = Thread(target=import_module, args=("optuna",))
_optuna.start()
_optuna.join()

from autotune.tuning.search.joint_sampler import JointSampler  # noqa: E402
from autotune.tuning.search.proposer import Given  # noqa: E402
from autotune.tuning.search.search import Candidate, Search  # noqa: E402

__all__ = ["Candidate", "Given", "JointSampler", "Search"]
