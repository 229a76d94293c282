"""What a fleet tuned, served: by a reader of the PostgreSQL server, and from a file baked into an image.

The roles are those of docs/fleet.md, made by its own SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import postgres_server
import pytest
from fakes import EIGHT_GPUS, begun, latency_of
from sqlalchemy import URL, create_engine
from typer.testing import CliRunner

import autotune
from autotune.cli import app
from autotune.db import Store, Winner
from autotune.errors import StoreError
from autotune.task import Task
from autotune.workloads import workload

PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"
WORKLOAD = workload("all_gather_gemm")
PROBLEM = autotune.AllGatherGemm(m=4096, n=28672, k=8192, world_size=8)
CONFIG = WORKLOAD.default_config(Task(PROBLEM, EIGHT_GPUS)).replace(group_m=2)


def finish(url: str) -> None:
    with Store.open(url) as store:
        store.finish(begun(store, WORKLOAD, Task(PROBLEM, EIGHT_GPUS)).id, Winner(CONFIG, latency_of(100.0, ranks=8)))


@pytest.fixture
def roles(server: postgres_server.Server) -> Iterator[URL]:
    """A database made by the page's SQL, as an administrator would; its URL has no user."""
    [text] = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    admin, _, inside = text.partition("\\connect autotune\n")
    assert inside
    for database, statements in (("postgres", admin), ("autotune", inside)):
        engine = create_engine(server.url(database), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in filter(None, map(str.strip, statements.split(";"))):
                connection.exec_driver_sql(statement)
        engine.dispose()
    yield server.url("autotune")
    server.run("DROP DATABASE autotune WITH (FORCE)")
    for role in ("autotune_reader", "autotune_tuner"):
        server.run(f"DROP ROLE {role}")


def test_the_roles_of_the_page_tune_and_read(roles: URL, tmp_path: Path) -> None:
    tuner, reader = (str(roles.set(username=f"autotune_{role}")) for role in ("tuner", "reader"))
    finish(tuner)
    found = autotune.lookup("all_gather_gemm", PROBLEM, machine=EIGHT_GPUS, url=reader)
    assert (found.source, found.config) == ("exact", CONFIG)
    problems = tmp_path / "problems.yaml"
    problems.write_text("problems: [{workload: all-gather-gemm, m: 4096, n: 28672, k: 8192, world_size: 8}]")
    result = CliRunner().invoke(app.build(), ["fleet", str(problems), "--status", "--db", reader])
    assert result.exit_code == 0 and result.stdout == "1 problem: 1 done\n"
    with Store.open(reader) as store, pytest.raises(StoreError, match="may not be written by this user"):
        store.forget(1)


def test_a_file_baked_into_an_image_is_served_where_nothing_can_be_written(tmp_path: Path) -> None:
    finish(str(tmp_path / "fleet.db"))
    run, file, baked = CliRunner(), str(tmp_path / "configs.json"), tmp_path / "image" / "tuned.db"
    assert run.invoke(app.build(), ["export", "-o", file, "--db", str(tmp_path / "fleet.db")]).exit_code == 0
    assert run.invoke(app.build(), ["import", file, "--db", str(baked)]).exit_code == 0
    before = {each.name: each.read_bytes() for each in baked.parent.iterdir()}
    baked.chmod(0o444)
    baked.parent.chmod(0o555)
    try:
        found = autotune.lookup("all_gather_gemm", PROBLEM, machine=EIGHT_GPUS, url=str(baked))
    finally:
        baked.parent.chmod(0o755)
    assert (found.source, found.config, found.reason) == ("exact", CONFIG, "")
    assert {each.name: each.read_bytes() for each in baked.parent.iterdir()} == before
