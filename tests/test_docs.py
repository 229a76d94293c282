"""Docs and code say the same; the website has every page, and no link leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder), *options]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_every_page_is_there_and_can_be_reached(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    docs = ROOT / "docs"
    pages = {file.relative_to(docs).with_suffix(".html").as_posix() for file in docs.rglob("*.md")}
    navigation = set(re.findall(r'href="([^"#:]+\.html)" class="md-nav__link', (tmp_path / "index.html").read_text()))
    assert {*pages, "CONTRIBUTING.html", "CHANGELOG.html"} <= navigation
    for page in tmp_path.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="(?!\w+:|//)([^"#?]+)', page.read_text(encoding="utf-8")):
            assert page.name == "404.html" or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    settings = tmp_path / "mkdocs.yml"
    hooks = f"hooks: [{ROOT / 'docs' / 'site_hooks.py'}, {tmp_path / 'broken.py'}]"
    text = (ROOT / "mkdocs.yml").read_text().replace("hooks: [docs/site_hooks.py]", hooks)
    settings.write_text(text.replace("docs_dir: docs", f"docs_dir: {ROOT / 'docs'}"))
    (tmp_path / "broken.py").write_text(
        "def on_page_markdown(markdown, page, **_):\n"
        "    return markdown + ('[x](operators.md#no-such-heading)' if page.file.src_uri == 'check.md' else '')\n"
    )
    done = build(tmp_path / "site", "-f", str(settings))
    assert done.returncode != 0 and "no-such-heading" in done.stderr + done.stdout
