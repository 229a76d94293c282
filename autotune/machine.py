"""The machine that ranks run on, and the versions of what a measurement depends on."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import VersionsClash

INTERPRETER = "cpu-interpreter"
"""Device name under which results of Triton's interpreter are kept, so that they never mix with a GPU's."""


@dataclass(frozen=True)
class Machine:
    """The machine of the ranks. All ranks' devices are alike."""

    kind: str
    """``cuda``, ``hip`` or ``interpreter``."""
    device: str
    """Name as the driver gives it, or ``cpu-interpreter``."""
    arch: str
    """``sm_90``, ``gfx942``, … or ``cpu``."""
    gpus: int
    """Devices on this host; 0 for the interpreter, which takes as many ranks as the caller likes."""
    compute_units: int
    """Multiprocessors (NVIDIA) or compute units (AMD); for the interpreter the number of programs it runs."""
    shared_memory: int
    """Bytes of shared memory (LDS) that one program may use."""
    cache_bytes: int
    """Bytes of the last level of cache."""
    interconnect: str
    """``nvlink``, ``xgmi``, ``pcie-peer``, ``pcie``, ``shared-memory``: the slowest link between two of the devices.

    ``pcie-peer``: they reach each other's memory over PCIe; ``pcie``: they do not. One GPU alone counts as ``nvlink``.
    """
    warp_size: int = 32
    rates: tuple[tuple[str, float], ...] = ()
    """Rates per microsecond, by name, as ranks have measured them here (``ranks/rates.py``); empty where unknown."""

    @property
    def is_interpreter(self) -> bool:
        return self.kind == "interpreter"

    @property
    def has_tma(self) -> bool:
        """True if TMA loads exist (NVIDIA from Hopper on; the interpreter imitates them)."""
        return self.is_interpreter or (self.kind == "cuda" and int(self.arch.removeprefix("sm_")) >= 90)

    @property
    def has_peer_atomics(self) -> bool:
        """True if a GPU can add to a peer's memory: over PCIe the other's programs may not see it, or see less."""
        return self.interconnect not in ("pcie", "pcie-peer")


INTERPRETED = Machine("interpreter", INTERPRETER, "cpu", 0, 8, 1 << 30, 0, "shared-memory")
"""The machine of kernels under Triton's interpreter, whatever GPUs there are."""

INFINITY_CACHE = {"gfx942": 256 << 20, "gfx950": 256 << 20}
"""Bytes of the cache behind the L2, of which the driver tells nothing."""

MI300X = Machine("hip", "AMD Instinct MI300X", "gfx942", 8, 304, 64 * 1024, INFINITY_CACHE["gfx942"], "xgmi", 64)
MI350X = Machine("hip", "AMD Instinct MI350X", "gfx950", 8, 256, 160 * 1024, INFINITY_CACHE["gfx950"], "xgmi", 64)
A100 = Machine("cuda", "NVIDIA A100-SXM4-80GB", "sm_80", 8, 108, 163 * 1024, 40 << 20, "nvlink")
L40S = Machine("cuda", "NVIDIA L40S", "sm_89", 8, 142, 99 * 1024, 96 << 20, "pcie-peer")
H100 = Machine("cuda", "NVIDIA H100 80GB HBM3", "sm_90", 8, 132, 227 * 1024, 50 << 20, "nvlink")
B200 = Machine("cuda", "NVIDIA B200", "sm_100", 8, 148, 227 * 1024, 126 << 20, "nvlink")
B300 = replace(B200, device="NVIDIA B300", arch="sm_103")
RTX_PRO_6000 = Machine(
    "cuda", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120", 8, 188, 99 * 1024, 128 << 20, "pcie-peer"
)
CHIPS = (A100, L40S, H100, B200, B300, RTX_PRO_6000, MI300X, MI350X)
"""Targets for offline compilation, one of each architecture, on hosts without such GPUs."""

HOSTS = {"H100": H100, "H200": replace(H100, device="NVIDIA H200"), "MI300X": MI300X, "MI350X": MI350X}
"""Hosts of eight GPUs by the GPU's short name."""


@functools.cache
def machine() -> Machine:
    """This host: its GPUs if torch sees any, else the interpreter. Imports torch."""
    import torch

    if not torch.cuda.is_available():
        return INTERPRETED
    properties = torch.cuda.get_device_properties(0)
    gpus = torch.cuda.device_count()
    if torch.version.hip:
        arch = properties.gcnArchName.split(":")[0]
        lds = 160 * 1024 if arch == "gfx950" else 64 * 1024
        return Machine(
            "hip", properties.name, arch, gpus, properties.multi_processor_count, lds,
            INFINITY_CACHE.get(arch, properties.L2_cache_size), "xgmi", 64,
        )  # fmt: skip
    return Machine(
        "cuda",
        properties.name,
        f"sm_{properties.major}{properties.minor}",
        gpus,
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        properties.L2_cache_size,
        _nvidia_interconnect(gpus),
    )


def _nvidia_interconnect(gpus: int) -> str:
    import torch

    pairs = list(itertools.permutations(range(gpus), 2))
    if not all(torch.cuda.can_device_access_peer(one, other) for one, other in pairs):
        return "pcie"
    return "nvlink" if all(_native_atomics(one, other) for one, other in pairs) else "pcie-peer"


NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED of CUDA's driver."""


def _native_atomics(one: int, other: int) -> bool:
    """True if atomics of one GPU on another's memory go over the link, as NVLink's do and PCIe's do not.

    The driver has been initialised before, by torch. Where it does not tell, the link is taken for NVLink.
    """
    driver, value = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(1)
    devices = [ctypes.c_int(), ctypes.c_int()]
    failed = any(driver.cuDeviceGet(ctypes.byref(d), n) for d, n in zip(devices, (one, other), strict=True))
    if failed or driver.cuDeviceGetP2PAttribute(ctypes.byref(value), NATIVE_ATOMICS, *devices):
        return True
    return bool(value.value)


@functools.cache
def versions() -> dict[str, str]:
    """Versions that a measurement depends on: triton, iris, torch and the driver; empty if unknown."""

    def version(distribution: str) -> str:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return ""

    return {
        "triton": version("triton") or version("pytorch-triton-rocm"),
        "iris": version("tokenspeed-iris") or version("iris"),
        "torch": version("torch"),
        "driver": _driver_version(),
    }


def interpreter_clash(triton: str, numpy: str) -> tuple[str, str] | None:
    """The fault of Triton's interpreter with that NumPy, and its remedy; None if it works.

    Since NumPy 2.4 an array of one element cannot be converted to a number, which Triton before 3.7 does.
    """

    def before(version: str, major: int, minor: int) -> bool:
        return tuple(map(int, re.findall(r"\d+", version)[:2])) < (major, minor)

    if not before(triton, 3, 7) or before(numpy, 2, 4):
        return None
    found = f"the interpreter of triton {triton} cannot run kernels on numpy {numpy}"
    return found, "it needs numpy before 2.4, or triton 3.7 or newer: pip install 'numpy<2.4'"


def check_interpreter() -> None:
    """Raise VersionsClash where interpreted kernels would fail."""
    told = interpreter_clash(versions()["triton"], importlib.metadata.version("numpy"))
    if told:
        raise VersionsClash("; ".join(told))


def _driver_version() -> str:
    for path in (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")):
        try:
            text = path.read_text()
        except OSError:
            continue
        words = [word for word in text.split() if word[:1].isdigit() and "." in word]
        return words[0] if words else text.strip()
    return ""
