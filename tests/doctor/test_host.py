"""The real host, where it is told what tests say: mounts, variables, programs, files."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.db import Store
from autotune.db.engines.sqlite import APPLICATION_ID
from autotune.doctor import Host, Verdict
from autotune.doctor.checks import storage
from autotune.doctor.host import Mount
from autotune.machine import H100


@pytest.mark.gpu(2)
def test_kernels_push_and_pull_between_every_two_gpus() -> None:
    rates = Host().link_rates()
    assert {(one, other) for one, other, *_ in rates} >= {(0, 1), (1, 0)}
    assert all(1e9 < rate < 2e12 for *_, push, pull in rates for rate in (push, pull))


def test_a_folder_is_of_the_innermost_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, inner = tmp_path.resolve(), tmp_path.resolve() / "a disk"
    inner.mkdir()
    escaped = str(inner).replace(" ", "\\040")
    mounts = f"/dev/a / ext4 rw 0 0\nserver:/x {escaped} nfs4 rw 0 0\n/dev/b {top} xfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda path: {"/proc/mounts": mounts}[str(path)])
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=3, f_bfree=5, f_frsize=4096, f_bsize=8192))
    assert Host().mount(inner / "not made yet") == Mount("nfs4", 3 * 4096)
    assert Host().mount(top).kind == "xfs" and Host().mount(Path("/")).kind == "ext4"


def test_the_variables_that_the_tuner_and_triton_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("clang", "cc", "my-cc"):
        (tmp_path / name).touch(mode=0o755)
    for name, text in {"AUTOTUNE_OFFLINE": "", "AUTOTUNED": "no", "HOME": "/home/me", "PATH": str(tmp_path)}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.delenv("CC", raising=False)
    host = Host()
    assert host.settings() == {"AUTOTUNE_OFFLINE": ""}
    assert host.compiler() == str(tmp_path / "clang") and str(host.kernel_cache()) == "/home/me/.triton/cache"
    monkeypatch.setenv("CC", "my-cc")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/fast")
    assert host.compiler() == str(tmp_path / "my-cc") and host.kernel_cache() == Path("/fast")


def test_a_program_that_fails_hangs_or_is_missing_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    assert host.command("sh", "-c", "echo told") == "told\n"
    assert host.command("sh", "-c", "echo told; exit 1") is None and host.command("no-such-program") is None

    def hang(words: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(words, 120)

    monkeypatch.setattr(subprocess, "run", hang)
    assert host.command("nvidia-smi") is None and host.compile_kernel(H100) == "timed out after 120 s"


def test_files_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("2")
    (tmp_path / "a").write_text("1")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    assert list(Host().read(f"{tmp_path}/*").items()) == [(f"{tmp_path}/a", "1"), (f"{tmp_path}/b", "2")]


def test_the_real_compiler_compiles_or_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))  # what is in there would not be compiled
    host = Host()
    assert host.compile_kernel(H100) == ""
    assert "scale: " in host.compile_kernel(dataclasses.replace(H100, arch="sm_99"))
    assert not (tmp_path / "cache").exists()


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
