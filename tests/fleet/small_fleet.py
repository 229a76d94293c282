"""Small fleets for tests: hosts, problems, and tunings that end as a test says, without any process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from autotune.db import CacheKey, Lease, Provenance
from autotune.db.fleet_records import HostRecord, Kind, Wanted
from autotune.fleet.tuning import End

H200 = Kind("NVIDIA H200", "sm_90", "nvlink", "3.7.1", "0.0", "2.13", "590.1")
OLD_DRIVER = dataclasses.replace(H200, driver="580.1")
MI300X = Kind("AMD Instinct MI300X", "gfx942", "xgmi", "3.7.1", "0.0", "2.13", "6.1")

DONE, FAILED, LOST = End("done"), End("failed", "no config could be measured"), End("lost", "died of SIGKILL")


def host(name: str, gpus: int = 8, kind: Kind = H200, **values: str) -> HostRecord:
    return HostRecord(name, gpus, kind, **values)  # type: ignore[arg-type]


def wanted(m: int, world_size: int = 2, kind: Kind = H200) -> Wanted:
    problem = {"dtype": "bf16", "k": 64, "m": m, "n": 64, "world_size": world_size}
    key = CacheKey(
        "all_gather_gemm", json.dumps(problem, sort_keys=True, separators=(",", ":")), world_size, kind.device,
        kind.arch, kind.interconnect,
    )  # fmt: skip
    provenance = Provenance("abc", "f00d", kind.triton, kind.iris, kind.torch, kind.driver)
    return Wanted(key, provenance, {"trials": 2})


def m_of(wanted: Wanted) -> int:
    found: int = json.loads(wanted.key.problem)["m"]
    return found


def far_lease() -> Lease:
    """Of a process on another host, of which only the heartbeat tells."""
    return dataclasses.replace(Lease.new(), host="far", system="another boot")


def dead_lease() -> Lease:
    """Of a process of this host that has ended."""
    return dataclasses.replace(Lease.new(), started="another start")


@dataclass
class FakeTuning:
    """Ends at once, unless it is to run until it is stopped."""

    end: End | None
    progress: str = "[0:01] searching: 2 trials"
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True

    def wait(self, seconds: float) -> End | None:
        return End("stopped", "interrupted") if self.stopped else self.end


@dataclass
class Tunings:
    """What hosts do with problems; counts how often each was tuned."""

    ends: Callable[[int], End | None] = lambda m: DONE
    started: list[int] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    made: list[FakeTuning] = field(default_factory=list)

    def start(self, wanted: Wanted, url: str) -> FakeTuning:
        m = m_of(wanted)
        self.started.append(m)
        self.urls.append(url)
        self.made.append(FakeTuning(self.ends(m)))
        return self.made[-1]


def in_turn(ends: Iterable[End]) -> Callable[[int], End]:
    """One after the other, whatever the problem."""
    left = iter(ends)
    return lambda m: next(left)
