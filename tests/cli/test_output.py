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


def test_numbers_that_do_not_fit_beside_each_other_keep_their_names() -> None:
    names, row = ["measured", *(f"figure_{number}" for number in range(10))], ["16 tokens", *["1.122 ± 0.004"] * 10]
    lines = output.columns(names, [row], 80, names=True).splitlines()
    assert [line.split()[0] for line in lines] == names and lines[1].endswith("  1.122 ± 0.004")
    assert len(output.columns(names, [row], 200, names=True).splitlines()) == 2
