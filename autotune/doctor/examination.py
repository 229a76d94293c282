"""Runs every check in turn; a check that raises becomes a finding."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from autotune.doctor.checks import Check, checks
from autotune.doctor.finding import Finding, broken
from autotune.doctor.host import Host
from autotune.errors import AutotuneError

EXPECTED = (AutotuneError, ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, ValueError,
            subprocess.SubprocessError)  # fmt: skip
"""Errors that a check may raise on a machine nobody has foreseen."""


def examine(host: Host, url: str) -> Iterator[tuple[str, Finding]]:
    """Yields every check's name and finding as it is made."""
    for name, check in checks(url).items():
        yield name, _made(check, host)


def _made(check: Check, host: Host) -> Finding:
    try:
        return check(host)
    except EXPECTED as error:
        first_line = (str(error).splitlines() or [""])[0]
        return broken(
            f"check failed: {type(error).__name__}: {first_line}",
            "fix what it names; if it is not yours to fix, report it with this line",
        )
