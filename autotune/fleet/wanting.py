"""A file's wishes, as problems for each kind of host that the fleet has; the impossible is refused at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from autotune.db import CacheKey
from autotune.db.fleet_records import HostRecord, Kind, Wanted
from autotune.errors import FleetError, InputError
from autotune.fleet.problem_list import Asked
from autotune.workloads import provenance_of

NAMED = 5
"""Impossible problems that a message names."""


def wanted_by(asked: Sequence[Asked], hosts: Sequence[HostRecord]) -> list[Wanted]:
    """Each problem once for each kind of host that can take it.

    Raises FleetError if no host can be used, InputError that names problems which no host can take.
    """
    usable = [host for host in hosts if host.is_usable]
    if not usable:
        why = "; ".join(f"{host.name}: {host.broken or host.set_aside}" for host in hosts)
        raise FleetError(f"no host can be used{f' ({why})' if why else ''}; see tune fleet status")
    widths: dict[Kind, int] = {}
    for host in usable:
        widths[host.kind] = max(host.gpus, widths.get(host.kind, 0))
    found, impossible = [], []
    for each in asked:
        kinds = [kind for kind in widths if each.device in (None, kind.device)]
        fitting = [kind for kind in kinds if each.problem.world_size <= widths[kind]]
        if not fitting:
            impossible.append(f"{each.workload.name} {each.problem}: {_why(each, kinds, widths)}")
        found += [_wanted(each, kind) for kind in fitting]
    if impossible:
        more = f"\nand {len(impossible) - NAMED} more" if len(impossible) > NAMED else ""
        raise InputError("no host can take these; nothing was started:\n" + "\n".join(impossible[:NAMED]) + more)
    return found


def _why(asked: Asked, kinds: Sequence[Kind], widths: dict[Kind, int]) -> str:
    if not kinds:
        return f"device {asked.device!r}: the fleet has {', '.join(sorted({kind.device for kind in widths}))}"
    return f"the widest host has {max(widths[kind] for kind in kinds)} GPUs"


def _wanted(asked: Asked, kind: Kind) -> Wanted:
    problem = asked.problem
    key = CacheKey(
        asked.workload.name, problem.to_json(), problem.world_size, kind.device, kind.arch, kind.interconnect,
        asked.regime.value,
    )  # fmt: skip
    versions = {name: getattr(kind, name) for name in ("triton", "iris", "torch", "driver")}
    return Wanted(key, dataclasses.replace(provenance_of(asked.workload), **versions), dict(asked.options))
