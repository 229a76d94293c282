"""Why a result is stale on this machine, as far as that can be known without loading anything."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from autotune.db import CacheKey, Provenance
from autotune.errors import UnknownWorkload
from autotune.machine import versions
from autotune.workloads.faces import installed_provenance


def why_stale(key: CacheKey, provenance: Provenance) -> str:
    """In words; empty where it is served. Of a decorated kernel, and of a workload that is not installed here,
    only the versions are known: its sources are seen where it is launched.
    """
    if not key.is_kernel:
        with suppress(UnknownWorkload):
            return provenance.changes(installed_provenance(key.workload))
    return provenance.changes(dataclasses.replace(provenance, **versions()))
