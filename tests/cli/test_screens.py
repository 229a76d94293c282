"""What the commands print, as a person reads it. Each file replays its own commands, one after the other, with a fake
gang; ``python tests/cli/test_screens.py`` writes their output anew.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fakes import EIGHT_GPUS, LAPTOP, Bench, FakeGang, bench_of
from model_configs import config

from autotune.outcome import HostOverhead

SCREENS = sorted((Path(__file__).parent / "screens").glob("*.txt"))
TOY = Path(__file__).parent / "toy_workload.py"

PROMPT, QUIET = "$ tune ", " > /dev/null"

CHANGING = {
    r"\b[0-9a-f]{16}\b": "HASH",
    r"\b\d{4}-\d\d-\d\d( \d\d:\d\d)?\b": "DATE",
    r"\b(triton|iris|torch|driver)([ |]+)[^\s,|]+": r"\1\2VERSION",
    r"\[\d:\d\d\] .*\n": "",
    r" in \d+ s;": " in TIME;",
    r"\d+:\d\d elapsed(, about \d+:\d\d left)?": "TIME",
    r"(time in evaluations[ |]+).*": r"\1TIMES",
    r"-{3,}": "---",
    r"[ ]{2,}": "  ",
}
"""Texts that differ from one run or machine to the next; widths of columns and ends of lines follow them."""


def screen(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(TOY))
    monkeypatch.chdir(folder)
    bench = bench_of(LAPTOP if file.stem == "interpreted" else EIGHT_GPUS, monkeypatch, folder)
    monkeypatch.setenv("AUTOTUNE_DB", "cache.db")
    monkeypatch.setenv("COLUMNS", "80")
    bench.prepare = with_host if file.stem != "interpreted" else bench.prepare
    lines = file.read_text(encoding="utf-8").splitlines()
    if refused := file.stem == "refusals":
        config(folder, num_attention_heads=16, head_dim=64)
    return "\n".join(_printed(line, bench, folder, refused=refused) for line in lines if line.startswith(PROMPT))


def with_host(gang: FakeGang) -> None:
    gang.host, gang.overhead = lambda config: 40.0, HostOverhead(3.0, 7.0)


def _printed(line: str, bench: Bench, folder: Path, *, refused: bool) -> str:
    result = bench.tune(*shlex.split(line.removeprefix(PROMPT).removesuffix(QUIET)))
    if refused:
        assert result.exit_code in (1, 2) and result.stdout == "" and not bench.gangs, line
        assert isinstance(result.exception, SystemExit), line
    if line.endswith(QUIET):
        return f"{line}\n"
    text = f"{result.stdout}{result.stderr}".replace(str(folder), "FOLDER")
    text = re.sub(r"^- .*(\n  \S.*)+", lambda found: " ".join(found[0].split("\n  ")), text, flags=re.MULTILINE)
    for pattern, instead in CHANGING.items():
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return f"{line}\n{text}" + f"exit code {result.exit_code}\n" * bool(result.exit_code)


@pytest.mark.parametrize("file", SCREENS, ids=lambda file: file.stem)
def test_a_screen_changes_only_on_purpose(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert screen(file, tmp_path, monkeypatch) == file.read_text(encoding="utf-8")


if __name__ == "__main__":
    for file in SCREENS:
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            text = screen(file, Path(folder), patch)
            patch.undo()
            file.write_text(text, encoding="utf-8")
