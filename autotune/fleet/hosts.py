"""The examination of a host before it gets problems: its kind, its width, and what the doctor finds."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess

from autotune.db.fleet_records import Finding, HostRecord, Kind
from autotune.errors import FleetError
from autotune.processes.bound import start_bound
from autotune.settings import DATABASE, default_database_url
from autotune.text import shortened

SECONDS = 600.0
"""Limit on an examination; it compiles a kernel and writes to the disks."""

INTERPRETED_RANKS = 8
"""Width of a host without GPUs."""

DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def name_here() -> str:
    """This host, and the GPUs that this process is shown of it: those of another command are another row."""
    shown = dict.fromkeys(shortened(value) for name in DEVICE_VARIABLES if (value := os.environ.get(name)))
    return ":".join([socket.gethostname(), *shown])


def examined(name: str, url: str, gpus: int | None = None) -> HostRecord:
    """Examine this host in a process of its own, which leaves no context on its GPUs behind.

    ``gpus`` is the width that a scheduler gives it, which has hidden all GPUs from this process. Raises FleetError.
    """
    environment = {**os.environ, DATABASE.name: url}
    if gpus is not None:
        environment = {key: value for key, value in environment.items() if key not in DEVICE_VARIABLES}
    process = start_bound(__name__, environment=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, told = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise FleetError(f"{name}: its examination did not end within {SECONDS:.0f} s; run tune doctor there") from None
    if process.returncode:
        last = (told.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise FleetError(f"{name} cannot be examined: {last[:300]}; run tune doctor there")
    values = json.loads(out)
    findings = tuple(Finding(**each) for each in values["findings"])
    broken = "; ".join(f"{each.name}: {each.found}" for each in findings if each.verdict == "broken")
    width = values["gpus"] or INTERPRETED_RANKS
    return HostRecord(name, width if gpus is None else min(width, gpus), Kind(**values["kind"]), findings, broken)


def main() -> None:
    """Print this host's examination as JSON; the database is the one that AUTOTUNE_DB names."""
    from autotune.doctor import Host, examine
    from autotune.machine import machine, versions

    findings = [
        dataclasses.asdict(Finding(name, each.verdict.value, each.found, each.mend))
        for name, each in examine(Host(), default_database_url())
    ]
    here = machine()
    kind = Kind(here.device, here.arch, here.interconnect, **versions())
    print(json.dumps({"gpus": here.gpus, "kind": dataclasses.asdict(kind), "findings": findings}))


if __name__ == "__main__":
    main()
