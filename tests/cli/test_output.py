from __future__ import annotations

import pytest

from autotune.cli import output

HEADER = ("problem", "latency", "speedup", "mode", "tuned")
ROWS = (
    ("n=1000 out.dtype=torch.float32 x.dtype=torch.float32", "4.769 ms", "", "kernel", "2026-11-22"),
    ("m=16 n=128 k=128 b_order=nk", "666.1 µs", "1.00x bsp eager", "bsp", "unfinished, 2 trials"),
)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_fits_and_breaks_no_word(width: int) -> None:
    lines = output.columns(HEADER, ROWS, width).splitlines()
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {word for row in ROWS for cell in row for word in cell.split()} <= words


def test_a_wide_table_has_one_line_for_a_row() -> None:
    header, *rows = output.columns(HEADER, ROWS, 200).splitlines()
    assert header.split() == list(HEADER) and len(rows) == len(ROWS)
