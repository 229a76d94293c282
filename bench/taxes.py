"""The taxes of the four workloads at small, middle and large sizes, a line each.

    python bench/taxes.py --folder taxes-h200                 every problem on all GPUs of this machine
    python bench/taxes.py --folder taxes-h200 --only flash    problems whose name begins so

Each problem is tuned for some seconds, unless the folder's database has it, and then measured, both with the ``tune``
command. Without GPUs the problems are toys.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tables
from arguments import new_parser, whole
from listed import DOWN, HEADS, UP, options
from winners import told

from autotune.machine import machine

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

HEAD = ["problem", "E0", *STEPS, "L", "launch tax", "synchrony tax", "locality tax", "late: B, D"]


def problems(ranks: int, toy: bool) -> dict[str, list[str]]:
    """The words of each for ``tune``, by a name that has the sizes that vary: ``all-gather-gemm-m4096``."""
    found = {}
    for workload, several in (TOYS if toy else PROBLEMS).items():
        for fields in several:
            varied = "-".join(f"{name[0]}{fields[name]}" for name in ("m", "batch", "kv_len") if name in fields)
            found[f"{workload}-{varied}"] = [workload, *options({**fields, "world_size": ranks})]
    return found


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


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("taxes"), help="the database, and traces")
    parser.add_argument("--world-size", type=whole, help="ranks; default: all GPUs, two without GPUs")
    parser.add_argument("--budget", default="20s", help="time to tune each problem")
    parser.add_argument("--rounds", type=whole, help="rounds of the taxes; default: as many as the command makes")
    parser.add_argument("--only", action="append", metavar="NAME", help="problems whose name begins so; again for more")
    given, here = parser.parse_args(), machine()
    every = problems(given.world_size or here.gpus or 2, here.is_interpreter)
    chosen = {name: words for name, words in every.items() if name.startswith(tuple(given.only or [""]))}
    if not chosen:
        parser.error(f"--only {', '.join(given.only)}: no problem's name begins so; there are {', '.join(every)}")
    search = ["--trials=6"] if here.is_interpreter else [f"--budget={given.budget}"]
    rounds = [f"--rounds={given.rounds}"] if given.rounds else []
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ["AUTOTUNE_DB"] = str(given.folder / "tuned.db")
    print(tables.head(HEAD, "l"))
    for name, words in chosen.items():
        told([*words, *search])
        taxes = told(["taxes", *words, f"--trace={given.folder / name}.trace.json", *rounds])
        print(tables.row(row(name, taxes)), flush=True)


if __name__ == "__main__":
    main()
