"""The command line: thin commands over the tuner, the cache, the lookup and the reports."""

from __future__ import annotations

import errno
import sys


def main() -> None:
    """Run the command ``tune``; it always ends with a line on stderr and an exit code."""
    from autotune.cli.interrupts import exit_code, interruptible

    with interruptible():
        try:
            _run()
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            sys.exit(exit_code())


def _run() -> None:
    from autotune.cli import output
    from autotune.cli.app import build
    from autotune.errors import AutotuneError

    try:
        output.check_stdout()
        app = build()
    except AutotuneError as error:
        output.complain(error)
        sys.exit(error.exit_code)
    try:
        app()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            raise
        output.give_stdout_up(error)
        sys.exit(1)
