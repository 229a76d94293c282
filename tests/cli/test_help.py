"""The help pages, as a person sees them at 80 columns; ``python tests/cli/test_help.py`` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.results.figures import dashed
from autotune.workloads.user_files import BUILT_IN

FOLDER = Path(__file__).parent / "help"

COMMANDS: dict[str, tuple[str, ...]] = {
    "tune": (),
    **{name: (name,) for commands in app.PANELS.values() for name in commands},
    **{name: (name,) for name in map(dashed, BUILT_IN)},
    **{f"{name}-workload": (name, "all-gather-gemm") for name in app.VERBS},
}
"""Every subcommand; of those that take a workload, the page of one workload too."""


def page(words: tuple[str, ...]) -> str:
    result = CliRunner().invoke(app.build(), [*words, "--help"], prog_name="tune", env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in result.stdout.strip("\n").splitlines()) + "\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_page_changes_only_on_purpose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_WORKLOADS", raising=False)
    assert page(COMMANDS[name]) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_every_subcommand_has_its_page() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(COMMANDS)


if __name__ == "__main__":
    os.environ.pop("AUTOTUNE_WORKLOADS", None)
    for name, words in COMMANDS.items():
        (FOLDER / f"{name}.txt").write_text(page(words), encoding="utf-8")
