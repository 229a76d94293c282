from __future__ import annotations

import dataclasses

import pytest
from fake_host import KFD, FakeHost

from autotune.doctor import Finding, Verdict
from autotune.doctor.checks import gpus


def told(finding: Finding, verdict: Verdict) -> str:
    """What was found; there is a fix exactly where something is wrong."""
    assert finding.verdict is verdict, finding
    assert bool(finding.mend) == (verdict is not Verdict.FINE)
    return finding.found


def test_gpus_of_two_kinds(nvidia: FakeHost) -> None:
    nvidia.names[1] = "NVIDIA L4"
    assert "NVIDIA L4" in told(gpus.gpus(nvidia), Verdict.BROKEN)


PCIE = "\tGPU0\tGPU1\nGPU0\t X \t{0}\nGPU1\t{0}\t X \n"


@pytest.mark.parametrize("link", ["PIX", "PXB", "PHB", "NODE", "SYS"])
def test_a_pair_over_pcie(nvidia: FakeHost, link: str) -> None:
    nvidia.outputs["nvidia-smi topo"] = PCIE.format(link)
    assert link in told(gpus.links(nvidia), Verdict.ADVICE)


def test_a_pair_of_amds_over_pcie(amd: FakeHost) -> None:
    del amd.files[f"{KFD}/1/io_links/1/properties"]
    amd.files[f"{KFD}/1/p2p_links/0/properties"] = "type 2\nnode_from 1\nnode_to 2\n"
    assert "pcie" in told(gpus.links(amd), Verdict.ADVICE)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("0x08, 1, 700.00, 700.00, 41, P0, 300, 1980, Disabled, 4", Verdict.BROKEN),
        ("0x20, 1, 700.00, 700.00, 88, P0, 900, 1980, Disabled, 4", Verdict.BROKEN),
        ("0x40, 1, 700.00, 700.00, 93, P0, 900, 1980, Disabled, 4", Verdict.BROKEN),
        ("0x80, 1, 700.00, 700.00, 40, P0, 900, 1980, Disabled, 4", Verdict.BROKEN),
        ("0x00, 1, 700.00, 700.00, 40, P0, 900, 1980, Enabled, 4", Verdict.BROKEN),
        ("0x04, 1, 700.00, 700.00, 40, P0, 900, 1980, Disabled, 4", Verdict.ADVICE),
        ("0x02, 1, 700.00, 700.00, 40, P0, 900, 1980, Disabled, 4", Verdict.ADVICE),
        ("0x00, 1, 500.00, 700.00, 40, P0, 900, 1980, Disabled, 4", Verdict.ADVICE),
        ("[N/A], 1, [N/A], [N/A], [N/A], P8, 210, 1980, [N/A], [N/A]", Verdict.FINE),
    ],
)
def test_what_slows_a_gpu(nvidia: FakeHost, status: str, verdict: Verdict) -> None:
    """Of several the worst comes first."""
    nvidia.outputs["nvidia-smi --query-gpu"] = f"{status}\n"
    found = told(gpus.clocks(nvidia), verdict)
    assert verdict is Verdict.FINE or "GPU 1" in found
    nvidia.outputs["nvidia-smi --query-gpu"] = f"0x04, 0, 700.00, 700.00, 40, P0, 900, 1980, Disabled, 4\n{status}\n"
    both = told(gpus.clocks(nvidia), max(verdict, Verdict.ADVICE, key=list(Verdict).index))
    assert both.startswith("GPU 1" if verdict is Verdict.BROKEN else "GPU 0")


def test_memory_that_somebody_else_uses(nvidia: FakeHost, amd: FakeHost) -> None:
    busy = "0x00, 2, 700.00, 700.00, 33, P0, 1980, 1980, Disabled, 71680"
    nvidia.outputs["nvidia-smi --query-gpu"] = f"{busy}\n"
    assert "GPU 2: 70.0 GiB" in told(gpus.memory_in_use(nvidia), Verdict.ADVICE)
    amd.files["/sys/class/drm/card1/device/mem_info_vram_used"] = "20000000000\n"
    assert "GPU 1: 18.6 GiB" in told(gpus.memory_in_use(amd), Verdict.ADVICE)


@pytest.mark.parametrize("output", [None, "", "no devices were found\n"])
def test_links_that_nobody_knows(nvidia: FakeHost, output: str | None) -> None:
    nvidia.outputs["nvidia-smi topo"] = output
    told(gpus.links(nvidia), Verdict.ADVICE)


def test_peers_that_cannot_reach_each_other(nvidia: FakeHost) -> None:
    nvidia.unreachable = {(0, 2), (2, 0)}
    assert "0→2, 2→0" in told(gpus.peer_access(nvidia), Verdict.BROKEN)


@pytest.mark.parametrize("output", [None, "", "Field is not a valid field to query.\n"])
def test_an_nvidia_smi_that_does_not_answer(nvidia: FakeHost, output: str | None) -> None:
    nvidia.outputs["nvidia-smi --query-gpu"] = output
    told(gpus.clocks(nvidia), Verdict.ADVICE)
    told(gpus.memory_in_use(nvidia), Verdict.FINE)


def test_an_older_nvidia_smi_calls_the_reasons_otherwise(nvidia: FakeHost) -> None:
    nvidia.refused = "clocks_event_reasons"
    assert "1980 of 1980 MHz" in told(gpus.clocks(nvidia), Verdict.FINE)


def test_a_fixed_performance_level(amd: FakeHost) -> None:
    amd.files["/sys/class/drm/card1/device/power_dpm_force_performance_level"] = "low\n"
    assert "card1: low" in told(gpus.clocks(amd), Verdict.ADVICE)
    for level in ("high", "perf_determinism"):  # set for steady times
        amd.files["/sys/class/drm/card1/device/power_dpm_force_performance_level"] = f"{level}\n"
        assert level in told(gpus.clocks(amd), Verdict.FINE)
    amd.files = {}
    told(gpus.clocks(amd), Verdict.ADVICE)


@pytest.mark.parametrize("kib", [32, 160])
def test_shared_memory_other_than_the_spaces_are_told(amd: FakeHost, kib: int) -> None:
    for node in ("1", "2"):
        amd.files[f"{KFD}/{node}/properties"] = f"simd_count 1024\nlds_size_in_kb {kib}\n"
    assert f"{kib} KiB" in told(gpus.shared_memory(amd), Verdict.BROKEN)


def test_little_shared_memory(nvidia: FakeHost) -> None:
    nvidia.is_machine = dataclasses.replace(nvidia.is_machine, shared_memory=48 * 1024)
    assert "48 KiB" in told(gpus.shared_memory(nvidia), Verdict.ADVICE)
