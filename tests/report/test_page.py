"""The page as a whole: what stands in it without scripts, what its policy allows, that names are text; in a browser."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from every_mode import whole
from sized_studies import named, of_size

from autotune.report.markdown import to_markdown
from autotune.report.page import file_name, to_html, to_index
from autotune.results.study import Study
from autotune.text import HIDDEN

TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "button", "p", "h1", "h2", "noscript", "strong",
    "details", "summary", "div", "pre", "section", "table", "caption", "thead", "tbody", "tr", "th", "td", "script",
}  # fmt: skip


class Parsed(HTMLParser):
    """The elements with their attributes, the scripts, and the text that is not a script's or a style's."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts.append(data)
        elif self._in != "style":
            self.text += data


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode()


def test_its_policy_allows_its_two_scripts_alone(study: Study) -> None:
    parsed = Parsed(to_html(study))
    (policy,) = [a["content"] for tag, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none';") and "unsafe-eval" not in policy
    library, options, script = parsed.scripts
    for text in (unpacked(library), script):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    (rule,) = [rule for rule in policy.split("; ") if rule.startswith("script-src")]
    assert rule.count("sha256") == 2 and "unsafe" not in rule
    assert "connect-src" not in policy, "what is not named is forbidden by default-src"
    assert json.loads(unpacked(options))


def test_the_elements_are_ours_whatever_names_hold_and_ask_nothing_of_a_network(any_study: Study) -> None:
    page = to_html(any_study)
    parsed = Parsed(page)
    assert len(page.encode()) < 1_000_000 and "@import" not in page and "url(" not in page
    for _, attributes in parsed.elements:
        assert not {"src", "href", "srcset", "action"} & set(attributes)
    places = [attributes["data-chart"] for _, attributes in parsed.elements if "data-chart" in attributes]
    assert places == list(json.loads(unpacked(parsed.scripts[1]))), "every chart has its place"
    assert {tag for tag, _ in parsed.elements} <= TAGS
    assert len(parsed.scripts) == 3
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    shown = [parsed.text.replace("\n", ""), *(value for _, each in parsed.elements for value in each.values() if value)]
    assert not any(map(HIDDEN.search, shown))


def test_one_mode_is_shown_and_a_button_for_each(study: Study) -> None:
    elements = Parsed(to_html(study)).elements
    buttons = {
        each["data-tab"]: each["aria-pressed"] for tag, each in elements if tag == "button" and "data-tab" in each
    }
    tabs = [each for tag, each in elements if tag == "div" and each.get("data-tab") in buttons]
    assert len(buttons) > 1 and list(buttons.values()).count("true") == 1
    assert {each["data-tab"] for each in tabs if "hidden" not in each} == {n for n, p in buttons.items() if p == "true"}


def test_the_title_begins_with_the_result(study: Study) -> None:
    assert study.result is not None and study.result.ratio is not None
    assert f"<title>{study.result.ratio.brief}× as fast as NCCL + cuBLAS" in to_html(study)


def test_an_index_links_every_page(study: Study, hostile: Study, only_failed: Study) -> None:
    studies = [study, hostile, only_failed]
    parsed = Parsed(to_index(studies))
    links = [attributes["href"] for tag, attributes in parsed.elements if tag == "a"]
    assert links == [file_name(each) for each in studies]
    assert all(re.fullmatch(r"[A-Za-z0-9-]+\.html", link or "") for link in links)
    assert "unfinished" in parsed.text and not HIDDEN.search(parsed.text.replace("\n", ""))


def test_an_imported_study_does_not_say_that_nothing_was_tried(study: Study) -> None:
    text = to_markdown(dataclasses.replace(study, trials=()))
    for wrong in ("How evaluations ended", " tried", " evaluations", "ranks restarted"):
        assert wrong in to_markdown(study) and wrong not in text, wrong


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
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    dom = done.stdout
    assert 'data-ready="yes"' in dom and 'id="trouble" hidden' in dom
    charts = text.count("data-chart=")
    assert charts >= 1 and len(re.findall(r"<svg\b", dom)) == charts
    assert not re.search(r"CONSOLE.*(error|refused|violat)", done.stderr, re.IGNORECASE)
    assert "<img" not in dom and dom.count("<script") == 4, "the page's three, and the library"
