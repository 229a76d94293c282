"""A finding: the fact, a verdict, and the fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    FINE = "fine"
    ADVICE = "could be better"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    found: str
    verdict: Verdict = Verdict.FINE
    mend: str = ""
    """The fix, as an instruction; empty if all is fine."""


def fine(found: str) -> Finding:
    return Finding(found)


def advice(found: str, mend: str) -> Finding:
    """A finding with which tuning works, but slower or with noisier times."""
    return Finding(found, Verdict.ADVICE, mend)


def broken(found: str, mend: str) -> Finding:
    """A finding with which tuning fails or measures the wrong thing until it is fixed."""
    return Finding(found, Verdict.BROKEN, mend)
