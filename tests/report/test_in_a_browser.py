"""The page in a headless Chromium, where there is one: every chart is drawn, and no name acts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from every_mode import whole
from sized_studies import named, of_size

from autotune.report.page import to_html, to_index

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.mark.skipif(BROWSER is None, reason=f"needs one of {', '.join(BROWSERS)}")
@pytest.mark.parametrize("kind", ["study", whole("hostile"), whole("only_failed"), "index"])
def test_every_chart_is_drawn(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    if kind == "index":
        study, hostile = request.getfixturevalue("study"), request.getfixturevalue("hostile")
        sizes = [of_size(study, 64, pull=99.5), of_size(study, 256), of_size(study, 64, k=1024)]
        text = to_index([*sizes, *(named(hostile, size) for size in (3, 4))])
    else:
        text = to_html(request.getfixturevalue(kind))
    page = tmp_path / "page.html"
    page.write_text(text, encoding="utf-8")
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    dom = done.stdout
    assert 'data-ready="yes"' in dom and 'id="trouble" hidden' in dom
    charts = text.count("data-chart=")
    assert charts >= 1 and len(re.findall(r"<svg\b", dom)) == charts
    assert not re.search(r"CONSOLE.*(error|refused|violat)", done.stderr, re.IGNORECASE)
    assert "<img" not in dom and dom.count("<script") == 4, "the page's three, and the library"
