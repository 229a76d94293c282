"""Failing writes: a full disk, a limit on a file's size, a database at its limit. Stored data is kept."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sample import KEY, PROVENANCE, TRIAL
from sqlalchemy import event

import autotune.db
from autotune.db import Store
from autotune.errors import StoreError

FILLER = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "filler.py")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(autotune.db.__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}

FULL = "disk is full"


def on_a_small_disk(folder: Path, kibibytes: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a name space of its own, in which the folder is a file system of that size."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here, to mount a small file system with")
    mount = f'mount -t tmpfs -o size={kibibytes}k none "$0" || exit 77; exec "$@"'
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(folder), *command],
        capture_output=True, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    return done


def test_a_full_disk_keeps_what_was_there_and_goes_on_once_there_is_space(tmp_path: Path) -> None:
    ballast = 'head -c 65536 /dev/zero > "$0/ballast"; exec "$@"'
    done = on_a_small_disk(tmp_path, 600, "sh", "-c", ballast, str(tmp_path), *FILLER, str(tmp_path / "cache.db"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert FULL in told["said"]
    assert told["taken"] > 10
    assert told["kept"] == told["taken"]
    assert told["in the end"] == told["taken"] + 1


def test_a_disk_too_full_for_a_new_database_is_said_and_left_without_one(tmp_path: Path) -> None:
    check = f'"$@"; ls -A {tmp_path}'
    done = on_a_small_disk(tmp_path, 16, "sh", "-c", check, "sh", *FILLER, str(tmp_path / "cache.db"))
    assert FULL in done.stderr.splitlines()[-1]
    assert done.stdout.split() == ["cache.db.lock"]


def test_a_limit_on_the_size_of_files_is_said_and_keeps_what_was_there(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    command = [*FILLER, str(tmp_path / "cache.db")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, preexec_fn=limited)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "file size limit" in told["said"]
    assert told["taken"] > 10 and told["kept"] == told["taken"]
    with Store.open(tmp_path / "cache.db", create=False) as store:
        assert len(store.trials(1)) == told["taken"]


def test_a_database_at_its_largest_size_takes_nothing_by_halves(path: Path, sqlite_store: Store) -> None:
    study = sqlite_store.study(KEY, PROVENANCE, seed=1, space_size=1)

    def limit(connection: Any, *_: object) -> None:
        connection.execute("PRAGMA max_page_count = 20")

    event.listen(sqlite_store._database.engine, "checkout", limit)
    recorded = 0
    with pytest.raises(StoreError, match=FULL):
        while recorded < 10_000:
            sqlite_store.record(study.id, TRIAL)
            recorded += 1
    assert 0 < recorded == len(sqlite_store.trials(study.id))
