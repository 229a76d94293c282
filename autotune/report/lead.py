"""What a report says first: how the study ended, in figures and in words."""

from __future__ import annotations

from autotune.results.figures import BEYOND_LIMIT, NOT_TOLD_APART, device_text, latency_text
from autotune.results.lines import in_words
from autotune.results.regimes import conclusion, tuned_for
from autotune.results.study import Study
from autotune.text import counted


def verdict(study: Study) -> str:
    of = study.result
    if of is None:
        if not study.measured:
            return f"None of {counted(study.evaluated, 'config')} could be measured"
        return "Unfinished: the finals are missing"
    first, own = of.speedup, next((each.baseline for each in of.speedups if each.is_winner), None)
    if own is not None:
        return f"{own} itself: no config beat it by more than the noise"
    if first is None or first.ratio is None:
        return latency_text(of.latency, of.regime)
    if first.ratio.is_told:
        return f"{first.ratio.brief} times as fast as {first.baseline}"
    return f"{NOT_TOLD_APART.capitalize()} from {first.baseline}"


def facts(study: Study) -> list[str]:
    """Latencies, the share of the limit, what was tried."""
    of, told = study.result, []
    if of is not None:
        told.append(latency_text(of.latency, of.regime))
        first = next((each for each in of.speedups if not each.is_winner), None)
        if first is not None:
            told.append(f"{first.baseline} {latency_text(first.latency, of.regime)}")
        if of.limit is not None:
            beyond = of.limit.share > 1.005
            told.append(BEYOND_LIMIT if beyond else f"{100 * of.limit.share:.0f} % of perfect overlap")
        if study.trials:  # an imported study's are elsewhere
            winner = study.record.winner
            tried = f"{study.evaluated} of {study.record.space_size} configs tried"
            if winner is not None and winner.verified:
                tried = "the configs of neighbouring sizes verified, none searched"
            told.append(f"{tried}, results checked on every rank")
    return told


def circumstances(study: Study) -> str:
    """``Tuned 2026-11-26 on 8 × NVIDIA H200 (sm_90, nvlink) for eager callers whose host runs ahead.``"""
    moment = f"{study.last_moment:%Y-%m-%d} " if study.last_moment is not None else ""
    return f"Tuned {moment}on {device_text(study.key)} for {tuned_for(study.key)}."


def notes(study: Study) -> list[str]:
    """Caveats, and where the winner is slower than a baseline."""
    slower = [each for each in study.result.verdicts if each.ratio.is_less] if study.result is not None else []
    return [*study.notes, *([conclusion(slower)] if slower else [])]


def words(study: Study) -> str:
    """The winner in words; empty where nothing was measured."""
    return "" if study.winner is None else in_words(study.key.workload, study.winner)
