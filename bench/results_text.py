"""How results are written: the line that says where and when, commands, tables, ratios; pages and their markers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from steps import FOLDER, JSON

WIDTH = 118
FEW = 6
"""Numbers that are listed one by one; of more the range is given."""


class Unwritten(Exception):
    """A table's place in a page, or a picture, cannot be written."""


def begins(name: str) -> str:
    return f"<!-- results: {name} -->"


def ends(name: str) -> str:
    return f"<!-- end of {name} -->"


def replaced(page: str, name: str, text: str) -> str:
    """The page with this text between the markers of ``name``; raises Unwritten unless each stands there once."""
    if page.count(begins(name)) != 1 or page.count(ends(name)) != 1:
        raise Unwritten(f"{begins(name)} and {ends(name)} have to stand there once each")
    before, rest = page.split(begins(name))
    _, after = rest.split(ends(name))
    return f"{before}{begins(name)}\n\n{text.strip()}\n\n{ends(name)}{after}"


def block(stored: Sequence[dict[str, Any]], body: str) -> str:
    """Where and when, by which commands, and what came out."""
    commands = dict.fromkeys(shown_command(each["words"]) for each in stored)
    return "\n".join([paragraph(f"{caption(stored)}:"), "", *commands, "", body])


def paragraph(text: str) -> str:
    """Filled to the width of the pages."""
    return textwrap.fill(text, WIDTH + 2, break_long_words=False, break_on_hyphens=False)


def caption(stored: Sequence[dict[str, Any]]) -> str:
    """Machine, versions and days of all these results."""
    machine, versions = stored[0]["machine"], stored[0]["versions"]
    days = sorted({each["date"] for each in stored})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    where = f"**{machine['gpus']} × {machine['device']}** ({machine['arch']}, {machine['interconnect']})"
    if machine["kind"] == "interpreter":
        where = "Triton's interpreter on a CPU, whose times say nothing about GPUs"
    named = [f"{name} {version}" for name, version in versions.items() if version]
    return f"{where}, {', '.join(named)}; {when}"


def shown_command(words: Sequence[str]) -> str:
    """A step's command as a person types it, indented for Markdown."""
    text = " ".join(word for word in words if FOLDER not in word).replace(f" --json {JSON}", "")
    for typed, meant in (("-m autotune.cli", "tune"), ("-m torch.distributed.run --standalone", "torchrun")):
        text = text.replace(typed, meant)
    text = text if text.startswith(("tune", "torchrun")) else f"python {text}"
    return " \\\n".join(textwrap.wrap(text, WIDTH - 6, initial_indent="    ", subsequent_indent="        ",
                                     break_long_words=False, break_on_hyphens=False))  # fmt: skip


def sizes_text(values: Sequence[int]) -> str:
    """1, 2, 4, …, 1024; few of them one by one. Thousands of 1024 as K where all are."""
    shown = [f"{value // 1024}K" if min(values) >= 8192 and value % 1024 == 0 else str(value) for value in values]
    if len(shown) > FEW:
        return ", ".join([*shown[:3], "…", shown[-1]])
    return ", ".join(shown)


def shared_text(problem: dict[str, Any]) -> str:
    """The sizes that problems of a line share."""
    if "experts" in problem:
        return f"{problem['experts']} experts of {problem['hidden']} by {problem['width']}, top {problem['top_k']}"
    if "n" in problem:
        return f"N={problem['n']}" + (f" K={problem['k']}" if "k" in problem else "")
    return f"{problem['q_heads']}/{problem['kv_heads']} heads of {problem['head_dim']}"
