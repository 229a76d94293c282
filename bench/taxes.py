"""The taxes of the four workloads at small, middle and large sizes, step by step: run again, it goes on where it was.

    python bench/taxes.py --folder taxes-h200                 every problem on all GPUs of this machine
    python bench/taxes.py --folder taxes-h200 --only flash    problems whose name begins so

Each problem is tuned for some seconds and then measured, both with the ``tune`` command. Without GPUs the problems are
toys.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from arguments import whole
from listed import DOWN, HEADS, UP
from steps import FOLDER, Folder, Step, here, new_step_parser, run_and_print, run_to_end
from tables import table

PROBLEMS: dict[str, tuple[dict[str, Any], ...]] = {
    "all-gather-gemm": tuple({"m": m, **UP} for m in (16, 64, 256, 1024, 4096)),
    "gemm-reduce-scatter": tuple({"m": m, **DOWN} for m in (64, 512, 4096)),
    "gemm-all-reduce": tuple({"m": m, **DOWN} for m in (1, 64, 128, 512, 2048)),
    "flash-decode": tuple({"batch": b, "kv_len": kv, **HEADS} for b, kv in ((1, 8192), (1, 65536), (8, 65536))),
}

TOYS: dict[str, tuple[dict[str, Any], ...]] = {
    "all-gather-gemm": ({"m": 32, "n": 64, "k": 64},),
    "gemm-reduce-scatter": ({"m": 32, "n": 32, "k": 128},),
    "gemm-all-reduce": ({"m": 16, "n": 64, "k": 128},),
    "flash-decode": ({"batch": 1, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "kv_len": 32, "dtype": "fp16"},),
}

STEPS = ("host", "gaps", "library", "boundary", "synchrony", "locality", "other knobs", "fusion")


@dataclass(frozen=True)
class Options:
    world_size: int
    toy: bool
    budget: str = "20s"
    rounds: int | None = None
    only: tuple[str, ...] = ("",)

    def problems(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for workload, several in (TOYS if self.toy else PROBLEMS).items():
            for fields in several:
                if name_of(workload, fields).startswith(self.only):
                    yield workload, {**fields, "world_size": self.world_size}


def name_of(workload: str, fields: dict[str, Any]) -> str:
    """``all-gather-gemm-m4096``: by the fields that vary."""
    varied = "-".join(f"{name[0]}{fields[name]}" for name in ("m", "batch", "kv_len") if name in fields)
    return f"{workload}-{varied}"


def steps(options: Options) -> list[Step]:
    found = []
    for workload, fields in options.problems():
        words = tuple(word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", str(value)))
        search = ("--trials", "6") if options.toy else ("--budget", options.budget)
        name = name_of(workload, fields)
        measured = ("--trace", f"{FOLDER}/{name}.trace.json", "--json")
        if options.rounds:
            measured += ("--rounds", str(options.rounds))
        found += [
            Step(f"{name}-tuned", ("-m", "autotune.cli", workload, *words, *search, "--json"), 240.0),
            Step(f"{name}-taxes", ("-m", "autotune.cli", "taxes", workload, *words, *measured), 180.0),
        ]
    return found


def tables(folder: Folder, options: Options) -> str:
    measured = [step for step in steps(options) if step.name.endswith("-taxes")]
    found = {step.name.removesuffix("-taxes"): folder.found(step) for step in measured}
    rows = [row(name, json.loads(stored["found"])) for name, stored in found.items() if stored is not None]
    head = ["problem", "E0", *STEPS, "L", "launch tax", "synchrony tax", "locality tax", "late: B, D"]
    return table(head, rows, "l") + "\n"


def row(name: str, found: dict[str, Any]) -> list[str]:
    """A problem's cells; a step that several causes share stands under the first of them, named."""
    heights = {}
    for step in found["steps"]:
        first, *others = step["causes"]
        heights[first] = figure(step) + (f" (with {', '.join(others)})" if others else "")
    whole = found["rungs"]
    taxes = ["–" if each is None else figure(each) for each in found["taxes"].values()]
    late = ", ".join(
        f"{found['late_slopes'][letter]['microseconds']:.2f}" for letter in "BD" if letter in found["late_slopes"]
    )
    top, bottom = (figure(whole[letter]) if letter in whole else "–" for letter in ("E0", "L"))
    return [name, top, *(heights.get(each, "–") for each in STEPS), bottom, *taxes, late]


def figure(of: dict[str, Any]) -> str:
    error = (of["high"] - of["low"]) / 2
    return f"{'≈ 0' if of['nil'] else format(of['microseconds'], '.2f')} ± {error:.2f}"


def main(words: Sequence[str] | None = None) -> int:
    parser = new_step_parser(__doc__, "taxes", "problem", "20s")
    parser.add_argument("--rounds", type=whole, help="rounds of the taxes; default: as many as the command makes")
    given = parser.parse_args(words)
    place = here()
    toy = place["machine"]["kind"] == "interpreter"
    options = Options(
        given.world_size or place["machine"]["gpus"] or 2, toy, given.budget, given.rounds, tuple(given.only or ("",))
    )
    if not steps(options):
        names = ", ".join(name_of(*each) for each in dataclasses.replace(options, only=("",)).problems())
        parser.error(f"--only {', '.join(given.only)}: no problem's name begins so; there are {names}")
    folder = Folder(given.folder, place)
    return run_and_print(given, folder, steps(options), lambda: tables(folder, options))


if __name__ == "__main__":
    run_to_end(lambda: sys.exit(main()))
