"""The machine: what links its GPUs, by what they can do to each other's memory."""

from __future__ import annotations

import pytest
import torch

from autotune import machine as machine_module
from autotune.machine import machine


@pytest.mark.parametrize(
    ("access", "atomics", "link"),
    [
        (lambda one, other: True, lambda one, other: True, "nvlink"),
        (lambda one, other: True, lambda one, other: False, "pcie-peer"),
        (lambda one, other: True, lambda one, other: {one, other} != {2, 3}, "pcie-peer"),
        (lambda one, other: {one, other} != {1, 2}, lambda one, other: True, "pcie"),
    ],
)
def test_the_slowest_link_of_four_gpus_counts(
    access: object, atomics: object, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", access)
    monkeypatch.setattr(machine_module, "_native_atomics", atomics)
    assert machine_module._nvidia_interconnect(4) == link


def test_one_gpu_has_no_slow_link() -> None:
    assert machine_module._nvidia_interconnect(1) == "nvlink"


@pytest.mark.gpu(2)
def test_these_gpus_are_linked_by_nvlink_as_nvidia_smi_says() -> None:
    import subprocess

    matrix = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True).stdout
    nvlink = "NV" in matrix.split("Legend")[0].replace("NVIDIA", "")
    assert (machine().interconnect == "nvlink") == nvlink
