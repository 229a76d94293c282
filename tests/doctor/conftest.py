"""Healthy hosts, with GPUs of either vendor or none; each test spoils one thing."""

from __future__ import annotations

import pytest
from fake_host import KFD, STATUS, TOPOLOGY, FakeHost

from autotune.machine import H100, INTERPRETED, MI300X


@pytest.fixture
def nvidia() -> FakeHost:
    """Three GPUs of NVIDIA's."""
    return FakeHost(
        H100,
        [H100.device] * 3,
        files={"/proc/driver/nvidia/version": "580", "/dev/shm": ""},
        outputs={
            "nvidia-smi topo": TOPOLOGY,
            "nvidia-smi --query-gpu": "".join(STATUS.format(index=index) for index in range(3)),
        },
    )


@pytest.fixture
def amd() -> FakeHost:
    """Two GPUs of AMD's, nodes 1 and 2 beside the processor's node 0."""
    gpu = "simd_count 1216\nlds_size_in_kb 64\n"
    files = {
        "/dev/kfd": "",
        "/dev/shm": "",
        f"{KFD}/0/properties": "cpu_cores_count 96\nsimd_count 0\nlds_size_in_kb 0\n",
        f"{KFD}/1/properties": gpu,
        f"{KFD}/2/properties": gpu,
        f"{KFD}/0/io_links/0/properties": "type 2\nnode_from 0\nnode_to 1\n",
        f"{KFD}/1/io_links/0/properties": "type 2\nnode_from 1\nnode_to 0\n",
        f"{KFD}/1/io_links/1/properties": "type 11\nnode_from 1\nnode_to 2\n",
        f"{KFD}/2/io_links/1/properties": "type 11\nnode_from 2\nnode_to 1\n",
        "/sys/class/drm/card0/device/power_dpm_force_performance_level": "auto\n",
        "/sys/class/drm/card1/device/power_dpm_force_performance_level": "auto\n",
        "/sys/class/drm/card0/device/mem_info_vram_used": "300000000\n",
    }
    return FakeHost(MI300X, [MI300X.device] * 2, files=files)


@pytest.fixture
def laptop() -> FakeHost:
    return FakeHost(INTERPRETED, files={"/dev/shm": ""}, cc=None)
