"""The transformer block: both ways agree, its problems can be tuned as it prints them, a wrong result is loud."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import fakes
import pytest
from fakes import LAPTOP, bench_of
from scripts import run_on_gpus, run_script

from autotune.db import Store

EXAMPLE = Path(__file__).parents[2] / "docs/examples/transformer_block.py"
PICTURE = EXAMPLE.with_name("transformer_block_picture.py")


def test_the_ways_agree_on_the_problems_that_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "BASELINE", 5000.0)  # else the library's way would win, and both ways be the same
    bench = bench_of(LAPTOP, monkeypatch, tmp_path)
    printed = run_script(str(EXAMPLE), "--tiny", "--print-problems", "--world-size", "2").stdout.splitlines()
    assert len(printed) == 5
    for line in printed:
        _, *words = shlex.split(line)
        done = bench.tune(*words, "--trials", "1", "--effort", "quick")
        assert done.exit_code == 0, done.output
    with Store.open() as store:
        assert len(store.entries()) == 2 * 2 + 3, "two batches and two depths; one prompt and three GEMMs"

    done = run_script(str(EXAMPLE), "--tiny", "--json", str(tmp_path / "rows.json"), ranks=2)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["phase"], row["tokens"]) for row in rows] == [("decode", 1), ("decode", 3), ("prefill", 8)]
    for row in rows:
        assert row["configs"] == "exact" and 0 < row["error"] < 2e-2
        assert set(row["us"]) == {"plain eager", "ours eager"}
        assert row["speedup"] == pytest.approx(row["us"]["plain eager"] / row["us"]["ours eager"])
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows) and "faster over faster" in table[0]

    pytest.importorskip("matplotlib")
    drawn = run_script(str(PICTURE), str(tmp_path / "rows.json"), str(tmp_path / "rows.svg"))
    assert drawn.returncode == 0, drawn.stderr
    picture = (tmp_path / "rows.svg").read_text()
    assert all(f"<!-- {row['speedup']:.2f}× -->" in picture for row in rows)


def test_a_wrong_result_is_loud(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r})\n"
        "import transformer_block as example\n"
        "right = example.Plain()\n"
        "example.Ours.all_reduced = lambda self, a, b: 1.1 * right.all_reduced(a, b)\n"
        "example.main()\n"
    )
    done = run_script(str(script), "--tiny", ranks=2)
    assert done.returncode != 0
    assert "decode, 1 tokens: outputs differ by" in done.stderr and "allowed is 2e-02" in done.stderr


def test_a_whole_layer_is_too_much_for_the_interpreter() -> None:
    done = run_script(str(EXAMPLE), ranks=2)
    assert done.returncode != 0 and "the interpreter would take days: give --tiny" in done.stderr


@pytest.mark.gpu(2, each=True)
def test_the_ways_agree_on_gpus(tmp_path: Path) -> None:
    done = run_on_gpus(str(EXAMPLE), "--layers", "1", "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert set(rows[0]["us"]) == {"plain eager", "ours eager", "plain graph", "ours graph"}
