"""The machine: what links its GPUs, by what they can do to each other's memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import autotune
from autotune import machine as machine_module
from autotune.errors import VersionsClash
from autotune.heap import open_heap
from autotune.machine import INTERPRETED, machine
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.workloads import workload


@pytest.mark.parametrize(
    ("access", "atomics", "link"),
    [
        (lambda one, other: True, lambda one, other: True, "nvlink"),
        (lambda one, other: True, lambda one, other: False, "pcie-peer"),
        (lambda one, other: True, lambda one, other: {one, other} != {2, 3}, "pcie-peer"),
        (lambda one, other: {one, other} != {1, 2}, lambda one, other: True, "pcie"),
    ],
)
def test_the_slowest_link_counts(access: object, atomics: object, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", access)
    monkeypatch.setattr(machine_module, "_native_atomics", atomics)
    assert machine_module._nvidia_interconnect(4) == link


def test_one_gpu_has_no_slow_link() -> None:
    assert machine_module._nvidia_interconnect(1) == "nvlink"


@pytest.mark.gpu(2, each=True)
def test_these_gpus_are_linked_by_nvlink_as_nvidia_smi_says() -> None:
    import subprocess

    matrix = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True).stdout
    nvlink = "NV" in matrix.split("Legend")[0].replace("NVIDIA", "")
    assert (machine().interconnect == "nvlink") == nvlink


def start_ranks() -> None:
    found = workload("all_gather_gemm")
    Gang(found, Task(found.problem_type(m=32, n=64, k=64, world_size=2), INTERPRETED)).start()


def launch_a_kernel() -> None:
    from small_kernels import SIZES, increment

    x = torch.zeros(4)
    autotune.autotune(SIZES, key=["n"])(increment())[(1,)](x, n=4)


@pytest.mark.skipif(machine() != INTERPRETED, reason="on GPUs nothing is interpreted")
@pytest.mark.parametrize("start", [start_ranks, launch_a_kernel, lambda: open_heap(1 << 20)])
def test_a_numpy_that_the_interpreter_fails_with_is_refused(
    start: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    versions = {**machine_module.versions(), "triton": "3.6.0"}
    monkeypatch.setattr(machine_module, "versions", lambda: versions)
    monkeypatch.setattr(machine_module.importlib.metadata, "version", {"numpy": "2.4.6"}.__getitem__)
    with pytest.raises(VersionsClash, match="numpy<2"):
        start()
