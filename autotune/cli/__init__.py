"""The command line: thin commands over the tuner, the cache, the lookup and the reports."""

from __future__ import annotations

import sys


def main() -> None:
    """The command ``tune``."""
    from autotune.cli import output
    from autotune.cli.app import build
    from autotune.errors import AutotuneError

    try:
        app = build()
    except AutotuneError as error:
        output.complain(error)
        sys.exit(error.exit_code)
    app()
