"""Modules with the names of the standard library's, lying in a folder that nothing should be imported from."""

from __future__ import annotations

from pathlib import Path

NAMES = ("gzip", "pickle", "queue", "signal", "tempfile")


def plant(folder: Path) -> None:
    """Each leaves the file "has run" behind."""
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'has run')!r}, 'a').write('{name} ')\n1 / 0\n")
