"""Text from databases, files and users, made safe to print: control and hidden characters become escapes."""

from __future__ import annotations

import json
import re
from typing import Any

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


def visible(text: str) -> str:
    r"""One line of text with hidden characters as escapes: ``\x1b``, ``\n``, ``\u202e``."""
    return HIDDEN.sub(_escape, text)


def visible_lines(text: str) -> str:
    """Several lines of text with hidden characters as escapes, newlines and tabs kept."""
    return _OF_LINES.sub(_escape, text)


def markdown(text: str) -> str:
    """One line of text escaped for Markdown, table cells included."""
    plain = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\g<0>", plain)


def markdown_code(text: str) -> str:
    """One line of text as Markdown code, table cells included."""
    plain = visible(text).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, _RUN_OF_BACKTICKS.findall(plain)), default=0))
    pad = " " if "`" in plain else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def json_text(value: Any, indent: int | None = 2) -> str:
    """A value as JSON whose hidden characters are JSON escapes."""
    return visible_json(json.dumps(value, indent=indent, ensure_ascii=False))


def visible_json(text: str) -> str:
    """JSON text with hidden characters as JSON escapes."""
    return _OF_LINES.sub(_escape_in_json, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _escape_in_json(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
