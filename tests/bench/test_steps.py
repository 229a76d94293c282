"""The steps of a long bench: what is done is kept, what hangs is ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from process_ends import gone
from steps import JSON, Folder, Step, run_all

PLACE = {"machine": {"device": "NVIDIA H200", "gpus": 4}, "versions": {"torch": "2.11.0"}}


def written(folder: Folder, name: str, code: str, seconds: float = 1.0) -> Step:
    """A step that runs these lines, with ``file`` for its result."""
    script = folder.path / f"{name}.py"
    script.write_text(f"import json, pathlib, sys, time\nfile = pathlib.Path(sys.argv[1])\n{code}\n")
    return Step(name, (str(script), JSON), seconds)


def test_steps_are_kept_and_not_run_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path, PLACE)
    count = "n = pathlib.Path(__file__ + '.n'); n.write_text(n.read_text() + '.' if n.exists() else '.')\n"
    good = written(folder, "good", count + "file.write_text(json.dumps([1]))")
    bad = written(folder, "bad", count + "sys.exit('no GPU')")
    assert run_all(folder, [bad, good]) != []
    assert folder.found(bad) is None
    stored = folder.found(good)
    assert stored is not None and stored["found"] == [1] and stored["machine"] == PLACE["machine"]
    assert stored["date"] and stored["seconds"] >= 0
    assert len(run_all(folder, [bad, good])) == 1
    assert (tmp_path / "good.py.n").read_text() == "." and (tmp_path / "bad.py.n").read_text() == ".."
    other = Step(good.name, (*good.words, "--more"))
    assert folder.found(other) is None, "another command"
    moved = Folder(tmp_path, {**PLACE, "machine": {**PLACE["machine"], "gpus": 8}})
    assert moved.found(good) is None, "another machine"


def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    folder = Folder(tmp_path, PLACE)
    child = "import subprocess\np = subprocess.Popen(['sleep', '600'])\n"
    hangs = written(folder, "hangs", child + "pathlib.Path(__file__ + '.pid').write_text(str(p.pid))\ntime.sleep(600)")
    with pytest.raises(Exception, match="not done within"):
        folder.run(hangs, 5.0)
    assert gone(int((tmp_path / "hangs.py.pid").read_text()), within=60.0)
