"""The search: which config next, and the surrogate that it asks."""

from autotune.tuning.search.joint_sampler import JointSampler
from autotune.tuning.search.proposer import Candidate, Given
from autotune.tuning.search.search import Search

__all__ = ["Candidate", "Given", "JointSampler", "Search"]
