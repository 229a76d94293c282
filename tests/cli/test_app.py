from __future__ import annotations

import importlib.metadata
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import Bench
from typer.testing import CliRunner

from autotune.cli import app, main
from autotune.machine import machine
from autotune.runtime.lookup import forget_lookups

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("verb", [(), ("show",), ("lookup",), ("report",)])
def test_every_verb_has_the_problems_fields_as_options(gpus: Bench, verb: tuple[str, ...]) -> None:
    page = gpus.tune(*verb, "all-gather-gemm", "--help")
    assert page.exit_code == 0
    for option in ("--m ", "--n ", "--k ", "--dtype", "--layout", "--b-order", "--bias", "--no-bias", "--world-size"):
        assert option in page.stdout


def test_no_command_shows_help(gpus: Bench) -> None:
    assert "all-gather-gemm" in gpus.tune().output


@pytest.mark.parametrize(
    "words",
    [
        ("report",),
        ("report", "all-gather-gemm"),
        ("export",),
        ("export", "--format", "optuna"),
        ("compare", "a.db", "b.db"),
        ("compare", "a.db", "b.db", "--json"),
        ("record", "all-gather-gemm", "--values", "mode=push"),
        ("model", "config.json", "--list"),
    ],
    ids=" ".join,
)
def test_a_file_whose_ending_promises_another_format_is_refused(laptop: Bench, words: tuple[str, ...]) -> None:
    result = laptop.tune(*words, "-o", "x.pdf")
    assert result.exit_code == 2 and re.search(r"x\.pdf: ending \.pdf: allowed: \.\w+", result.stderr), result.stderr
    assert not Path("x.pdf").exists()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("lst",), "list"),
        (("all-gater-gemm",), "all-gather-gemm"),
        (("all_gather_gem", "--m", "16"), "all-gather-gemm"),
        (("show", "flash-decod"), "flash-decode"),
        (("list", "flash-decod"), "flash-decode"),
        (("frobnicate",), None),
    ],
)
def test_a_word_that_is_nearly_known(gpus: Bench, words: tuple[str, ...], meant: str | None) -> None:
    result = gpus.tune(*words)
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(f"; did you mean {meant}?") if meant else "mean" not in result.stderr


def test_a_users_file_that_is_not_there(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.workloads import registry

    registry._from_files.cache_clear()
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", "missing.py")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "tune: error: workload file missing.py: no such file\n"


@pytest.mark.skipif(not machine().is_interpreter, reason="the problem is one for interpreted ranks")
def test_the_real_thing_from_the_command_line_into_the_cache_and_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "a cache.db"))
    small = ("all-gather-gemm", "--m", "32", "--n", "64", "--k", "64")
    done = CliRunner().invoke(app.build(), [*small, "--trials", "2", "--effort", "quick", "--json"])
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["device"] == "cpu-interpreter" and values["finished"]
    assert values["outcomes"]["measured"] >= 1
    forget_lookups()
    found = CliRunner().invoke(app.build(), ["lookup", *small, "--json"])
    assert json.loads(found.stdout)["source"] == "exact"
    assert json.loads(found.stdout)["config"] == values["config"]


def test_what_is_done_can_be_told_and_logged(gpus: Bench, tmp_path: Path) -> None:
    file = tmp_path / "tune.log"
    words = ("all-gather-gemm", "--trials", "8", "--effort", "quick")
    quiet = gpus.tune(*words, "--log-file", str(file))
    assert quiet.exit_code == 0 and "trial 0" not in quiet.stderr
    told = gpus.tune("-v", *words, "--force")
    again = gpus.tune(*words, "--force", "--verbose")
    for stderr in (told.stderr, again.stderr):
        assert re.search(r"^tune: trial 0 \(baseline\): [\d.]+ µs, ", stderr, re.M) and "finals, study" in stderr
    lines = file.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ INFO ", line) for line in lines)
    assert sum("trial" in line for line in lines) >= 8
    assert not logging.getLogger("autotune").isEnabledFor(logging.INFO), "as before"
    failed = gpus.tune("--log-file", str(tmp_path), "list")
    assert failed.exit_code == 2 and "Is a directory" in failed.stderr


def test_a_log_on_a_full_disk_is_said_once_and_costs_nothing_else(gpus: Bench) -> None:
    result = gpus.tune("all-gather-gemm", "--trials", "3", "--effort", "quick", "--log-file", "/dev/full")
    assert result.exit_code == 0 and "winner" in result.stdout, result.output
    assert result.stderr.count("No space left on device; the log is incomplete") == 1
    assert "Traceback" not in result.stderr


def test_a_new_database_is_named_where_the_user_names_it(gpus: Bench, tmp_path: Path) -> None:
    words = ("all-gather-gemm", "--trials", "8", "--effort", "quick", "--db", str(tmp_path / "typo" / "x.db"))
    told = f"made a new database: {tmp_path / 'typo' / 'x.db'}"
    assert told in gpus.tune(*words).stderr
    assert told not in gpus.tune(*words, "--force").stderr


def test_version_and_the_other_names_of_the_command() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts")
    assert {each.name for each in scripts if each.value == "autotune.cli:main"} == {"tune", "iris-autotune"}
    told = f"iris-autotune {importlib.metadata.version('iris-autotune')}\n"
    done = subprocess.run([sys.executable, "-m", "autotune", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "5"), "budget '5': write it like 90s, 5m or 1.5h"),
        (("--effort", "ful"), "effort 'ful': allowed: quick, standard, full; did you mean full?"),
        (("--regime", "pipeline"), "did you mean pipelined?"),
    ],
)
def test_a_value_that_is_nearly_right(gpus: Bench, words: tuple[str, ...], said: str) -> None:
    result = gpus.tune("all-gather-gemm", *words)
    assert result.exit_code == 2 and said in result.stderr and not gpus.gangs
