from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from autotune.doctor import Verdict, examine
from autotune.doctor.examination import checks

URL = "sqlite:////data/cache.db"
NAMES = list(checks(URL))


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "laptop"])
def test_a_healthy_machine_passes_every_check(vendor: str, request: pytest.FixtureRequest) -> None:
    findings = dict(examine(request.getfixturevalue(vendor), URL))
    assert list(findings) == NAMES
    assert {finding.verdict for finding in findings.values()} == {Verdict.FINE}


class Broken:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*_: object) -> Any:
            raise self._error

        return fail


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later"),
        KeyError(),
        subprocess.TimeoutExpired("nvidia-smi", 20),
    ],
)
def test_nothing_ends_the_examination(error: Exception) -> None:
    findings = dict(examine(Broken(error), URL))  # type: ignore[arg-type]
    assert list(findings) == NAMES
    for finding in findings.values():
        assert finding.verdict is Verdict.BROKEN and finding.mend and "\n" not in finding.found
