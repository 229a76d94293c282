from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fake_host import FakeHost

from autotune.doctor import Host, Verdict
from autotune.doctor.checks import software
from autotune.machine import H100


@pytest.mark.parametrize("error", [ImportError("No module named 'torch'"), OSError("libcudart.so.12: no such file")])
def test_a_torch_that_cannot_be_imported(laptop: FakeHost, error: Exception) -> None:
    laptop.torch_says = error
    finding = software.torch(laptop)
    assert finding.verdict is Verdict.BROKEN and str(error) in finding.found and "install torch" in finding.mend


@pytest.mark.parametrize(("sign", "kind"), [("/proc/driver/nvidia/version", "CUDA"), ("/dev/kfd", "ROCm")])
def test_a_torch_that_does_not_see_the_gpus(laptop: FakeHost, sign: str, kind: str) -> None:
    laptop.files[sign] = ""
    finding = software.torch(laptop)
    assert finding.verdict is Verdict.BROKEN
    assert kind in finding.found and kind in finding.mend


@pytest.mark.parametrize(
    ("name", "text", "verdict", "told"),
    [
        ("AUTOTUNE_COMPILE_WORKERS", "abc", Verdict.BROKEN, "must be an integer from 1 to 1024"),
        ("AUTOTUNE_WORKLOAD", "my_op.py", Verdict.ADVICE, "AUTOTUNE_WORKLOAD: unknown, ignored"),
        ("AUTOTUNE_OFFLINE", "", Verdict.FINE, "AUTOTUNE_OFFLINE="),
        ("AUTOTUNE_OFFLINE", "yes", Verdict.FINE, "AUTOTUNE_OFFLINE=yes"),
    ],
)
def test_settings(laptop: FakeHost, name: str, text: str, verdict: Verdict, told: str) -> None:
    laptop.settings_given = {name: text}
    finding = software.settings(laptop)
    assert finding.verdict is verdict and told in finding.found


@pytest.mark.parametrize("error", [ImportError("No module named 'iris'"), OSError("libamdhip64.so")])
def test_an_iris_that_cannot_be_imported(laptop: FakeHost, error: Exception) -> None:
    laptop.iris_says = error
    finding = software.iris(laptop)
    assert finding.verdict is Verdict.BROKEN
    assert str(error) in finding.found and "pip install tokenspeed-iris" in finding.mend


@pytest.mark.parametrize(
    ("triton", "numpy", "works"),
    [
        ("3.6.0", "2.3.5", True), ("3.6.0", "2.4.0", False), ("3.6.0+git1", "2.10.0rc1", False),
        ("3.6.0", "3.0.0", False), ("3.7.0", "2.4.0", True), ("3.10.1", "2.5.5", True),
    ],
)  # fmt: skip
def test_an_interpreter_and_its_numpy(laptop: FakeHost, nvidia: FakeHost, triton: str, numpy: str, works: bool) -> None:
    for host in (laptop, nvidia):
        host.is_triton, host.is_numpy = triton, numpy
    finding = software.interpreter(laptop)
    assert f"triton {triton}" in finding.found and f"numpy {numpy}" in finding.found
    assert (finding.verdict is Verdict.FINE) is works and ("pip install 'numpy<2.4'" in finding.mend) is not works
    assert software.interpreter(nvidia).verdict is Verdict.FINE


def test_without_gpus_it_compiles_for_both_vendors_and_else_for_what_is_here(
    laptop: FakeHost, nvidia: FakeHost, amd: FakeHost
) -> None:
    for host in (laptop, nvidia, amd):
        software.compiler(host)
    assert (laptop.compiled, nvidia.compiled, amd.compiled) == (["sm_90", "gfx942"], ["sm_90"], ["gfx942"])


def test_a_compiler_that_does_not_work(laptop: FakeHost) -> None:
    laptop.failures["gfx942"] = "scale: error: no such target"
    finding = software.compiler(laptop)
    assert finding.verdict is Verdict.BROKEN
    assert "gfx942" in finding.found and "no such target" in finding.found


def test_no_c_compiler(nvidia: FakeHost) -> None:
    nvidia.cc = None
    finding = software.launcher(nvidia)
    assert finding.verdict is Verdict.BROKEN and "install gcc or clang" in finding.mend


def test_no_python_headers(nvidia: FakeHost) -> None:
    nvidia.headers = False
    finding = software.launcher(nvidia)
    assert finding.verdict is Verdict.BROKEN and "Python.h" in finding.found


def test_the_real_compiler_compiles_here_and_says_why_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))  # what is in there would not be compiled
    host = Host()
    assert host.compile_kernel(H100) == ""
    assert "scale: " in host.compile_kernel(dataclasses.replace(H100, arch="sm_99"))
    assert not (tmp_path / "cache").exists()
