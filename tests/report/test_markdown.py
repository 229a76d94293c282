"""A study as Markdown: whole tables, escaped names, the verdict first."""

from __future__ import annotations

import dataclasses

from autotune.report.markdown import to_markdown
from autotune.results.study import Study


def test_the_verdict_is_first_and_every_table_is_whole(study: Study) -> None:
    assert study.result is not None and study.result.speedup is not None
    text = to_markdown(study)
    assert text.splitlines()[0].startswith("# all-gather-gemm: m=4096 n=28672 k=8192 ")
    assert text.splitlines()[2].endswith("× as fast as NCCL + cuBLAS in a CUDA graph**")
    for block in text.split("\n\n"):
        if block.startswith("|"):
            rows = [line.replace("\\|", "").count("|") for line in block.splitlines()]
            assert len(rows) >= 3 and len(set(rows)) == 1
            assert max(map(len, block.splitlines())) <= 140


def test_an_imported_study_does_not_say_that_nothing_was_tried(study: Study) -> None:
    text = to_markdown(dataclasses.replace(study, trials=()))
    for wrong in ("How evaluations ended", " tried", " evaluations", "ranks restarted"):
        assert wrong in to_markdown(study) and wrong not in text, wrong
