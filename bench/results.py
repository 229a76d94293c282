"""Regenerates README's picture and every table of docs/results.md from one list (listed.py), on a host with GPUs.

    make results                                  measures what is missing, and writes the pages
    make results ARGS="--minutes 9"               no step begins that would end later; the same again continues
    make results ARGS="--only rs --only found"    some tables
    make results ARGS=--list                      the tables, and what of them is done
    make results ARGS="--render --world-size 4"   writes the pages from what is there, on any machine

Each step is a process of at most nine minutes, whose result lies in the folder as a JSON file; removing the file is how
to measure again. Tables stand in the pages between markers, and are replaced once all of their steps are done.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from pathlib import Path

from arguments import new_parser, positive, whole
from results_tables import TABLES, Picture, Setting, Stored, Table
from results_text import Unwritten, replaced
from steps import ROOT, Folder, Step, here, run_all, run_to_end

PAGES = ("README.md", "docs/results.md")


class Run:
    """The tables asked for, their steps, and the folder of what was found."""

    def __init__(self, folder: Folder, setting: Setting, tables: list[Table]) -> None:
        self.folder, self.tables = folder, tables
        needed = {name for table in tables for name in (table.name, *table.needs)}
        self._steps: dict[str, list[Step]] = {
            table.name: table.steps(setting) for table in TABLES if table.name in needed
        }

    @property
    def steps(self) -> list[Step]:
        """Steps of the tables asked for and of the tables that those are written from, in the order of the list."""
        return [step for steps in self._steps.values() for step in steps]

    def found(self, name: str) -> list[Stored]:
        return [stored for step in self._steps[name] if (stored := self.folder.found(step)) is not None]

    def done(self, table: Table) -> bool:
        """True if all is there that the table is written from."""
        return all(len(self.found(name)) == len(self._steps[name]) for name in (table.name, *table.needs))

    def write(self, root: Path) -> list[str]:
        """Replace the tables that are done; returns a line for each that is not."""
        left = []
        for table in self.tables:
            page = root / table.page
            if not self.done(table):
                left.append(f"{table.name}: not all measured, left as it is in {table.page}")
                continue
            text = page.read_text()
            try:
                if isinstance(table, Picture):
                    table.draw(self.found, root)
                new = replaced(text, table.name, table.render(self.found))
            except Unwritten as error:
                left.append(f"{table.name}: {table.page}: {error}")
                continue
            if new != text:
                page.write_text(new)
        return left


def copied(folder: Path) -> Path:
    root = folder / "pages"
    for page in PAGES:
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / page, root / page)
    return root


def arguments() -> argparse.Namespace:
    parser = new_parser(__doc__)
    names = [table.name for table in TABLES]
    parser.add_argument("--only", action="append", choices=names, help="some tables, again for more; default: all")
    parser.add_argument("--folder", type=Path, help="results so far; default: results, with --toy results-toy")
    parser.add_argument("--world-size", type=whole, help="ranks; default: as many as there are GPUs")
    parser.add_argument("--minutes", type=positive, default=math.inf, help="no step begins that would end later")
    parser.add_argument("--list", action="store_true", help="the tables, and how many of their steps are done")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the pages from what is there")
    parser.add_argument("--toy", action="store_true", help="tiny problems without a GPU, on a copy of the pages")
    return parser.parse_args()


def main() -> None:
    given, begin = arguments(), time.monotonic()
    place = here()
    gpus = place["machine"]["gpus"]
    if not (gpus > 1 or given.toy or given.render or given.list):
        sys.exit(
            f"make results measures on two GPUs or more, and here is {'one' if gpus else 'none'}. Without them: "
            "--render writes the pages from the results in the folder, --toy tries all of it with tiny problems"
        )
    path = given.folder or Path("results-toy" if given.toy else "results")
    if given.render and given.world_size is None:
        sys.exit("--render needs --world-size, of the machine that measured")
    setting = Setting(given.world_size or (2 if given.toy else max(2, gpus)), given.toy)
    if setting.world_size < 2:
        sys.exit("--world-size 1: the tables are of two ranks and more")
    asked = [table for table in TABLES if given.only is None or table.name in given.only]
    tables = [table for table in asked if table.toy or not given.toy]
    run = Run(Folder(path, {} if given.render else place), setting, tables)
    if given.list:
        for table in tables:
            print(f"{table.name:<20}{table.page:<20}{'done' if run.done(table) else 'to be measured'}")
        return
    undone = [] if given.render else run_all(run.folder, run.steps, begin + 60 * given.minutes)
    root = copied(path) if given.toy else ROOT
    undone += run.write(root)
    print(f"wrote {' and '.join(str(root / page) for page in PAGES)}", file=sys.stderr)
    if undone:
        sys.exit("\n".join([*undone, "not complete; the same command again continues"]))


if __name__ == "__main__":
    run_to_end(main)
