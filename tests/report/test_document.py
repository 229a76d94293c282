from __future__ import annotations

import dataclasses
import json

import pytest

from autotune.outcome import Latency
from autotune.report import Report, to_dict, to_json, to_markdown
from autotune.report.document import table
from autotune.results.figures import change_text, latency_text, microseconds, options_text, ratio


def test_markdown_says_the_verdict_first_with_device_date_and_versions(report: Report) -> None:
    text = to_markdown(report)
    lines = text.splitlines()
    sizes, words = "m=4096 n=28672 k=8192 dtype=bf16", "b_order=kn layout=rows"
    assert lines[0] == f"# all-gather-gemm: {sizes} {words}"
    assert "on 8 × NVIDIA H200 (sm_90, nvlink)" in lines[2] and "times** as fast as bsp graph" in lines[2]
    assert f"{report.finished_at:%Y-%m-%d %H:%M} UTC" in text
    for version in (report.provenance.triton, report.provenance.torch, report.provenance.source_hash):
        assert version in text
    for heading in ("Against the baselines", "The limit", "The 10 best", "How evaluations ended", "dimension mattered"):
        assert heading in text
    assert "| change from the winner" in text
    assert "`tune all-gather-gemm --m 4096 " in text and " --world-size 8 --dtype bf16 " in text


def test_every_table_of_the_markdown_is_whole(report: Report) -> None:
    for block in to_markdown(report).split("\n\n"):
        if block.startswith("|"):
            rows = [line.replace("\\|", "").count("|") for line in block.splitlines()]
            assert len(rows) >= 3 and len(set(rows)) == 1


def test_notes_stand_at_the_top(report: Report) -> None:
    noted = dataclasses.replace(report, notes=("Mind the gap.",))
    assert "\n> Mind the gap.\n" in to_markdown(noted).split("```")[0]


def test_a_baseline_that_nothing_beat_is_named_as_the_winner(report: Report) -> None:
    first = report.speedups[0]
    own = dataclasses.replace(report, latency=first.latency)
    assert "bsp graph itself, which no config beat by more than the noise" in to_markdown(own)


def test_a_report_without_parts_leaves_their_sections_out(report: Report) -> None:
    bare = dataclasses.replace(report, limit=None, roofline=None, taxes=(), best=(), knobs=(), speedups=())
    text = to_markdown(bare)
    assert "The limit" not in text and "best" not in text and "mattered" not in text


def test_an_imported_study_does_not_say_that_nothing_was_tried(report: Report) -> None:
    text = to_markdown(dataclasses.replace(report, endings=(), searched=0, remeasured=0, best=(), knobs=()))
    for wrong in ("How evaluations ended", " evaluated", " evaluations", "ranks restarted"):
        assert wrong in to_markdown(report) and wrong not in text, wrong


def test_only_intervals_over_rounds_are_called_so(report: Report) -> None:
    once = dataclasses.replace(report, latency=dataclasses.replace(report.latency, rounds=()))
    assert "95 % interval" in to_markdown(report) and "95 % interval" not in to_markdown(once)


def test_json_holds_all_of_it(report: Report) -> None:
    values = json.loads(to_json(report))
    assert values == json.loads(json.dumps(to_dict(report)))
    assert set(values) == {field.name for field in dataclasses.fields(report)}
    assert values["config"] == dict(report.config) and values["finished_at"] == report.finished_at.isoformat()
    assert values["speedups"][0]["ratio"]["value"] == report.speedups[0].ratio.value
    assert len(values["best"]) == 10


def test_table() -> None:
    assert table(["a", "b"], [["x|y", "1"], ["z\nz", "10"]], "lr").splitlines() == [
        "| a     |  b |",
        "| ----- | -: |",
        "| x\\|y  |  1 |",
        "| z\\\\nz | 10 |",
    ]


def test_a_column_of_one_character_is_still_a_table_to_github() -> None:
    assert table([" ", "b"], [["1", "x"]], "r").splitlines()[1] == "| -: | -- |"


def test_no_line_of_the_text_is_wider_than_a_terminal_can_fold(report: Report) -> None:
    table_lines = [line for line in to_markdown(report).splitlines() if line.startswith("|")]
    assert max(map(len, table_lines)) <= 140


def test_another_modes_first_config_stands_below_the_table(report: Report) -> None:
    winner, other = report.config, report.best[3]
    moved = report.config.replace(mode="elsewhere")
    near = moved.replace(num_warps=99)
    best = [dataclasses.replace(other, config=config, winner=False) for config in (winner, moved, near)]
    text = to_markdown(dataclasses.replace(report, best=tuple(best)))
    assert "another mode: elsewhere, see below" in text and "number 2 with num_warps=99" in text
    assert "\n\nNumber 2: mode=elsewhere " in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.084, "4.08 µs"),
        (408.25, "408.2 µs"),
        (999.9, "999.9 µs"),
        (999.96, "1.000 ms"),
        (53728.4, "53.73 ms"),
        (2803101, "2.803 s"),
    ],
)
def test_microseconds(value: float, text: str) -> None:
    assert microseconds(value) == text


def test_figures() -> None:
    fast, slow = Latency(100.0, 98.0, 102.0, 1.0, 9), Latency(150.0, 150.0, 150.0, 1.0, 9)
    assert latency_text(fast) == "100.0 µs ± 2.0 %"
    assert str(ratio(slow, fast)) == "1.50 ± 0.03 (by spread)"
    assert options_text({"b_order": "nk", "bias": True, "m": 4}) == "--b-order nk --bias --m 4"


def test_configs_are_told_by_what_they_change(report: Report) -> None:
    assert change_text(report.config, report.config) == "the winner"
    assert change_text(report.config.replace(num_warps=99), report.config) == "the winner with num_warps=99"
    assert change_text(report.config.replace(mode="bsp"), report.config).startswith("mode=bsp ")
