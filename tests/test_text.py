from __future__ import annotations

import json
import unicodedata

import pytest
from markdown_it import MarkdownIt

from autotune.text import HIDDEN, json_text, markdown, markdown_code, visible, visible_lines

HOSTILE = "\x1b]0;owned\x07\r\n\x9b2J\x7f\u202eabc\u2066\u200b\ufeff\ud800\U000e0041"


def test_what_acts_is_shown() -> None:
    shown = visible(f"H200 {HOSTILE} µ ü 日本")
    assert shown == (r"H200 \x1b]0;owned\x07\r\n\x9b2J\x7f\u202eabc\u2066\u200b\ufeff\ud800\U000e0041 µ ü 日本")
    assert visible_lines("one\n\ttwo\x1b") == "one\n\ttwo\\x1b"


def test_every_control_character_and_every_surrogate_is_hidden() -> None:
    for code in range(0x110000):
        if unicodedata.category(chr(code)) in ("Cc", "Cs") or unicodedata.bidirectional(chr(code)) in (
            "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
        ):  # fmt: skip
            assert HIDDEN.fullmatch(chr(code)), hex(code)


def test_json_means_the_same_with_nothing_hidden() -> None:
    value = {HOSTILE: [HOSTILE, 1, True, None, "µ"]}
    text = json_text(value)
    assert json.loads(text) == value and not HIDDEN.search(text.replace("\n", "")) and "µ" in text


@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", "a `b` c", "[x](javascript:y)", "![x](y)", "*b* **c**", "a|b", "&lt;", "\\", "\\|",
     "a\n# b", "~~x~~", "<!-- x", "``` `", "]]>", "# x", HOSTILE],
)  # fmt: skip
def test_markdown_shows_text_as_it_is(text: str) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for document in (f"x {markdown(text)}", f"| a |\n|---|\n| {markdown(text)} |"):
        inline = [token for token in parser.parse(document) if token.type == "inline"][-1]
        assert {child.type for child in inline.children or []} <= {"text", "text_special"}
        assert "".join(child.content for child in inline.children or []).removeprefix("x ") == visible(text).strip()
    for document in (f"x {markdown_code(text)}", f"| a |\n|---|\n| {markdown_code(text)} |"):
        inline = [token for token in parser.parse(document) if token.type == "inline"][-1]
        assert [child.type for child in inline.children or [] if child.content not in ("", "x ")] == ["code_inline"]
