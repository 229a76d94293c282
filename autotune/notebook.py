"""Results in notebooks: HTML that stands alone, in the notebook's own colours, with every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from autotune.text import visible

CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


def html_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A title and named lines; rows without a text are left out."""
    lines = "".join(
        f'<tr><th style="{CELL}">{_text(name)}</th><td style="{CELL}">{_text(text)}</td></tr>'
        for name, text in rows
        if text
    )
    return f"<div><strong>{_text(title)}</strong><table>{lines}</table></div>"


def _text(text: str) -> str:
    return escape(visible(text))
