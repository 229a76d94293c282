"""Suggestions for a mistyped word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def did_you_mean(word: object, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """``; did you mean list?``, or nothing without a similar known word. ``synonyms`` map to known words."""
    import difflib  # only where something is wrong already

    text = str(word)
    meant = (synonyms or {}).get(text)
    near = [meant] if meant is not None else difflib.get_close_matches(text, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""
