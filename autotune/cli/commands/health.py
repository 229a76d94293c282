"""``tune doctor``: checks of this machine, with the fix for each problem."""

from __future__ import annotations

import typer

from autotune.cli import output
from autotune.cli.options import Database, Json
from autotune.settings import default_database_url


def doctor(db: Database = None, json: Json = False) -> None:
    """Check this machine: GPUs, links, clocks, compilers, disks, database. Exit code 1 if something is broken."""
    from rich.console import Console

    from autotune.doctor import Host, Verdict, examine

    findings, terminal = [], Console(stderr=True)
    for name, finding in examine(Host(), db or default_database_url(), terminal.status):
        findings.append((name, finding))
        if not json:
            mark = "" if finding.verdict is Verdict.FINE else f"{finding.verdict}: "
            output.data(f"{name:<15}{mark}{finding.found}" + (f"\n{'':<15}→ {finding.mend}" if finding.mend else ""))
    broken = sum(finding.verdict is Verdict.BROKEN for _, finding in findings)
    if json:
        values = [
            {"check": name, "verdict": finding.verdict.value, "found": finding.found, "mend": finding.mend}
            for name, finding in findings
        ]
        output.data_json({"fine": not broken, "findings": values})
    else:
        output.say(f"{broken} to fix" if broken else "nothing to fix")
        if not broken:
            output.next_step("tune WORKLOAD", "see tune --help")
    if broken:
        raise typer.Exit(1)
