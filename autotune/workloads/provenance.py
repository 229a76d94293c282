"""What a workload's results depend on here: a result whose provenance differs is stale."""

from __future__ import annotations

import functools

from autotune.db.records import Provenance
from autotune.environment import versions
from autotune.workloads.workload import Workload


@functools.cache
def provenance_of(workload: Workload) -> Provenance:
    """Hash of the sources, fingerprint of the space, versions of triton, iris, torch and the driver."""
    return Provenance(source_hash=workload.source_hash(), space=workload.space.fingerprint(), **versions())
