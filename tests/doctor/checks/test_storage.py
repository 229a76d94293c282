from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fake_host import GIB, FakeHost

from autotune.db import Store
from autotune.db.engines import Condition
from autotune.db.engines.sqlite import APPLICATION_ID
from autotune.doctor import Finding, Host, Verdict
from autotune.doctor.checks import storage
from autotune.doctor.host import Mount
from autotune.errors import NoDatabase, StoreError

URL = "sqlite:////data/cache.db"

MIB = 1 << 20


@pytest.mark.parametrize(("free", "verdict"), [(63 * MIB, Verdict.BROKEN), (64 * MIB, Verdict.ADVICE)])
def test_a_small_dev_shm(laptop: FakeHost, free: int, verdict: Verdict) -> None:
    laptop.mounts["/dev/shm"] = Mount("tmpfs", free)
    finding = storage.shm(laptop)
    assert finding.verdict is verdict and "--ipc=host" in finding.mend and f"{free // MIB} MiB free" in finding.found


def test_no_dev_shm(laptop: FakeHost) -> None:
    del laptop.files["/dev/shm"]
    assert storage.shm(laptop).verdict is Verdict.ADVICE


@pytest.mark.parametrize(("free", "verdict"), [(49 * MIB, Verdict.BROKEN), (GIB - 1, Verdict.ADVICE)])
def test_a_disk_that_is_nearly_full(laptop: FakeHost, free: int, verdict: Verdict) -> None:
    laptop.mounts = {"/data": Mount("ext4", free), "/cache": Mount("ext4", free)}
    for finding in (storage.database_disk(laptop, URL), storage.kernel_cache(laptop)):
        assert finding.verdict is verdict and "free some space" in finding.mend


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "cifs"])
def test_a_database_on_a_networks_file_system(laptop: FakeHost, kind: str) -> None:
    laptop.mounts["/data"] = Mount(kind, 100 * GIB)
    finding = storage.database_disk(laptop, URL)
    assert finding.verdict is Verdict.BROKEN and kind in finding.found and "AUTOTUNE_DB" in finding.mend


def test_a_slow_disk(laptop: FakeHost) -> None:
    laptop.speed = 5 * MIB
    finding = storage.database_disk(laptop, URL)
    assert finding.verdict is Verdict.ADVICE and "5 MiB/s" in finding.found


def test_a_folder_that_cannot_be_written(laptop: FakeHost) -> None:
    laptop.speed = PermissionError(13, "Permission denied")
    finding = storage.database_disk(laptop, URL)
    assert finding.verdict is Verdict.BROKEN and "Permission denied" in finding.found


def test_a_servers_disk_is_the_servers(laptop: FakeHost) -> None:
    laptop.mounts["/data"] = Mount("nfs", 0)
    assert storage.database_disk(laptop, "postgresql://host/data").verdict is Verdict.FINE


def test_a_database_that_is_not_there_yet_is_fine(laptop: FakeHost) -> None:
    laptop.found = NoDatabase("there is no database at x yet")
    assert storage.database(laptop, URL) == Finding("there is no database at x yet")


def test_a_database_of_no_use(laptop: FakeHost) -> None:
    laptop.found = StoreError("database x is damaged; restore a copy")
    finding = storage.database(laptop, URL)
    assert finding.verdict is Verdict.BROKEN and finding.found == str(laptop.found) and "AUTOTUNE_DB" in finding.mend


def test_a_database_that_cannot_be_written(laptop: FakeHost) -> None:
    assert isinstance(laptop.found, Condition)
    laptop.found = dataclasses.replace(laptop.found, writable=False)
    finding = storage.database(laptop, URL)
    assert finding.verdict is Verdict.ADVICE


def test_the_real_database_is_looked_at_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "cache.db"
    assert storage.database(Host(), str(path)).verdict is Verdict.FINE and not path.exists()
    Store.open(path).close()
    assert ", 0 trials" in storage.database(Host(), str(path)).found
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    before = old.read_bytes()
    assert ", no tables yet" in storage.database(Host(), str(old)).found
    assert old.read_bytes() == before
    old.write_bytes(b"somebody's notes\n" * 100)
    assert "is not a SQLite database" in storage.database(Host(), str(old)).found


def test_the_real_disk_is_measured(tmp_path: Path) -> None:
    mount = Host().mount(tmp_path / "not" / "made" / "yet")
    assert mount.kind != "unknown" and mount.free > 0
    assert Host().write_speed(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
