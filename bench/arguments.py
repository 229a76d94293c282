"""Values on the measurements' command lines."""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune.cli.output import check_file
from autotune.errors import InputError


def output_file(text: str) -> Path:
    """A ``type`` of argparse: refused before anything is measured if it could not be written afterwards."""
    file = Path(text)
    try:
        check_file(file)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return file
