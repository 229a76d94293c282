from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from autotune.cli import output
from autotune.errors import InputError
from autotune.text import Table

HEADER = ("problem", "latency", "speedup", "mode", "tuned")
ROWS = (
    ("n=1000 out.dtype=torch.float32 x.dtype=torch.float32", "4.769 ms", "", "kernel", "2026-11-22"),
    ("m=16 n=128 k=128 b_order=nk", "666.1 µs", "1.00x bsp eager", "bsp", "unfinished, 2 trials"),
)


def test_a_terminal_of_plain_letters_gets_plain_letters() -> None:
    output.check_stdout()
    assert "2 × 3.1 µs ± 2 % … ü".encode("ascii", output.PLAINLY) == rb"2 x 3.1 us +- 2 % ... \xfc"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_fits_and_breaks_no_word(width: int) -> None:
    lines = output.columns(Table(HEADER, ROWS), width).splitlines()
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert {word for row in ROWS for cell in row for word in cell.split()} <= words


def test_an_unwritable_file_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_file: Path) -> None:
    file = tmp_path / "table.json"
    output.check_file(file)
    with pytest.raises(InputError, match="database"):
        output.check_file(empty_file)
    file.touch()
    output.check_file(file)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != file)
    with pytest.raises(InputError, match="permission"):
        output.check_file(file)


def test_a_log_has_a_line_for_each_message_of_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger, file = logging.getLogger("autotune"), tmp_path / "tune.log"
    before = (list(logger.handlers), logger.level)
    with output.logging_to_stderr():
        output.log(True, file)
        logger.warning("damaged\x07\nrow")
        logger.info("going on")
    assert (logger.handlers, logger.level) == before
    told = [line.split(" ", 2)[2] for line in file.read_text().splitlines()]
    assert told[1:] == ["WARNING damaged\\x07\\nrow", "INFO going on"]
    stderr = capsys.readouterr().err
    assert "tune: warning: damaged\\x07\nrow\n" in stderr and stderr.endswith("tune: going on\n")
