"""Values on the measurements' command lines."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from autotune.cli.output import check_file
from autotune.errors import InputError
from autotune.machine import machine


def new_parser(about: str | None, *, allow_abbrev: bool = True) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=allow_abbrev
    )


def output_file(text: str) -> Path:
    """A ``type`` of argparse: refused before anything is measured if it could not be written afterwards."""
    file = Path(text)
    try:
        check_file(file)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return file


def whole(text: str) -> int:
    """A whole number from 1 on, such as a number of ranks."""
    if not text.isdecimal() or not 1 <= int(text[:19]) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 on is needed")
    return int(text)


def wholes(text: str) -> list[int]:
    return [whole(word) for word in text.split(",")]


def positive(text: str) -> float:
    """A time above 0, of any unit; ``nan`` would never be over."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a number above 0 is needed")
    return value


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    names = list(known)

    def read(text: str) -> list[str]:
        if unknown := [word for word in text.split(",") if word not in names]:
            raise argparse.ArgumentTypeError(f"{', '.join(map(repr, unknown))}: there are {', '.join(names)}")
        return text.split(",")

    return read


def need_gpu(parser: argparse.ArgumentParser, of: str = "", instead: str = "") -> None:
    """End the program with a line where there is no GPU. ``of`` names the option that needs it, ``instead`` what does
    not.
    """
    if machine().is_interpreter:
        parser.error(f"{of}{': ' if of else ''}needs a GPU, and torch finds none here{instead}")


def demand_gpus(parser: argparse.ArgumentParser, toy: bool) -> None:
    """End the program where there is no GPU; start it anew under the interpreter for ``toy`` problems."""
    if torch.cuda.is_available():
        return
    if not toy:
        parser.error("no GPU found; --toy runs tiny problems under Triton's interpreter")
    if os.environ.get("TRITON_INTERPRET") != "1":  # Triton reads it when it is imported, which torch has done
        os.environ["TRITON_INTERPRET"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
