from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import Bench
from typer.testing import CliRunner

from autotune.cli import app, main
from autotune.machine import machine

ROOT = Path(__file__).parent.parent.parent


def process(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=900)


def test_help_names_commands_and_workloads_without_loading_torch() -> None:
    code = (
        "import sys; from autotune.cli import main; sys.argv = ['tune', '--help']\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'optuna', 'triton'} & set(sys.modules), 'help is slow'"
    )
    done = process("-c", code)
    assert done.returncode == 0, done.stderr
    for name in ("list", "show", "lookup", "report", "all-gather-gemm"):
        assert name in done.stdout


@pytest.mark.parametrize("verb", [(), ("show",), ("lookup",), ("report",)])
def test_every_verb_has_the_problems_fields_as_options(gpus: Bench, verb: tuple[str, ...]) -> None:
    page = gpus.tune(*verb, "all-gather-gemm", "--help")
    assert page.exit_code == 0
    for option in ("--m ", "--n ", "--k ", "--dtype", "--layout", "--b-order", "--bias", "--no-bias", "--world-size"):
        assert option in page.stdout


def test_no_command_shows_help(gpus: Bench) -> None:
    assert "all-gather-gemm" in gpus.tune().output


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
    settings = {"AUTOTUNE_DB": str(tmp_path / "a cache.db")}
    monkeypatch.setenv("AUTOTUNE_DB", settings["AUTOTUNE_DB"])
    small = ("all-gather-gemm", "--m", "32", "--n", "64", "--k", "64")
    done = CliRunner().invoke(app.build(), [*small, "--trials", "4", "--json"])
    assert done.exit_code == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["device"] == "cpu-interpreter" and values["finished"]
    assert values["outcomes"]["measured"] >= 1
    found = process("-m", "autotune.cli", "lookup", *small, "--json", **settings)
    assert json.loads(found.stdout)["source"] == "exact"
    assert json.loads(found.stdout)["config"] == values["config"]
