"""Calls of a serving stack's own layers, vLLM's or SGLang's: our operator where it is tuned and faster, else their way.

Both have coordinators of groups: ``device_group``, ``cpu_group``, ``unique_name``, ``rank_in_group``, ``world_size``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from autotune.agreement import Agreement
from autotune.compiled.decisions import OPERATORS, Table, Tuned
from autotune.compiled.graphs import NoMatch
from autotune.errors import AutotuneError, HeapExhausted
from autotune.kernels.launching.streams import capturing
from autotune.machine import machine
from autotune.outcome import DEFAULT_REGIME, regime_of
from autotune.problem import Problem
from autotune.runtime import operators, symm_mem
from autotune.runtime.context import Context
from autotune.runtime.entries import read_entries
from autotune.runtime.symm_mem.installed import lying_well
from autotune.settings import default_database_url
from autotune.workloads import workload
from autotune.workloads.launched import LaunchedWorkload

Operands = Mapping[str, torch.Tensor | None]

CALLS: Counter[str] = Counter()
"""By operator: how many calls ran our kernel in this process, and how many the stack's own way (``NAME declined``)."""

NOTHING = "nothing is tuned for {} ranks in {}; see `tune model --help`"

_TABLES: dict[str, Table | None] = {}
_CONTEXTS: dict[tuple[object, ...], Context | None] = {}
"""The context of a form of call that runs our kernel; None of the others."""


def ours(name: str, group: Any, operands: Operands, log: logging.Logger, **options: Any) -> Any:
    """Run a call among a coordinator's ranks by our kernel. Returns its result; None where the stack's way is as fast.

    All ranks decide alike, by shapes, types and the order of weights. Collective at the first call of a form.
    """
    forms = (x if x is None else (x.shape, x.dtype, x.stride() if each == "b" else ()) for each, x in operands.items())
    form = (name, group.unique_name, *options.values(), *forms)
    if form not in _CONTEXTS and not _captured(operands):
        _CONTEXTS[form] = _decided(name, group, _lying_well(operands), log, options)
    result = None if _CONTEXTS.get(form) is None else _called(name, form, operands, log, options)
    CALLS[name if result is not None else f"{name} declined"] += 1
    return result


def turned(weight: torch.Tensor) -> torch.Tensor:
    """A layer's weight [n, k] as our b [k, n]. A plain tensor: the stacks' parameters cost 4 µs a function."""
    with torch._C.DisableTorchFunctionSubclass():
        return weight.t()


def _called(
    name: str, form: tuple[object, ...], operands: Operands, log: logging.Logger, options: dict[str, Any]
) -> Any:
    """Our kernel's result; None, as for all later calls, where the heap has no room for it."""
    try:
        return getattr(operators, name)(_CONTEXTS[form], **_lying_well(operands), **options)
    except HeapExhausted as error:  # by a first call, on every rank
        log.warning("iris-autotune: %s left: %s", name, error)
        _CONTEXTS[form] = None
        return None


def _lying_well(operands: Operands) -> Operands:
    """As our kernels take them: one may lie badly on one rank alone. Weights lie alike on all, in either order."""
    return {name: x if x is None else lying_well(x if name == "b" else x.contiguous()) for name, x in operands.items()}


def _captured(operands: Operands) -> bool:
    """True within a CUDA graph, where a first call of ours cannot be made: the stack has not warmed this size up."""
    return any(capturing(x.device) for x in operands.values() if x is not None)


def _decided(name: str, group: Any, operands: Operands, log: logging.Logger, options: dict[str, Any]) -> Context | None:
    table = joined(group, log)
    if table is None:
        return None
    try:
        problem = problem_of(table, name, operands, options)
        gain, reason = table.gain(problem)
        told = f"{problem}: {reason}"
    except NoMatch as error:
        gain, told = 0.0, str(error)
    if group.rank_in_group == 0:
        log.debug("iris-autotune: %s %s: %s", name, "taken" if gain > 0 else "left", told)
    return table.context if gain > 0 else None


def joined(group: Any, log: logging.Logger) -> Table | None:
    """The tuned entries for a coordinator's ranks; None where nothing is tuned for them or ours cannot run.

    Collective the first time: the first rank reads the database, and all open their context.
    """
    if group.unique_name not in _TABLES:
        _TABLES[group.unique_name] = _join(group, log)
    return _TABLES[group.unique_name]


def known(group: Any) -> Table | None:
    """The same, if it has been asked for before: not collective."""
    return _TABLES.get(group.unique_name)


def _join(group: Any, log: logging.Logger) -> Table | None:
    found = None
    try:
        told = Agreement(group.cpu_group).broadcast(lambda: _missing(group.world_size))
        if not told:
            with _plain_torch():
                found = Table(symm_mem.context_of(group.device_group))
            told = f"decides by {_told(found)}"
    except AutotuneError as error:  # on every rank
        told = f"off: {error}"
    if group.rank_in_group == 0:
        log.info("iris-autotune: %s", told)
    return found


@contextmanager
def _plain_torch() -> Iterator[None]:
    """Torch's defaults: a stack that is making a model has set others."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)


def tuned(ranks: int) -> Tuned:
    """The entries that this process, which may be no rank, finds for so many ranks. Raises what a look-up raises."""
    url, found = default_database_url(), machine()
    entries = {name: read_entries(url, name, found.device) for name in OPERATORS}
    return Tuned(entries, found, regime_of(DEFAULT_REGIME), ranks)


def _missing(ranks: int) -> str:
    """The reason why there is no table; empty where there is one. Raises what a look-up raises."""
    return "" if any(map(tuned(ranks).fields, OPERATORS)) else NOTHING.format(ranks, default_database_url())


def _told(table: Tuned) -> str:
    counted = {name: len(table.fields(name)) for name in OPERATORS}
    return ", ".join(f"{number} tuned sizes of {name}" for name, number in counted.items() if number)


def problem_of(table: Tuned, name: str, operands: Operands, options: Mapping[str, Any]) -> Problem:
    """The problem of a call; options that are not given have defaults. Raises NoMatch where the operator takes none."""
    found = workload(name)
    assert isinstance(found, LaunchedWorkload)
    fields = found.problem_type.__dataclass_fields__
    given = [options.get(option, fields[option].default) for option in found.options]
    try:
        made: Problem = found.problem_of(table.ranks, [operands.get(each) for each in found.kernels.operands], given)
    except AutotuneError as error:
        raise NoMatch(str(error)) from error
    return made
