"""Docs and code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from autotune.settings import SETTINGS

ROOT = Path(__file__).parents[1]


def test_settings_are_documented_as_they_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
    assert rows == [(setting.name, setting.allowed, setting.meaning) for setting in SETTINGS]


def test_only_one_module_reads_our_environment_variables() -> None:
    sources = list((ROOT / "autotune").rglob("*.py"))
    assert "settings.py" in [path.name for path in sources if re.search(r'"AUTOTUNE_\w+"', path.read_text())]
    assert not [path for path in sources if re.search(r'os\.environ(\.get)?[\[(]"AUTOTUNE_', path.read_text())]


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_public_names_exist() -> None:
    import autotune

    for name in autotune.__all__:
        assert getattr(autotune, name) is not None
