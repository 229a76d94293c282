"""For MkDocs: pages that lie at the top of the repository, the folders of the navigation, links between them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

TOP = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
FOLDERS = ("kernels",)
"""Of which the navigation has all pages."""


def on_config(config: Any) -> Any:
    """Put every page of a folder into the navigation where its name stands."""
    root = Path(config.docs_dir)

    def filled(entry: Any) -> Any:
        if isinstance(entry, list):
            return [filled(each) for each in entry]
        if isinstance(entry, dict):
            return {name: filled(value) for name, value in entry.items()}
        if entry in FOLDERS:
            return [page.relative_to(root).as_posix() for page in sorted((root / entry).glob("*.md"))]
        return entry

    config.nav = filled(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.docs_dir).parent
    for source, page in TOP.items():
        text = re.sub(r"\]\(docs/", "](", (root / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link to the README is one to the first page."""
    return markdown.replace("](../README.md", "](index.md")
