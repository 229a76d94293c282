"""What a report says first: how the study ended, in figures and in words."""

from __future__ import annotations

from autotune.results.figures import NOT_TOLD_APART, device_text, latency_text, microseconds
from autotune.results.library import OPERATIONS
from autotune.results.lines import in_words
from autotune.results.regimes import conclusion, tuned_for
from autotune.results.study import Study
from autotune.text import counted


def verdict(study: Study) -> str:
    """``1.23× as fast as NCCL + cuBLAS``."""
    of = study.result
    if of is None:
        if not study.measured:
            return f"None of {counted(study.evaluated, 'config')} could be measured"
        return "Unfinished: the finals are missing"
    if of.unbeaten:
        return f"{of.unbeaten} stays: no config was faster by more than the noise"
    if of.speedup is None or of.ratio is None:
        return f"{latency_text(of.latency, of.regime)} a {'launch' if study.key.is_kernel else 'call'}"
    name = of.way(of.speedup.baseline)
    return f"{of.ratio.brief}× as fast as {name}" if of.ratio.is_told else f"{NOT_TOLD_APART.capitalize()} from {name}"


def claim(study: Study) -> str:
    """``197.9 µs instead of 244.3 µs per call; 89 % of perfect overlap``; empty where nothing can be compared."""
    of = study.result
    if of is None or of.speedup is None or of.ratio is None:
        return ""
    other = "" if of.unbeaten else f" instead of {microseconds(of.speedup.latency.of(of.regime))}"
    overlap = f"; {of.limit.text}" if of.limit is not None else ""
    return f"{microseconds(of.microseconds)}{other} per call{overlap}"


def operation(study: Study) -> str:
    """What is computed; empty for an operation that is not built in."""
    return OPERATIONS.get(study.key.workload, "")


def tried(study: Study) -> str:
    """What was tried; empty for an imported study, whose trials are elsewhere."""
    if not study.trials:
        return ""
    winner = study.record.winner
    if winner is not None and winner.verified:
        return "Verified with the configs of neighbouring sizes, none searched; results checked on every rank."
    return f"{study.evaluated:,} of {study.record.space_size:,} configs tried; results checked on every rank."


def circumstances(study: Study) -> str:
    """``Tuned 2026-11-26 on 8 × NVIDIA H200 (sm_90, nvlink) for eager callers whose host runs ahead.``"""
    replayed, last = study.record.provenance.replay_of, study.last_moment
    tuned = f"Measured {replayed}" if replayed else f"Tuned {last:%Y-%m-%d}" if last is not None else "Tuned"
    return f"{tuned} on {device_text(study.key)} for {tuned_for(study.key)}."


def notes(study: Study) -> list[str]:
    """Caveats, and where the winner is slower than a baseline."""
    of = study.result
    slower = conclusion(of.verdicts, of.way) if of is not None else ""
    return [*study.notes, *([slower] if slower else [])]


def words(study: Study) -> str:
    """The winner in words; empty where nothing was measured."""
    return "" if study.winner is None else in_words(study.key.workload, study.winner)
