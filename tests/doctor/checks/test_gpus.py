from __future__ import annotations

import dataclasses

import pytest
from fake_host import KFD, FakeHost

from autotune.doctor import Finding, Verdict
from autotune.doctor.checks import gpus


def told(finding: Finding, verdict: Verdict) -> str:
    """The finding, with its fix if it has one."""
    assert finding.verdict is verdict, finding
    assert bool(finding.mend) == (verdict is not Verdict.FINE)
    return f"{finding.found} → {finding.mend}"


CHECKS = (gpus.gpus, gpus.links, gpus.peer_access, gpus.clocks, gpus.memory_in_use, gpus.shared_memory)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("vendor", ["nvidia", "amd", "laptop"])
def test_a_healthy_machine_is_fine(check: object, vendor: str, request: pytest.FixtureRequest) -> None:
    assert callable(check)
    told(check(request.getfixturevalue(vendor)), Verdict.FINE)


def test_healthy_gpus_are_described(nvidia: FakeHost, amd: FakeHost) -> None:
    assert gpus.gpus(nvidia).found == "3 × NVIDIA H100 80GB HBM3 (sm_90)"
    assert gpus.links(nvidia).found == "NV18 (3 pairs)"
    assert gpus.peer_access(nvidia).found == "all 6 pairs"
    assert gpus.clocks(nvidia).found == "not throttled; 1980 of 1980 MHz in P0"
    assert gpus.shared_memory(nvidia).found == "227 KiB per program"
    assert gpus.links(amd).found == "xgmi (1 pair)"
    assert gpus.clocks(amd).found == "performance level auto"
    assert gpus.shared_memory(amd).found == "64 KiB per program"


def test_gpus_of_two_kinds(nvidia: FakeHost) -> None:
    nvidia.names[1] = "NVIDIA L4"
    assert "2 × NVIDIA H100 80GB HBM3 and 1 × NVIDIA L4" in told(gpus.gpus(nvidia), Verdict.BROKEN)


def test_one_gpu_has_no_peers(nvidia: FakeHost) -> None:
    nvidia.names = nvidia.names[:1]
    assert gpus.links(nvidia).found == "1 GPU: nothing to link"
    assert gpus.peer_access(nvidia).found == "1 GPU: no peers"


def test_a_pair_over_pcie(nvidia: FakeHost, amd: FakeHost) -> None:
    nvidia.outputs["nvidia-smi topo"] = (
        "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tSYS\nGPU1\tNV4\t X \tSYS\nGPU2\tSYS\tSYS\t X \n"
    )
    assert "NV4 (1 pair), SYS (2 pairs) → PCIe is about ten times slower" in told(gpus.links(nvidia), Verdict.ADVICE)
    for nearer in ("PIX", "PXB", "PHB", "NODE"):  # over PCIe all the same
        nvidia.outputs["nvidia-smi topo"] = f"\tGPU0\tGPU1\nGPU0\t X \t{nearer}\nGPU1\t{nearer}\t X \n"
        assert told(gpus.links(nvidia), Verdict.ADVICE).startswith(f"{nearer} (1 pair) → PCIe")
    del amd.files[f"{KFD}/1/io_links/1/properties"]
    amd.files[f"{KFD}/1/p2p_links/0/properties"] = "type 2\nnode_from 1\nnode_to 2\n"
    assert told(gpus.links(amd), Verdict.ADVICE).startswith("pcie (1 pair)")


@pytest.mark.parametrize("output", [None, "", "no devices were found\n"])
def test_links_that_nobody_knows(nvidia: FakeHost, output: str | None) -> None:
    nvidia.outputs["nvidia-smi topo"] = output
    assert "unknown" in told(gpus.links(nvidia), Verdict.ADVICE)


def test_peers_that_cannot_reach_each_other(nvidia: FakeHost) -> None:
    nvidia.unreachable = {(0, 2), (2, 0)}
    assert "2 of 6 pairs have no peer access: 0→2, 2→0 → disable" in told(gpus.peer_access(nvidia), Verdict.BROKEN)


@pytest.mark.parametrize(
    ("status", "verdict", "text"),
    [
        (
            "0x08, 1, 700.00, 700.00, 41, P0, 300, 1980, Disabled, 4",
            Verdict.BROKEN,
            "GPU 1 is slowed by a hardware slow",
        ),
        ("0x20, 1, 700.00, 700.00, 88, P0, 900, 1980, Disabled, 4", Verdict.BROKEN, "its temperature (driver) (88 °C)"),
        (
            "0x40, 1, 700.00, 700.00, 93, P0, 900, 1980, Disabled, 4",
            Verdict.BROKEN,
            "its temperature (hardware) (93 °C)",
        ),
        ("0x80, 1, 700.00, 700.00, 40, P0, 900, 1980, Disabled, 4", Verdict.BROKEN, "an external power brake"),
        ("0x00, 1, 700.00, 700.00, 40, P0, 900, 1980, Enabled, 4", Verdict.BROKEN, "GPU 1 is in MIG mode"),
        ("0x04, 1, 700.00, 700.00, 40, P0, 900, 1980, Disabled, 4", Verdict.ADVICE, "GPU 1 is slowed by its power cap"),
        ("0x02, 1, 700.00, 700.00, 40, P0, 900, 1980, Disabled, 4", Verdict.ADVICE, "fixed application clocks"),
        ("0x00, 1, 500.00, 700.00, 40, P0, 900, 1980, Disabled, 4", Verdict.ADVICE, "limited to 500.00 of 700.00 W"),
        ("[N/A], 1, [N/A], [N/A], [N/A], P8, 210, 1980, [N/A], [N/A]", Verdict.FINE, "210 of 1980 MHz in P8"),
    ],
)
def test_what_slows_a_gpu(nvidia: FakeHost, status: str, verdict: Verdict, text: str) -> None:
    nvidia.outputs["nvidia-smi --query-gpu"] = f"{status}\n"
    assert text in told(gpus.clocks(nvidia), verdict)


def test_all_that_slows_the_gpus_is_told_the_worst_first(nvidia: FakeHost) -> None:
    nvidia.outputs["nvidia-smi --query-gpu"] = (
        "0x04, 0, 700.00, 700.00, 40, P0, 900, 1980, Disabled, 4\n"
        "0x40, 1, 500.00, 700.00, 93, P0, 900, 1980, Disabled, 4\n"
    )
    assert told(gpus.clocks(nvidia), Verdict.BROKEN).startswith(
        "GPU 1 is slowed by its temperature (hardware) (93 °C); GPU 0 is slowed by its power cap (40 °C); "
        "GPU 1 is limited to 500.00 of 700.00 W → fix"
    )


@pytest.mark.parametrize("output", [None, "", "Field is not a valid field to query.\n"])
def test_an_nvidia_smi_that_does_not_answer(nvidia: FakeHost, output: str | None) -> None:
    nvidia.outputs["nvidia-smi --query-gpu"] = output
    assert "unknown: nvidia-smi does not answer" in told(gpus.clocks(nvidia), Verdict.ADVICE)
    assert told(gpus.memory_in_use(nvidia), Verdict.FINE).startswith("unknown")


def test_an_older_nvidia_smi_calls_the_reasons_otherwise(nvidia: FakeHost) -> None:
    nvidia.refused = "clocks_event_reasons"
    assert gpus.clocks(nvidia).found == "not throttled; 1980 of 1980 MHz in P0"


def test_a_fixed_performance_level(amd: FakeHost) -> None:
    amd.files["/sys/class/drm/card1/device/power_dpm_force_performance_level"] = "low\n"
    assert "performance level card1: low → reset it" in told(gpus.clocks(amd), Verdict.ADVICE)
    for level in ("high", "perf_determinism"):  # set for steady times
        amd.files["/sys/class/drm/card1/device/power_dpm_force_performance_level"] = f"{level}\n"
        assert gpus.clocks(amd).found == f"performance level auto, {level}" and told(gpus.clocks(amd), Verdict.FINE)
    amd.files = {}
    assert "unknown" in told(gpus.clocks(amd), Verdict.ADVICE)


def test_memory_that_somebody_else_uses(nvidia: FakeHost, amd: FakeHost) -> None:
    busy = "0x00, 2, 700.00, 700.00, 33, P0, 1980, 1980, Disabled, 71680"
    nvidia.outputs["nvidia-smi --query-gpu"] = f"{busy}\n"
    assert "in use by other processes: GPU 2: 70.0 GiB → wait" in told(gpus.memory_in_use(nvidia), Verdict.ADVICE)
    amd.files["/sys/class/drm/card1/device/mem_info_vram_used"] = "20000000000\n"
    assert "GPU 1: 18.6 GiB" in told(gpus.memory_in_use(amd), Verdict.ADVICE)


@pytest.mark.parametrize("kib", [32, 160])
def test_shared_memory_other_than_the_spaces_are_told(amd: FakeHost, kib: int) -> None:
    for node in ("1", "2"):
        amd.files[f"{KFD}/{node}/properties"] = f"simd_count 1024\nlds_size_in_kb {kib}\n"
    assert f"assumed 64 KiB per program, but the driver says {kib} KiB" in told(gpus.shared_memory(amd), Verdict.BROKEN)


def test_little_shared_memory(nvidia: FakeHost) -> None:
    nvidia.is_machine = dataclasses.replace(nvidia.is_machine, shared_memory=48 * 1024)
    assert "48 KiB per program → expect" in told(gpus.shared_memory(nvidia), Verdict.ADVICE)
