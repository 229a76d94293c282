"""The tree of errors that callers may catch; those that never reach a caller stand where they are handled.

    AutotuneError
    ├── InputError              what the caller gave is wrong; the command line exits with 2
    │   ├── UnknownWorkload     no such workload
    │   ├── InvalidProblem      dimensions that do not fit each other
    │   ├── InvalidConfig       a config that its search space calls invalid
    │   ├── InvalidArguments    a decorated kernel's arguments; a ValueError too, as Triton's own autotuner raises
    │   ├── InvalidBudget       a budget nobody can keep
    │   └── MachineTooSmall     more ranks, or more work, than this machine has
    ├── WorkloadError           a user's own workload raised, or gave what it must not
    ├── NotTuned                no tuned config, and neither another one nor tuning was allowed
    ├── StoreError              the database cannot be used as it is
    │   └── NoDatabase          there is none yet
    ├── HeapError               the symmetric heap
    │   └── HeapExhausted       an allocation that does not fit
    └── GangError               the ranks: did not start, or died beyond what a restart mends
        ├── RanksDisagree       two ranks hold different configs or problems
        └── MissedBarrier       a rank did not come to where the stopwatch lines them up

A config that fails to compile or to run is no error: it is an outcome (see outcome.py).
"""

from __future__ import annotations


class AutotuneError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 1


class InputError(AutotuneError):
    """What the caller gave is wrong; the message says what is allowed."""

    exit_code = 2


class UnknownWorkload(InputError):
    """No workload has that name."""


class InvalidProblem(InputError):
    """A problem's fields do not fit each other or their ranges."""


class InvalidConfig(InputError):
    """A config that its search space calls invalid for the problem on this machine."""


class InvalidArguments(InputError, ValueError):
    """A decorated kernel has no such argument, or a launch gives it what the tuner is to choose."""


class InvalidBudget(InputError):
    """A budget of trials or seconds that cannot be kept."""


class MachineTooSmall(InputError):
    """More ranks, or more work, than this machine can hold."""


class WorkloadError(AutotuneError):
    """A method of a user's workload raised, or gave something else than it must."""


class NotTuned(AutotuneError):
    """There is no tuned config, and neither another one nor tuning was allowed."""


class StoreError(AutotuneError):
    """The database cannot be opened, read or written as it is."""

    exit_code = 2


class NoDatabase(StoreError):
    """There is no database yet, and none was to be made."""


class HeapError(AutotuneError):
    """The symmetric heap could not be set up or used."""


class HeapExhausted(HeapError):
    """An allocation did not fit into what is left of the symmetric heap."""


class GangError(AutotuneError):
    """The ranks could not be started, or died beyond what a restart mends."""


class RanksDisagree(GangError):
    """Two ranks hold different configs or problems."""


class MissedBarrier(GangError):
    """A rank did not come to where the stopwatch lines them up: times taken since then mean nothing."""
