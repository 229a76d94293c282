"""``tune record``: from the values on the command line to a table that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import Bench

from autotune.recordings import read

WORDS = ("record", "all-gather-gemm", "--m", "4096", "--n", "28672", "--k", "8192", "--world-size", "8")
VALUES = (
    "mode=bsp,push; block_m=64,128; block_n=128,256; block_k=64; group_m=8; num_warps=8; num_stages=3,6; loads=tma;"
    "split_k=1; preload_b=false; schedule=tile; transfer_rows=128,256; k_chunks=1; comm_programs=8,16; copy_kib=16;"
    "peer_order=rotate; push_site=same_launch; head_start=0"
)


def test_a_space_is_recorded(gpus: Bench, tmp_path: Path) -> None:
    out = tmp_path / "table.json.gz"
    found = gpus.json(*WORDS, "--values", VALUES, "--out", str(out))
    recording = read(out)
    assert found["configs"] == len(recording.evaluations) > 10
    assert found["outcomes"]["out of resources"] > 0
    assert found["best"]["median"] == pytest.approx(recording.optimum, abs=1e-3)
    assert recording.restriction["loads"] == ["tma"] and recording.dimensions["preload_b"] == (False,)
    assert gpus.gangs[0].closed
    listed = gpus.tune("list")
    assert listed.stdout == "" and "nothing is tuned yet" in listed.stderr, "no command continues it"
    pages = gpus.tune("report", "--all", "-o", str(tmp_path / "pages"))
    assert pages.exit_code == 1 and "no finished study" in pages.stderr


def test_interrupted_it_goes_on(gpus: Bench, tmp_path: Path) -> None:
    out = tmp_path / "table.json.gz"
    words = (*WORDS, "--values", VALUES, "--out", str(out))
    gpus.prepare = lambda gang: setattr(gang, "interrupt_after", 5)
    stopped = gpus.tune(*words)
    assert stopped.exit_code == 130 and "the same command continues" in stopped.stderr and not out.exists()
    gpus.prepare = lambda gang: None
    done = gpus.tune(*words)
    assert done.exit_code == 0 and "search_quality.py" in done.stderr
    assert "recording: 5 of" in done.stderr
    assert len(gpus.gangs[0].calls) + len(gpus.gangs[1].calls) == len(read(out).evaluations)


def test_a_space_of_which_nothing_could_be_measured_is_no_table(gpus: Bench, tmp_path: Path) -> None:
    out = tmp_path / "table.json.gz"
    gpus.prepare = lambda gang: setattr(gang, "broken", True)
    failed = gpus.tune(*WORDS, "--values", VALUES, "--out", str(out))
    told = " ".join(failed.stderr.split())
    assert failed.exit_code == 1 and not out.exists()
    assert "no config could be measured (" in told and "SIGSEGV" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--values", "block_m=64,65"), "65; allowed: 16, 32, 64, 128, 256"),
        (("--values", "tile=64"), "no dimension tile; dimensions: mode"),
        (("--values", "block_m"), "write each dimension once"),
        (("--values", "block_m=64;block_m=128"), "write each dimension once"),
        (("--limit", "100"), "allow fewer"),
        (("--values", "mode=push;block_m=256;block_n=256;num_warps=4"), "every config breaks registers ("),
        (("--out", "/dev"), "file /dev: it is a folder"),
        (("--out", "x" * 300), ": File name too long"),
    ],
)
def test_what_cannot_be_recorded_is_said_before_any_rank_starts(
    gpus: Bench, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    result = gpus.tune(*WORDS, "--out", str(tmp_path / "table.json.gz"), *words)
    assert result.exit_code == 2 and told in result.stderr
    assert not any(gang.started for gang in gpus.gangs)


def test_an_output_without_a_folder_is_refused_first(gpus: Bench, tmp_path: Path) -> None:
    result = gpus.tune(*WORDS, "--values", VALUES, "--out", str(tmp_path / "none" / "table.json.gz"))
    assert result.exit_code == 2 and "does not exist" in result.stderr and not gpus.gangs
