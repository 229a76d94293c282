"""A host that is made up: it says what a test told it to say."""

from __future__ import annotations

import fnmatch
import itertools
from dataclasses import dataclass, field
from pathlib import Path

from autotune.db.engines import Condition
from autotune.doctor.host import Mount
from autotune.machine import Machine

GIB = 1 << 30

TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tNV18\tPXB\t0-47\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tSYS\t0-47\t0\t\tN/A\n"
    "GPU2\tNV18\tNV18\t X \tSYS\t0-47\t0\t\tN/A\n"
    "NIC0\tPXB\tSYS\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n"
)
"""Output of nvidia-smi topo -m."""

STATUS = "0x0000000000000001, {index}, 700.00, 700.00, 33, P0, 1980, 1980, Disabled, 4\n"
"""Output of nvidia-smi --query-gpu for one GPU."""

KFD = "/sys/class/kfd/kfd/topology/nodes"


@dataclass
class FakeHost:
    is_machine: Machine
    names: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str | None] = field(default_factory=dict)
    """Outputs of programs, by their first two words."""
    refused: str = "nothing"
    """A program that is asked for this fails."""
    unreachable: set[tuple[int, int]] = field(default_factory=set)
    rates: dict[tuple[int, int], float] = field(default_factory=dict)
    """Bytes per second of pairs that are unlike the others; no pair is measured where one is 0."""
    cc: str | None = "/usr/bin/gcc"
    headers: bool = True
    failures: dict[str, str] = field(default_factory=dict)
    """Errors of the compiler, by architecture."""
    mounts: dict[str, Mount] = field(default_factory=dict)
    speed: float | Exception = 900e6
    found: Condition | Exception = field(default_factory=lambda: Condition("cache.db", "SQLite 3.45", True, 12, True))
    iris_says: str | Exception = "0.1"
    torch_says: Exception | None = None
    is_triton: str = "3.6.0"
    is_numpy: str = "2.3.5"
    settings_given: dict[str, str] = field(default_factory=dict)
    compiled: list[str] = field(default_factory=list)

    def machine(self) -> Machine:
        if self.torch_says is not None:
            raise self.torch_says
        return self.is_machine

    def versions(self) -> dict[str, str]:
        return {"triton": self.is_triton, "iris": "0.1", "torch": "2.11.0", "driver": ""}

    def numpy(self) -> str:
        return self.is_numpy

    def settings(self) -> dict[str, str]:
        return self.settings_given

    def devices(self) -> list[str]:
        return self.names

    def reaches(self, one: int, other: int) -> bool:
        return (one, other) not in self.unreachable

    def link_rates(self) -> list[tuple[int, int, float, float]]:
        if 0.0 in self.rates.values():
            raise RuntimeError("an illegal memory access was encountered")
        pairs = itertools.permutations(range(len(self.names)), 2)
        return [(*pair, self.rates.get(pair, 360e9), 310e9) for pair in pairs]

    def iris(self) -> str:
        if isinstance(self.iris_says, Exception):
            raise self.iris_says
        return self.iris_says

    def command(self, *words: str) -> str | None:
        if any(self.refused in word for word in words[1:2]):
            return None
        return self.outputs.get(" ".join(words[:2]).partition("=")[0])

    def exists(self, path: str) -> bool:
        return path in self.files

    def read(self, pattern: str) -> dict[str, str]:
        depth = pattern.count("/")
        return {
            path: text
            for path, text in sorted(self.files.items())
            if fnmatch.fnmatch(path, pattern) and path.count("/") == depth
        }

    def compiler(self) -> str | None:
        return self.cc

    def has_python_headers(self) -> bool:
        return self.headers

    def compile_kernel(self, target: Machine) -> str:
        self.compiled.append(target.arch)
        return self.failures.get(target.arch, "")

    def mount(self, folder: Path) -> Mount:
        return self.mounts.get(str(folder), Mount("ext4", 100 * GIB))

    def write_speed(self, folder: Path) -> float:
        if isinstance(self.speed, Exception):
            raise self.speed
        return self.speed

    def kernel_cache(self) -> Path:
        return Path("/cache")

    def database(self, url: str) -> Condition:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found
