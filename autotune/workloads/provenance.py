"""The provenance of a workload's results here; results with another provenance are stale."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path

from autotune.db.records import Provenance
from autotune.machine import versions
from autotune.workloads.interface import Workload


@functools.cache
def provenance_of(workload: Workload) -> Provenance:
    """Hash of the sources, fingerprint of the space, versions of triton, iris, torch and the driver."""
    return Provenance(source_hash=workload.source_hash(), space=workload.space.fingerprint(), **versions())


@dataclass(frozen=True)
class Code:
    """The code that a process runs, as far as a workload's results depend on it."""

    folder: str
    """The folder of this package."""
    source_hash: str
    triton: str
    iris: str
    torch: str

    @classmethod
    def here(cls, workload: Workload) -> Code:
        """Provenance of the code that this process has imported: a file that changes later is not that."""
        found, package = provenance_of(workload), Path(__file__).parents[1]
        return cls(str(package), found.source_hash, found.triton, found.iris, found.torch)

    def difference(self, other: Code) -> str | None:
        """The difference of another process's code, in words; None if there is none, wherever it lies."""
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        names = [name for name in mine if name != "folder" and mine[name] != theirs[name]]
        if not names:
            return None
        here, there = (", ".join(f"{name} {values[name]}" for name in names) for values in (mine, theirs))
        return f"{there} in {other.folder} there; {here} in {self.folder} here"
