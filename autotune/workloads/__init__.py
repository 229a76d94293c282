"""Workloads: what joins a problem, its kernels and its space into something that can be tuned, and where they are."""

from autotune.workloads.interface import Operation, Workload
from autotune.workloads.provenance import Code, provenance_of
from autotune.workloads.registry import installed_workload, names, workload
from autotune.workloads.tolerance import Error, Tolerance
from autotune.workloads.user_files import from_reference, is_reference, origin_of, reference_of

__all__ = [
    "Code",
    "Error",
    "Operation",
    "Tolerance",
    "Workload",
    "from_reference",
    "installed_workload",
    "is_reference",
    "names",
    "origin_of",
    "provenance_of",
    "reference_of",
    "workload",
]
