"""The command line: thin commands over the tuner, the cache, the lookup and the reports."""

from __future__ import annotations

import os
import sys
import traceback


def main() -> None:
    """Run the command ``tune``; it ends with a line on stderr and an exit code, or with a code alone if none reads."""
    from autotune.cli.interrupts import end_at_once, exit_code, interruptible
    from autotune.processes.memory import advice, shortage

    try:
        with interruptible():
            try:
                _run()
            except KeyboardInterrupt:
                end_at_once()
                sys.stderr.write("interrupted\n")
                sys.exit(exit_code())
            except Exception:  # whatever it is: a traceback tells nobody that memory is short
                short = shortage(traceback.format_exc(), os.getpid())
                if not short:
                    raise
                sys.stderr.write(f"tune: error: {short}; {advice()}\n")
                sys.exit(1)
    finally:
        end_at_once()


def _run() -> None:
    from autotune.cli import output
    from autotune.cli.app import build
    from autotune.cli.interrupts import NOBODY_READS
    from autotune.cli.session import launched
    from autotune.errors import AutotuneError
    from autotune.files import DISK_FAILS

    try:
        output.check_stdout()
        app = build()
        with launched() as runs:
            if runs:
                app()
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        output.give_up(sys.stdout, sys.stderr)  # as Typer and rich do, but they end with 1, as if something had failed
        sys.exit(NOBODY_READS)
    except AutotuneError as error:  # of the start, or of a rank that serves; the app tells its own
        output.complain(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in DISK_FAILS or error.filename is not None:
            raise
        output.complain(AutotuneError(f"stdout cannot be written: {error.strerror}"))
        output.give_up(sys.stdout)
        sys.exit(1)
