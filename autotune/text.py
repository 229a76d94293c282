"""Text for people: times, tables, suggestions; text from databases, files and users, made safe to print."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import InputError

_HIDDEN = (
    "\x00-\x1f\x7f-\x9f"  # control characters: they move the cursor, set the title, clear the screen
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"  # unseen ones, and those that turn text around
    "\ud800-\udfff\U000e0000-\U000e007f"  # halves of characters, which cannot be encoded; tags, which nobody sees
)
HIDDEN = re.compile(f"[{_HIDDEN}]")
"""Characters that a reader cannot see, or that act on a terminal."""

_OF_LINES = re.compile(f"(?![\n\t])[{_HIDDEN}]")
_MARKUP = re.compile(r"[\\`*\[\]|~]")
_RUN_OF_BACKTICKS = re.compile("`+")


LONGEST_WORD = 64
"""Characters shown of a word in a problem's fields; commands and files have them whole."""


def visible(text: str) -> str:
    r"""One line of text with hidden characters as escapes: ``\x1b``, ``\n``, ``\u202e``."""
    return HIDDEN.sub(_escape, text)


def visible_lines(text: str) -> str:
    """Several lines of text with hidden characters as escapes, newlines and tabs kept."""
    return _OF_LINES.sub(_escape, text)


def markdown(text: str, lines: bool = False) -> str:
    """One line of text, or several, escaped for Markdown, table cells included."""
    plain = (visible_lines if lines else visible)(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\g<0>", plain)


def markdown_code(text: str) -> str:
    """One line of text as Markdown code, table cells included."""
    plain = visible(text).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, _RUN_OF_BACKTICKS.findall(plain)), default=0))
    pad = " " if "`" in plain else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def json_text(value: Any, indent: int | None = 2) -> str:
    """A value as JSON whose hidden characters are JSON escapes."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _OF_LINES.sub(lambda found: json.dumps(found[0])[1:-1], text)


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its pairs, for ``json.loads``, which takes the last of two of one name. Raises InputError."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise InputError(f"names {visible(name)} twice")
        values[name] = value
    return values


def microseconds(value: float) -> str:
    """A time of so many µs with about four digits, in the unit that suits it: 4.08 µs, 408.2 µs, 12.35 ms, 1.509 s."""
    if value < 999.95:
        return f"{value:.1f} µs" if value >= 100 else f"{value:.2f} µs"
    scaled, unit = (value / 1e3, "ms") if value < 999.95e3 else (value / 1e6, "s")
    return f"{scaled:.{1 if scaled >= 100 else 2 if scaled >= 10 else 3}f} {unit}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def shortened(text: str) -> str:
    """A long word as its beginning and a digest, by which others with the same beginning differ from it."""
    if len(text) <= LONGEST_WORD:
        return text
    return f"{text[:8]}…{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def did_you_mean(word: object, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """``; did you mean list?``, or nothing without a similar known word. ``synonyms`` map to known words."""
    import difflib  # only where something is wrong already

    text, others = str(word), list(known)
    for spelling in (text, text.lower().removeprefix("torch.")):
        meant = (synonyms or {}).get(spelling)
        near = [meant] if meant is not None else difflib.get_close_matches(spelling, others, n=1, cutoff=0.7)
        if near:
            return f"; did you mean {near[0]}?"
    return ""


@dataclass(frozen=True)
class Table:
    """``align`` has ``r`` for each column of numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str = ""
    caption: str = ""
