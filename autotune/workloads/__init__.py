"""Workloads: what joins a problem, its kernels and its space into something that can be tuned, and where they are."""

from autotune.workloads.interface import Operation as Operation
from autotune.workloads.interface import Workload as Workload
from autotune.workloads.provenance import Code as Code
from autotune.workloads.provenance import provenance_of as provenance_of
from autotune.workloads.registry import installed_workload as installed_workload
from autotune.workloads.registry import names as names
from autotune.workloads.registry import workload as workload
from autotune.workloads.tolerance import Error as Error
from autotune.workloads.tolerance import Tolerance as Tolerance
from autotune.workloads.user_files import from_reference as from_reference
from autotune.workloads.user_files import is_reference as is_reference
from autotune.workloads.user_files import origin_of as origin_of
from autotune.workloads.user_files import reference_of as reference_of
