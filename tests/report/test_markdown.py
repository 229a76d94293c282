"""A study as Markdown: whole tables, escaped names, the verdict first."""

from __future__ import annotations

import dataclasses

from autotune.report.markdown import to_markdown
from autotune.results.study import Study


def test_an_imported_study_does_not_say_that_nothing_was_tried(study: Study) -> None:
    text = to_markdown(dataclasses.replace(study, trials=()))
    for wrong in ("How evaluations ended", " tried", " evaluations", "ranks restarted"):
        assert wrong in to_markdown(study) and wrong not in text, wrong
