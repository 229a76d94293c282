"""A finding: what a check found, whether that is fine, and what to mend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether what was found is fine."""

    FINE = "fine"
    ADVICE = "could be better"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """What a check found on this machine."""

    found: str
    verdict: Verdict = Verdict.FINE
    mend: str = ""
    """What to do about it; empty where all is fine."""


def fine(found: str) -> Finding:
    """All is well."""
    return Finding(found)


def advice(found: str, mend: str) -> Finding:
    """It works, but slower, or with noisier times."""
    return Finding(found, Verdict.ADVICE, mend)


def broken(found: str, mend: str) -> Finding:
    """Tuning fails, or measures the wrong thing, until this is mended."""
    return Finding(found, Verdict.BROKEN, mend)
