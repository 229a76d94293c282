"""The host as the checks see it; the only module of this room that touches it. Tests replace it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from autotune.db.engines import Condition, condition
from autotune.machine import Machine, machine, versions

COMMAND_SECONDS = 20
COMPILE_SECONDS = 120

PROBE_BYTES = 16 << 20
"""Bytes written to measure a disk's speed."""


@dataclass(frozen=True)
class Mount:
    kind: str
    """``ext4``, ``nfs4``, …"""
    free: int
    """Bytes that this user can still write."""


class Host:
    def machine(self) -> Machine:
        """The machine as the tuner sees it. Raises ImportError, OSError or RuntimeError if torch is unusable."""
        return machine()

    def versions(self) -> dict[str, str]:
        """Versions of triton, iris, torch and the driver; empty if unknown."""
        return versions()

    def numpy(self) -> str:
        """NumPy's version. Raises ImportError."""
        return importlib.metadata.version("numpy")

    def settings(self) -> dict[str, str]:
        """Environment variables that begin with AUTOTUNE_."""
        return {name: text for name, text in os.environ.items() if name.startswith("AUTOTUNE_")}

    def devices(self) -> list[str]:
        import torch

        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]

    def reaches(self, one: int, other: int) -> bool:
        """True if the first GPU can read the second one's memory."""
        import torch

        return torch.cuda.can_device_access_peer(one, other)

    def link_rates(self) -> list[tuple[int, int, float, float]]:
        """Pairs of GPUs: one, other, bytes per second that one stores to the other's memory and loads from it.

        Raises RuntimeError, TimeoutExpired.
        """
        words = [sys.executable, "-m", "autotune.doctor.link_rates"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_SECONDS)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300])
        return [tuple(each) for each in json.loads(done.stdout)]

    def iris(self) -> str:
        """Import Iris and return its version. Raises ImportError or OSError."""
        from autotune.heap.loading import import_iris

        import_iris()
        return versions()["iris"]

    def command(self, *words: str) -> str | None:
        """A program's stdout; None if the program is missing or fails."""
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read(self, pattern: str) -> dict[str, str]:
        """The texts of all readable files that match a pattern from the root, by path, in order."""
        texts = {}
        for path in sorted(Path("/").glob(pattern.removeprefix("/"))):
            try:
                texts[str(path)] = path.read_text()
            except (OSError, UnicodeDecodeError):
                continue  # drivers have files that only root may read
        return texts

    def compiler(self) -> str | None:
        """The C compiler with which Triton builds its launchers; None if there is none."""
        named = os.environ.get("CC")
        return next((found for name in (named, "gcc", "clang", "cc") if name and (found := shutil.which(name))), None)

    def has_python_headers(self) -> bool:
        """True if C code can include Python.h."""
        return Path(sysconfig.get_path("include"), "Python.h").is_file()

    def compile_kernel(self, target: Machine) -> str:
        """Compile a small kernel for a target in a separate process with an empty cache; returns the error, or ""."""
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "TRITON_CACHE_DIR": cache, "TRITON_INTERPRET": "0"}
            words = [sys.executable, "-m", "autotune.doctor.compiling", target.kind, target.arch, str(target.warp_size)]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=COMPILE_SECONDS, env=environment)
            except subprocess.TimeoutExpired:
                return f"timed out after {COMPILE_SECONDS} s"
        if done.returncode == 0:
            return ""
        lines = done.stderr.strip().splitlines()
        return lines[-1][:300] if lines else f"the compiler died (exit code {done.returncode})"

    def mount(self, folder: Path) -> Mount:
        """The file system of a folder, or of its nearest existing parent. Raises OSError."""
        folder = existing(folder)
        space = os.statvfs(folder)
        kinds = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
        above = [(place.replace("\\040", " "), kind) for place, kind in kinds]
        holding = [(len(place), kind) for place, kind in above if folder.is_relative_to(place)]
        return Mount(kind=max(holding)[1] if holding else "unknown", free=space.f_bavail * space.f_frsize)

    def write_speed(self, folder: Path) -> float:
        """Bytes per second written to the disk. Raises OSError."""
        block = os.urandom(1 << 20)
        with tempfile.TemporaryFile(dir=existing(folder)) as file:
            begin = time.perf_counter()
            for _ in range(PROBE_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return PROBE_BYTES / (time.perf_counter() - begin)

    def kernel_cache(self) -> Path:
        """The folder in which Triton keeps compiled kernels."""
        return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")

    def database(self, url: str) -> Condition:
        """The database's condition. Raises StoreError."""
        return condition(url)


def existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    folder = folder.expanduser().absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir()).resolve()
