"""Each check finds what spoils a healthy host, and says what to do about it exactly where something is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fake_host import GIB, KFD, FakeHost

from autotune.doctor import Verdict
from autotune.doctor.checks import gpus, software, storage
from autotune.doctor.host import Mount
from autotune.errors import NoDatabase, StoreError
from autotune.machine import H100, L40S

URL = "sqlite:////data/cache.db"
MIB = 1 << 20
FINE, ADVICE, BROKEN = Verdict.FINE, Verdict.ADVICE, Verdict.BROKEN

DRM = "/sys/class/drm/card1/device"
PCIE = "\tGPU0\tGPU1\nGPU0\t X \t{0}\nGPU1\t{0}\t X \n"
SMI, TOPOLOGY = "nvidia-smi --query-gpu", "nvidia-smi topo"


def status(reasons: str = "0x00", index: int = 1, limit: float = 700.0, slowed: str = "Disabled", used: int = 4) -> Any:
    """What nvidia-smi says of one GPU."""
    return {SMI: f"{reasons}, {index}, {limit:.2f}, 700.00, 40, P0, 900, 1980, {slowed}, {used}\n"}


UNKNOWN = {SMI: "[N/A], 1, [N/A], [N/A], [N/A], P8, 210, 1980, [N/A], [N/A]\n"}
FAILING = [None, "Field is not a valid field to query.\n"]


def lds(kib: int) -> dict[str, str]:
    return {f"{KFD}/{node}/properties": f"simd_count 1024\nlds_size_in_kb {kib}\n" for node in (1, 2)}


GPUS = [
    ("nvidia", {"names": ["NVIDIA H200", "NVIDIA L4"]}, gpus.gpus, BROKEN, "NVIDIA L4"),
    ("nvidia", {"is_machine": dataclasses.replace(H100, arch="sm_99")}, gpus.gpus, ADVICE, "sm_99"),
    ("nvidia", {"unreachable": {(0, 2), (2, 0)}}, gpus.peer_access, BROKEN, "0→2, 2→0"),
    ("nvidia", {"is_machine": L40S}, gpus.peer_access, ADVICE, "without atomics"),
    ("nvidia", {"rates": {(0, 1): 380e9}}, gpus.link_rates, FINE, "push 360 to 380 GB/s, pull 310 GB/s"),
    ("nvidia", {"rates": {(0, 1): 20e9, (1, 0): 20e9, (1, 2): 20e9, (2, 1): 20e9}}, gpus.link_rates, ADVICE,
     "islands of GPUs: 0, 2; 1"),
    ("nvidia", {"rates": {(0, 1): 0.0}}, gpus.link_rates, ADVICE, "illegal memory access"),
    *(("nvidia", {"outputs": {TOPOLOGY: PCIE.format(link)}}, gpus.links, ADVICE, link) for link in ("PIX", "SYS")),
    *(("nvidia", {"outputs": {TOPOLOGY: told}}, gpus.links, ADVICE, "") for told in (None, "no devices were found\n")),
    ("amd", {"files": {f"{KFD}/1/p2p_links/0/properties": "type 2\nnode_from 1\nnode_to 2\n",
                       f"{KFD}/1/io_links/1/properties": ""}}, gpus.links, ADVICE, "pcie"),
    ("nvidia", {"outputs": status("0x80")}, gpus.clocks, BROKEN, "GPU 1"),
    ("nvidia", {"outputs": status(slowed="Enabled")}, gpus.clocks, BROKEN, "GPU 1"),
    ("nvidia", {"outputs": status("0x04")}, gpus.clocks, ADVICE, "GPU 1"),
    ("nvidia", {"outputs": status(limit=500.0)}, gpus.clocks, ADVICE, "GPU 1"),
    ("nvidia", {"outputs": UNKNOWN}, gpus.clocks, FINE, ""),
    ("nvidia", {"outputs": {SMI: status("0x04", 0)[SMI] + status("0x80")[SMI]}}, gpus.clocks, BROKEN, "GPU 1"),
    *(("nvidia", {"outputs": {SMI: told}}, gpus.clocks, ADVICE, "") for told in FAILING),
    *(("nvidia", {"outputs": {SMI: told}}, gpus.memory_in_use, FINE, "") for told in FAILING),
    ("nvidia", {"refused": "clocks_event_reasons"}, gpus.clocks, FINE, "1980 of 1980 MHz"),  # an older nvidia-smi
    ("amd", {"files": {f"{DRM}/power_dpm_force_performance_level": "low\n"}}, gpus.clocks, ADVICE, "card1: low"),
    ("amd", {"files": {f"{DRM}/power_dpm_force_performance_level": "high\n"}}, gpus.clocks, FINE, "high"),
    ("nvidia", {"outputs": status(index=2, used=71680)}, gpus.memory_in_use, ADVICE, "GPU 2: 70.0 GiB"),
    ("amd", {"files": {f"{DRM}/mem_info_vram_used": "20000000000\n"}}, gpus.memory_in_use, ADVICE, "GPU 1: 18.6 GiB"),
    *(("amd", {"files": lds(kib)}, gpus.shared_memory, BROKEN, f"{kib} KiB") for kib in (32, 160)),
    ("nvidia", {"is_machine": dataclasses.replace(H100, shared_memory=48 << 10)}, gpus.shared_memory, ADVICE, "48 KiB"),
]  # fmt: skip

SOFTWARE = [
    ("laptop", {"torch_says": OSError("libcudart.so.12: no such file")}, software.torch, BROKEN, "libcudart.so.12"),
    ("laptop", {"files": {"/proc/driver/nvidia/version": ""}}, software.torch, BROKEN, "CUDA"),
    ("laptop", {"files": {"/dev/kfd": ""}}, software.torch, BROKEN, "ROCm"),
    ("laptop", {"settings_given": {"AUTOTUNE_COMPILE_WORKERS": "abc"}}, software.settings, BROKEN, "from 1 to 1024"),
    ("laptop", {"settings_given": {"AUTOTUNE_WORKLOAD": "my.py"}}, software.settings, ADVICE, "AUTOTUNE_WORKLOAD: "),
    ("laptop", {"settings_given": {"AUTOTUNE_OFFLINE": ""}}, software.settings, FINE, "AUTOTUNE_OFFLINE="),
    ("laptop", {"iris_says": ImportError("No module named 'iris'")}, software.iris, ADVICE, "No module named 'iris'"),
    ("laptop", {"failures": {"gfx942": "no such target"}}, software.compiler, BROKEN, "no such target"),
    ("nvidia", {"cc": None}, software.launcher, BROKEN, ""),
    ("nvidia", {"headers": False}, software.launcher, BROKEN, "Python.h"),
    ("laptop", {"is_numpy": "2.4.0"}, software.interpreter, BROKEN, "numpy 2.4.0"),
    ("laptop", {"is_triton": "3.6.0+git1", "is_numpy": "2.10.0rc1"}, software.interpreter, BROKEN, "triton 3.6.0+git1"),
    ("laptop", {"is_triton": "3.10.1", "is_numpy": "2.5.5"}, software.interpreter, FINE, "triton 3.10.1"),
    ("nvidia", {"is_numpy": "2.4.0"}, software.interpreter, FINE, ""),
]


def database(host: FakeHost) -> Any:
    return storage.database(host, URL)


def disk(host: FakeHost) -> Any:
    return storage.database_disk(host, URL)


STORAGE = [
    ("laptop", {"mounts": {"/dev/shm": Mount("tmpfs", 63 * MIB)}}, storage.shm, BROKEN, "63 MiB free"),
    ("laptop", {"mounts": {"/dev/shm": Mount("tmpfs", 64 * MIB)}}, storage.shm, ADVICE, "64 MiB free"),
    *(("laptop", {"mounts": {folder: Mount("ext4", free)}}, check, verdict, "")
      for folder, check in (("/data", disk), ("/cache", storage.kernel_cache))
      for free, verdict in ((49 * MIB, BROKEN), (GIB - 1, ADVICE))),
    *(("laptop", {"mounts": {"/data": Mount(kind, 100 * GIB)}}, disk, BROKEN, kind) for kind in ("nfs4", "cifs")),
    ("laptop", {"speed": 5 * MIB}, disk, ADVICE, "5 MiB/s"),
    ("laptop", {"speed": PermissionError(13, "Permission denied")}, disk, BROKEN, "Permission denied"),
    ("laptop", {"mounts": {"/data": Mount("nfs", 0)}}, lambda host: storage.database_disk(host, "postgresql://h/data"),
     FINE, ""),
    ("laptop", {"found": NoDatabase("there is no database at x yet")}, database, FINE, "no database at x"),
    ("laptop", {"found": StoreError("database x is damaged")}, database, BROKEN, "database x is damaged"),
]  # fmt: skip


@pytest.mark.parametrize(("vendor", "changed", "check", "verdict", "told"), [*GPUS, *SOFTWARE, *STORAGE])
def test_what_spoils_a_host_is_found(
    request: pytest.FixtureRequest, vendor: str, changed: dict[str, Any], check: Any, verdict: Verdict, told: str
) -> None:
    host: FakeHost = request.getfixturevalue(vendor)
    for name, value in changed.items():
        before = getattr(host, name)
        setattr(host, name, before | value if isinstance(before, dict) else value)
    finding = check(host)
    assert finding.verdict is verdict and told in finding.found, finding
    assert bool(finding.mend) == (verdict is not FINE)


def test_what_is_not_there_is_advice(laptop: FakeHost, amd: FakeHost) -> None:
    del laptop.files["/dev/shm"]
    amd.files = {}
    laptop.found = dataclasses.replace(laptop.found, writable=False)  # type: ignore[type-var]
    assert [storage.shm(laptop).verdict, gpus.clocks(amd).verdict, database(laptop).verdict] == [ADVICE] * 3


def test_it_compiles_for_what_is_here_and_else_for_both_vendors(
    laptop: FakeHost, nvidia: FakeHost, amd: FakeHost
) -> None:
    for host in (laptop, nvidia, amd):
        software.compiler(host)
    assert (laptop.compiled, nvidia.compiled, amd.compiled) == (["sm_90", "gfx942"], ["sm_90"], ["gfx942"])
