"""bench/model_layers.py with toy sizes: all ways run, and their logits and losses are plain's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_clients import PHASES, TINY
from scripts import run_script

BENCH = str(Path(__file__).parents[2] / "bench" / "model_layers.py")
NAMES = [phase.name for phase in PHASES["pytorch"]]


in_both = pytest.mark.parametrize(
    "interpreted",
    [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.gpu(2, each=True))],
)


@in_both
def test_every_phase_runs_in_every_way(interpreted: bool, tmp_path: Path) -> None:
    out, database = tmp_path / "rows.json", f"sqlite:///{tmp_path / 'none.db'}"
    done = run_script(BENCH, "--tiny", "--json", str(out), "--db", database, interpreted=interpreted)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert [row["phase"] for row in found["rows"]] == NAMES
    for row in found["rows"]:
        assert set(row["ratios"]) == ({"styles"} if interpreted else {"styles", "fusing"})
    assert len(found["rows"][-1]["losses"]["styles"]) == TINY.steps
    done = run_script(BENCH, "--tiny", "--json", str(out), "--db", database, interpreted=interpreted)
    assert json.loads(out.read_text()) == found, "rows that were there have been measured again"


@in_both
def test_a_mixture_runs_in_every_way(interpreted: bool, tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.23")
    out, words = tmp_path / "rows.json", ["--client", "mixture", "--tiny", "--db", f"sqlite:///{tmp_path / 'none.db'}"]
    done = run_script(BENCH, *words, "--json", str(out), interpreted=interpreted)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(row["phase"], set(row["ratios"])) for row in rows] == [("prefill", {"styles"}), ("decode", {"styles"})]
    assert all({"plain eager", "gathered eager"} < set(row["us"]) for row in rows)


def test_a_mixture_without_expert_parallelism_is_refused(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()  # an old one, as far as that is asked for
    (tmp_path / "transformers" / "__init__.py").touch()
    words = [BENCH, "--client", "mixture", "--tiny"]
    paths = f"sys.path[:0] = {[str(tmp_path), str(Path(BENCH).parent)]}; sys.argv = {words}"
    done = run_script("-c", f"import runpy, sys; {paths}; runpy.run_path({BENCH!r}, run_name='__main__')")
    assert done.returncode == 2 and "transformers>=" in done.stderr and "Traceback" not in done.stderr
