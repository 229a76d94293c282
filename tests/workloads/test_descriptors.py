"""A workload's descriptor says what the workload itself says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import UnknownWorkload
from autotune.workloads import provenance_of, workload
from autotune.workloads.descriptors import descriptor_of, installed_descriptor, installed_provenance
from autotune.workloads.user_files import BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_face_is_that_of_its_workload(name: str) -> None:
    found, whole = descriptor_of(name.replace("_", "-")), workload(name)
    assert found == installed_descriptor(name)
    assert (found.name, found.problem_type) == (whole.name, whole.problem_type) and found.load() is whole
    assert installed_provenance(name) == provenance_of(whole), (
        "an entry would be called stale, or served when it is not"
    )


def test_spaces_load_without_kernels() -> None:
    """A look-up, ``tune list`` and ``tune show`` wait for this."""
    code = """
import sys
from autotune.workloads.descriptors import space_of
from autotune.workloads.user_files import BUILT_IN
print(sum(len(space_of(name).modes) for name in BUILT_IN), {"torch", "triton", "optuna"} & {*sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{sum(len(workload(name).space.modes) for name in BUILT_IN)} set()\n", done.stderr


def test_a_stored_name_loads_no_file_and_may_be_nobodys(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise AssertionError('loaded')")
    for look in (installed_descriptor, installed_provenance):
        for name in (f"{file}:Mine", "gemm_all_reduc"):
            with pytest.raises(UnknownWorkload):
                look(name)
    with pytest.raises(UnknownWorkload):
        descriptor_of("gemm_all_reduc")
