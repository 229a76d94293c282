"""A fleet as tables that fit into 80 columns: counts and time left, problems under way, failures, hosts."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.cli.watch import clock_text
from autotune.db.fleet_records import HostRecord, Listed, Snapshot, UnderWay
from autotune.fleet.log import short_title
from autotune.text import counted, visible

MOST = 20
"""Rows of a table; the rest is a number."""


def fleet_text(snapshot: Snapshot, most: int = MOST) -> RenderableType:
    parts: list[RenderableType] = [Text(visible(headline(snapshot)), style="bold")]
    rows: list[tuple[str, ...]]
    if snapshot.running:
        rows = [
            (each.host, _with_ranks(each.problem), each.started_at[11:19], each.progress) for each in snapshot.running
        ]
        parts += _table(("host", "problem", "since UTC", "progress"), rows, most)
    if snapshot.unlucky:
        rows = [(_state(each), _with_ranks(each), each.reason) for each in snapshot.unlucky]
        parts += _table(("state", "problem", "reason"), rows, most)
    if snapshot.hosts:
        rows = [(each.name, f"{each.gpus} × {each.kind.device}", _condition(each)) for each in snapshot.hosts]
        parts += _table(("host", "takes", "condition"), rows, most)
    return Group(*parts)


def headline(snapshot: Snapshot) -> str:
    """``60 problems: 41 done, 3 running, 16 wanted; about 0:07:12 left``."""
    counts = dataclasses.asdict(snapshot.counts)
    order = ("done", "running", "stopping", "wanted", "stopped", "failed")
    told = ", ".join(f"{counts[name]} {name}" for name in order if counts[name]) or "none"
    total = snapshot.counts.total
    left = snapshot.seconds_left
    return f"{counted(total, 'problem')}: {told}" + (f"; about {clock_text(left)} left" if left else "")


def fleet_dict(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "counts": dataclasses.asdict(snapshot.counts),
        "seconds_left": snapshot.seconds_left,
        "running": [_running_dict(each) for each in snapshot.running],
        "unlucky": [{**_problem_dict(each), "state": each.state, "reason": each.reason} for each in snapshot.unlucky],
        "hosts": [
            {**dataclasses.asdict(each), "findings": [dataclasses.asdict(finding) for finding in each.findings]}
            for each in snapshot.hosts
        ],
    }


def _running_dict(each: UnderWay) -> dict[str, Any]:
    values = {"host": each.host, "since": each.started_at, "progress": each.progress}
    return {**_problem_dict(each.problem), "state": each.problem.state, **values}


def _problem_dict(each: Listed) -> dict[str, Any]:
    key = dataclasses.asdict(each.wanted.key)
    return {"id": each.id, **key, "problem": json.loads(key["problem"]), "options": dict(each.wanted.options)}


def _with_ranks(each: Listed) -> str:
    return f"{short_title(each)} ×{each.wanted.key.world_size}"


def _state(each: Listed) -> str:
    return "set aside" if each.state == "failed" else "failed once"


def _condition(host: HostRecord) -> str:
    if host.set_aside:
        return f"set aside: {host.set_aside}"
    if host.broken:
        return f"broken: {host.broken}"
    advice = sum(finding.verdict != "fine" for finding in host.findings)
    return f"fine, {advice} could be better" if advice else "fine"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]], most: int) -> list[RenderableType]:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for name in header:
        table.add_column(name, overflow="fold" if name in ("problem", "reason", "condition") else "ellipsis")
    for row in rows[:most]:
        table.add_row(*(Text(visible(text)) for text in row))
    more = [Text(f"and {len(rows) - most} more", style="dim")] if len(rows) > most else []
    return [Text(""), table, *more]
