"""The examination: every check in turn, none of which can end it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

from autotune.doctor.checks import Check, checks
from autotune.doctor.finding import Finding, broken
from autotune.doctor.host import Host
from autotune.errors import AutotuneError

EXPECTED = (AutotuneError, ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, ValueError,
            subprocess.SubprocessError)  # fmt: skip
"""What a machine that nobody has foreseen may raise inside a check."""


def examine(host: Host, url: str) -> Iterator[tuple[str, Finding]]:
    """Every check's name and finding, as they are made."""
    for name, check in checks(url).items():
        yield name, _made(check, host)


def _made(check: Check, host: Host) -> Finding:
    try:
        return check(host)
    except EXPECTED as error:
        first_line = (str(error).splitlines() or [""])[0]
        return broken(
            f"could not be checked: {type(error).__name__}: {first_line}",
            "mend what it names; if it is nothing of yours, report it with this line",
        )
