"""The tables of README and docs/results.md: for each the steps that measure it, and how it is written down."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flash_decode
import scaling
import tables
import winners
from latencies import speedup
from listed import LIST, REPEATED, Sizes, entry, options
from outside import HEADER as OUTSIDE_HEADER
from outside import line as outside_line
from repeatability import AIMS, SEEDS, summed_up
from results_text import Unwritten, block, caption, paragraph, shared_text, sizes_text
from steps import FOLDER, JSON, ROOT, Step

LONG = 400.0
"""Seconds that a step of several sizes may take by estimate."""

BESIDE = 9
"""Seconds that a size takes besides its search: finals, baselines, rivals."""

START = 20
"""Seconds to start the ranks, of the tuner and for the rivals."""


@dataclass(frozen=True)
class Setting:
    """On what the tables are measured."""

    world_size: int
    toy: bool = False
    """Tiny problems under the interpreter, a few trials: does it work at all?"""

    def effort(self, seconds: int) -> list[str]:
        return ["--trials=1", "--effort=quick"] if self.toy else [f"--budget={seconds}s"]


Stored = dict[str, Any]
Results = Callable[[str], list[Stored]]
"""Gets a table's name, returns what its steps found, in order."""


class Table(ABC):
    """One table of a page, between its markers."""

    name: str
    page = "docs/results.md"
    needs: tuple[str, ...] = ()
    """Other tables that it is written from."""
    toy = True
    """True if the interpreter can make one."""

    def steps(self, setting: Setting) -> list[Step]:
        return []

    @abstractmethod
    def render(self, results: Results) -> str:
        """Markdown, from what the steps of it and of those that it needs have found."""


def listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def chunks(values: Sequence[Any], seconds_each: float) -> list[Sequence[Any]]:
    """Split into as few equal parts as possible, each within ``LONG`` seconds."""
    most = max(1, int((LONG - START) // seconds_each))
    count = -(-len(values) // most)
    size = -(-len(values) // count)
    return [values[first : first + size] for first in range(0, len(values), size)]


def rows_of(stored: Sequence[Stored]) -> list[dict[str, Any]]:
    return [row for each in stored for row in each["found"]]


BLOCK = "docs/examples/transformer_block.py"
DRAWING = "docs/examples/transformer_block_picture.py"
OUTSIDE = 8
"""Seconds that a problem takes from outside, in three regimes."""

RIVALS = "torch,paper,served"
"""Not iris.ops, which hangs at some sizes (gemm-all-reduce, m=64, 2 × H100, 2026-11-24): a deadline each time."""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


class Winners(Table):
    """What was found at every size of an entry of the list, beside its baselines, its limit and its rivals."""

    def __init__(self, sizes: Sizes) -> None:
        self.name, self._sizes = sizes.name, sizes

    def steps(self, setting: Setting) -> list[Step]:
        sizes, toy = self._sizes, setting.toy
        (varied,) = sizes.varied
        values = [each[varied] for each in sizes.sizes(toy)]
        found = []
        for number, part in enumerate(chunks(values, sizes.seconds + BESIDE), 1):
            words = ["bench/winners.py", *sizes.command({varied: listed(part), **sizes.shared(toy)})]
            words += [f"--world-size={setting.world_size}", *setting.effort(sizes.seconds)]
            words += ["--no-rivals"] if toy else [f"--rivals={RIVALS}"]
            seconds = START + len(part) * (sizes.seconds + BESIDE)
            found.append(Step(f"{self.name}.{number}", (*words, "--json", JSON), seconds))
        return found

    def render(self, results: Results) -> str:
        stored = results(self.name)
        return block(stored, winners.table(rows_of(stored)))


class Decode(Table):
    """The paper's sweep of flash decode."""

    name = "fd"

    def steps(self, setting: Setting) -> list[Step]:
        sizes, toy = entry(self.name), setting.toy
        lengths = listed(sorted({each["kv_len"] for each in sizes.sizes(toy)}))
        words = ["bench/flash_decode.py", *options(sizes.shared(toy)), f"--kv-len={lengths}"]
        words += [f"--world-size={setting.world_size}", *setting.effort(sizes.seconds), f"--db={FOLDER}/tuned.db"]
        seconds = START + len(lengths.split(",")) * (sizes.seconds + BESIDE)
        return [
            Step(f"{self.name}.{batch}", (*words, f"--batch={batch}", "--json", JSON), seconds)
            for batch in sorted({each["batch"] for each in sizes.sizes(toy)})
        ]

    def render(self, results: Results) -> str:
        stored = results(self.name)
        return block(stored, flash_decode.document(rows_of(stored)))


SCALED = {"ag-rows": {"m": 4096}, "rs": {"m": 4096}, "ar-28672": {"m": 16}, "fd": {"batch": 1}}
"""Entries of the list, each with a size for all."""


class Scaling(Table):
    name = "scaling"

    def steps(self, setting: Setting) -> list[Step]:
        found = []
        for name, size in SCALED.items():
            sizes = entry(name)
            fixed = {**sizes.shared(setting.toy), **(sizes.sizes(True)[0] if setting.toy else size)}
            if divided := name == "fd":
                fixed.pop("kv_len", None)
            words = ["bench/scaling.py", *sizes.command(fixed)]
            words += [f"--divide=kv-len={32 if setting.toy else 524288}"] if divided else []
            words += [*setting.effort(10), "--json", JSON]
            for world in (2**i for i in range(setting.world_size.bit_length())):
                found.append(Step(f"{self.name}-{name}.{world}", (*words, f"--world-sizes={world}"), 120))
        return found

    def render(self, results: Results) -> str:
        stored = results(self.name)
        rows = rows_of(stored)
        workloads = dict.fromkeys(row["workload"] for row in rows)
        parts = {name.replace("_", "-"): [row for row in rows if row["workload"] == name] for name in workloads}
        return block(stored, scaling.table(parts))


class Block(Table):
    name = "block"

    def steps(self, setting: Setting) -> list[Step]:
        size = ["--tiny"] if setting.toy else []
        asked = [BLOCK, *size, "--print-problems", f"--world-size={setting.world_size}", "--budget=8s"]
        printed = subprocess.run(
            [sys.executable, *asked], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ).stdout
        found = []
        for number, line in enumerate(printed.splitlines(), 1):
            words = ["-m", "autotune.cli", *shlex.split(line)[1:]]
            if setting.toy:
                words = [*words[: words.index("--budget")], *setting.effort(8)]
            found.append(Step(f"{self.name}.{number}", tuple(words)))
        words = [*TORCHRUN, f"--nproc-per-node={setting.world_size}", BLOCK, *size, "--json", JSON]
        return [*found, Step(f"{self.name}.times", tuple(words))]

    def render(self, results: Results) -> str:
        stored = results(self.name)
        rows = stored[-1]["found"]["rows"]
        ways = list(rows[0]["us"])
        lines = [
            [row["phase"], str(row["tokens"]), *(f"{row['us'][way]:.0f}" for way in ways), f"**{row['speedup']:.2f}**"]
            for row in rows
        ]
        error = max(row["error"] for row in rows)
        table = tables.table(["phase", "tokens", *(f"{way}, µs" for way in ways), "faster over faster"], lines, "l")
        return block(stored, f"{table}\n\nOutputs differ by {100 * error:.2g} % at most (Frobenius norm).")


class Picture(Table):
    name = "picture"
    page = "README.md"
    needs = ("block",)

    def draw(self, results: Results, root: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "block.json"
            file.write_text(json.dumps(results("block")[-1]["found"]))
            command = [sys.executable, str(ROOT / DRAWING), str(file), str(root / "docs/transformer-block.svg")]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise Unwritten(f"{DRAWING}: {done.stderr.strip().splitlines()[-1]}")

    def render(self, results: Results) -> str:
        what = "time of a layer in decode and prefill, plain torch and our operators, with the ratio above"
        where = f"{caption(results('block'))}; the faster of eager and graph on either side;"
        numbers = "[all numbers](docs/results.md#a-transformer-block)."
        return f"![{what}](docs/transformer-block.svg)\n\n{paragraph(f'{where} {numbers}')}"


class CompileSurvey(Table):
    name = "compile-survey"
    toy = False

    def steps(self, setting: Setting) -> list[Step]:
        return [Step(f"{self.name}.1", ("bench/compile_survey.py", "--sample=2"))]

    def render(self, results: Results) -> str:
        stored = results(self.name)
        return block(stored, stored[0]["found"].strip())


class Outside(Table):
    name = "outside"
    needs = tuple(sizes.name for sizes in LIST)

    def steps(self, setting: Setting) -> list[Step]:
        run = [*TORCHRUN, f"--nproc-per-node={setting.world_size}", "bench/outside.py"]
        run += ["--toy"] if setting.toy else []
        counts = {sizes.name: len(sizes.sizes(setting.toy)) for sizes in LIST}
        found = []
        for number, names in enumerate(chunks(list(counts), OUTSIDE * max(counts.values())), 1):
            words = [f"--only={name}" for name in names]
            seconds = START + OUTSIDE * sum(counts[name] for name in names)
            found.append(Step(f"{self.name}.{number}", (*run, *words, "--json", JSON), seconds))
        return found

    def render(self, results: Results) -> str:
        stored = results(self.name)
        rows = [row for each in stored for row in each["found"]["rows"]]
        flagged = sum(bool(row["flags"]) for row in rows)
        table = "\n".join([OUTSIDE_HEADER, *map(outside_line, rows)])
        return block(stored, f"{table}\n\n{len(rows)} rows, {flagged} flagged.")


class Repeatability(Table):
    name = "repeatability"

    def steps(self, setting: Setting) -> list[Step]:
        found = []
        for seconds in (12,) if setting.toy else sorted(AIMS):
            for sizes in REPEATED[: 1 if setting.toy else None]:
                words = ["bench/repeatability.py", f"--only={sizes.name}", f"--seconds={seconds}"]
                words += [f"--world-size={min(2, setting.world_size)}", f"--folder={FOLDER}/repeatability"]
                words += ["--toy", "--seeds=2"] if setting.toy else [f"--seeds={SEEDS}"]
                found.append(Step(f"{self.name}.{sizes.name}-{seconds}s", (*words, "--json", JSON), 480))
        return found

    def render(self, results: Results) -> str:
        stored = results(self.name)
        summaries = [summary for each in stored for summary in each["found"]]
        return block(stored, "\n\n".join(map(summed_up, summaries)))


class Short(Table):
    name = "found"
    needs = tuple(sizes.name for sizes in LIST)

    def render(self, results: Results) -> str:
        lines = []
        for sizes in LIST:
            rows = [row for row in rows_of(results(sizes.name)) if row["latency"]]
            found = [speedup(row)["value"] for row in rows]
            workload = f"`{sizes.workload.replace('_', '-')}`, {sizes.title}"
            numbers = (statistics.geometric_mean(found), min(found), max(found))
            lines.append([workload, problems_text(rows), *(f"{number:.2f}" for number in numbers)])
        table = tables.table(["workload", "problems", "faster", "least", "most"], lines, "ll")
        lead = caption([each for sizes in LIST for each in results(sizes.name)])
        return f"{paragraph(f'{lead}:')}\n\n{table}"


def problems_text(rows: Sequence[dict[str, Any]]) -> str:
    """The problems of a line of that table: what they share, and what they differ in."""
    first = rows[0]["problem"]
    words = {"m": "M =", "batch": "batch", "kv_len": "KV per GPU", "tokens": "tokens per rank"}
    several = [f"{word} {sizes_text(sorted({row['problem'][name] for row in rows}))}"
               for name, word in words.items() if name in first]  # fmt: skip
    return ", ".join([shared_text(first), *several])


TABLES: tuple[Table, ...] = (
    *(Winners(sizes) for sizes in LIST if sizes.name != "fd"),
    Decode(),
    Scaling(),
    Block(),
    Picture(),
    Outside(),
    Repeatability(),
    CompileSurvey(),
    Short(),
)
