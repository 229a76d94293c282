"""The tree of errors that callers may catch; those that never reach a caller stand where they are handled.

    AutotuneError
    ├── InputError              wrong input; the command line exits with 2
    │   ├── UnknownWorkload     no such workload
    │   ├── InvalidProblem      dimensions that do not fit each other
    │   ├── InvalidConfig       a config outside its search space
    │   ├── InvalidArguments    a decorated kernel's arguments; a ValueError too, as Triton's own autotuner raises
    │   ├── InvalidBudget       a budget that cannot be kept
    │   └── MachineTooSmall     more ranks, or more work, than this machine has
    ├── WorkloadError           a user's workload raised, or returned a wrong value
    ├── NotTuned                no tuned config, and neither a substitute nor tuning is allowed
    ├── StoreError              the database cannot be used
    │   └── NoDatabase          there is no database yet
    ├── FleetError              a host or a cluster that cannot be used
    ├── VersionsClash           installed packages that do not work together
    ├── WrongResult             a whole model's results are not those of plain torch
    ├── HeapError               the symmetric heap
    │   └── HeapExhausted       an allocation that does not fit
    └── GangError               the ranks did not start, or a restart did not help
        ├── RanksDisagree       two ranks hold different configs or problems
        └── MissedBarrier       a rank did not reach the stopwatch's barrier

A config that fails to compile or to run is an outcome, not an error (see outcome.py).
"""

from __future__ import annotations


class AutotuneError(Exception):
    """Base of the tree."""

    exit_code = 1


class InputError(AutotuneError):
    """The caller's input is wrong; the message says what is allowed."""

    exit_code = 2


class UnknownWorkload(InputError):
    """No workload has that name."""


class InvalidProblem(InputError):
    """A problem's fields do not fit each other or their ranges."""


class InvalidConfig(InputError):
    """A config outside its search space for the problem on this machine."""


class InvalidArguments(InputError, ValueError):
    """A decorated kernel lacks the named argument, or a launch passes a value that the tuner chooses."""


class InvalidBudget(InputError):
    """A budget of trials or seconds that cannot be kept."""


class MachineTooSmall(InputError):
    """More ranks, or more work, than this machine can hold."""


class WorkloadError(AutotuneError):
    """A method of a user's workload raised, or returned a wrong value."""


class NotTuned(AutotuneError):
    """There is no tuned config, and neither a substitute nor tuning is allowed."""


class StoreError(AutotuneError):
    """The database cannot be opened, read or written."""

    exit_code = 2


class NoDatabase(StoreError):
    """There is no database yet, and the caller asked to make none."""


class FleetError(AutotuneError):
    """A host cannot be examined, a cluster cannot be reached, or its hosts cannot take work."""


class VersionsClash(AutotuneError):
    """Two installed packages do not work together; the message says which versions do."""


class WrongResult(AutotuneError):
    """A model by our operators computed something else than plain torch; no time of it is claimed."""


class HeapError(AutotuneError):
    """The symmetric heap could not be set up or used."""


class HeapExhausted(HeapError):
    """An allocation did not fit into what is left of the symmetric heap."""


class GangError(AutotuneError):
    """The ranks did not start, or died and a restart did not help."""


class RanksDisagree(GangError):
    """Two ranks hold different configs or problems."""


class MissedBarrier(GangError):
    """A rank did not reach the stopwatch's barrier; times measured since then mean nothing."""
