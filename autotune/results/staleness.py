"""The reason that a result is stale on this machine, as far as known without loading anything."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from autotune.db import CacheKey, Provenance
from autotune.errors import UnknownWorkload
from autotune.machine import versions
from autotune.workloads.faces import installed_provenance


def why_stale(key: CacheKey, provenance: Provenance) -> str:
    """The reason in words; empty for a result that is served. For a decorated kernel or a workload that is not
    installed here only versions are known: sources are seen where it is launched.
    """
    if not key.is_kernel:
        with suppress(UnknownWorkload):
            return provenance.changes(installed_provenance(key.workload))
    return provenance.changes(dataclasses.replace(provenance, **versions()))
