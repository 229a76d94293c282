"""The Ray engine on Ray's own cluster of fake nodes, with interpreter ranks and a PostgreSQL server; minutes long."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import postgres_server
import pytest
import ray_night as night

from autotune.db import Store
from autotune.tuning.finals import FINAL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here: pip install 'iris-autotune[fleet]'"),
]

ENTRY = "  - {{workload: gemm-all-reduce, m: {m}, n: 64, k: 64, trials: 1, effort: quick, world_size: {ranks}}}\n"


@pytest.fixture(scope="module")
def nodes() -> Iterator[night.Nodes]:
    """Three nodes of different widths, with token authentication, which Ray reads when it is imported first."""
    night.with_tokens()
    cluster = night.Nodes(night.WIDTHS)
    yield cluster
    cluster.stop()


@pytest.fixture
def url(server: postgres_server.Server) -> Iterator[str]:
    with server.new_database() as found:
        yield found.render_as_string(hide_password=False)


def listed(folder: Path, *ranks: int) -> Path:
    path = folder / "problems.yaml"
    path.write_text("problems:\n" + "".join(ENTRY.format(m=16 + 16 * i, ranks=each) for i, each in enumerate(ranks)))
    return path


def command(file: Path, url: str, nodes: night.Nodes, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "autotune.cli", "fleet", str(file), "--engine", "ray", "--address", nodes.address,
         "--db", url, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_interrupted_it_keeps_its_measurements_and_resumes(nodes: night.Nodes, url: str, tmp_path: Path) -> None:
    file = listed(tmp_path, 2, 1)
    process = command(file, url, nodes)
    run = night.Night(file, url, nodes, print)
    while not run.counts()["running"]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate()
    assert process.returncode == 143, told
    assert "interrupted; measurements are kept" in told and "Traceback" not in told
    counts = run.counts()
    assert (counts["running"], counts["waiting"] + counts["done"]) == (0, 2), "the leases have ended"
    run.run(())
    assert run.counts() == {"done": 2}


def test_whatever_dies_nothing_is_lost_and_nothing_is_done_twice(
    nodes: night.Nodes, url: str, server: postgres_server.Server, tmp_path: Path
) -> None:
    """A worker killed, a node removed and added, the database restarted, the head killed and started again."""
    lines: list[str] = []
    file = listed(tmp_path, 4, 2, 2, 1, 1, 1, 1)
    run = night.Night(file, url, nodes, lines.append)
    run.run(
        (
            (0, night.kill_worker),
            (1, night.replace_node("gpu-02")),
            (3, night.restart_database(server)),
            (4, night.kill_head),
        )
    )
    assert run.starts == 2, lines
    assert any("the head of the Ray cluster is gone" in line for line in lines), lines
    assert run.counts() == {"done": 7}
    with Store.open(url) as store:
        studies = store.studies()
        assert len(studies) == len({(each.key, each.provenance) for each in studies}) == 7
        for study in studies:
            searched = [trial.number for trial in store.trials(study.id) if trial.source != FINAL]
            assert searched and len(searched) == len(set(searched)), "no trial was measured twice"
