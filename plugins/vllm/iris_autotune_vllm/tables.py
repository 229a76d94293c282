"""The table of tuned entries by which pass, operators and layers decide: read once, on the first rank, for all."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from vllm.distributed import get_tp_group
from vllm.utils.torch_utils import set_default_torch_dtype

from autotune.agreement import Agreement
from autotune.compiled.decisions import OPERATORS, SHARED_ROWS, Table, Tuned, border
from autotune.compiled.graphs import NoMatch
from autotune.errors import AutotuneError
from autotune.machine import machine
from autotune.outcome import DEFAULT_REGIME, regime_of
from autotune.problem import Problem
from autotune.runtime import symm_mem
from autotune.runtime.entries import read_entries
from autotune.settings import default_database_url
from autotune.workloads import workload
from iris_autotune_vllm.settings import LOG, switched_off

NOTHING = "nothing is tuned for {} ranks in {}; see `tune model --help`"


@functools.cache
def join() -> Table | None:
    """The table of this process's tensor parallel group; None where nothing is tuned for it, ours cannot run, or
    all is switched off.

    Collective the first time: the first rank reads the database, and all open their context.
    """
    if switched_off():
        return None
    tp = get_tp_group()
    found = None
    try:
        told = Agreement(tp.cpu_group).broadcast(lambda: _missing(tp.world_size))
        if not told:
            found = _opened(tp.device_group)
            told = f"decides by {_told(found)}"
    except AutotuneError as error:  # on every rank
        told = f"off: {error}"
    if tp.rank_in_group == 0:
        LOG.info("iris-autotune: %s", told)
    return found


def _opened(group: Any) -> Table:
    """Whatever device and type vLLM makes a model's tensors of at this moment."""
    with torch.inference_mode(False), torch.device("cpu"), set_default_torch_dtype(torch.float32):
        return Table(symm_mem.context_of(group))


def joined() -> Table | None:
    """The table, if this process's layers have read it: what asks may not be collective."""
    return join() if join.cache_info().currsize else None


def here(ranks: int) -> Tuned:
    """The entries that this process, which may be no rank, finds for so many ranks. Raises what a look-up raises."""
    url, found = default_database_url(), machine()
    entries = {name: read_entries(url, name, found.device) for name in OPERATORS}
    return Tuned(entries, found, regime_of(DEFAULT_REGIME), ranks)


def _missing(ranks: int) -> str:
    """The reason why there is no table; empty where there is one. Raises what a look-up raises."""
    return "" if any(map(here(ranks).fields, OPERATORS)) else NOTHING.format(ranks, default_database_url())


def _told(table: Tuned) -> str:
    counted = {name: len(table.fields(name)) for name in OPERATORS}
    return ", ".join(f"{number} tuned sizes of {name}" for name, number in counted.items() if number)


def problem_of(
    table: Tuned, name: str, operands: Mapping[str, torch.Tensor | None], options: Mapping[str, Any]
) -> Problem:
    """The problem of a call; options that are not given have defaults. Raises NoMatch where the operator takes none."""
    found = workload(name)
    fields = found.problem_type.__dataclass_fields__
    given = [options.get(option, fields[option].default) for option in found.options]
    try:
        return found.problem_of(table.ranks, [operands.get(each) for each in found.kernels.operands], given)
    except AutotuneError as error:
        raise NoMatch(str(error)) from error


def sizes(table: Tuned, smallest: int, largest: int) -> list[int]:
    """The numbers of tokens by which the graph of a range is decided: its ends, and what is tuned between."""
    tuned = {int(each["m"]) for name in OPERATORS for each in table.fields(name)}
    return sorted({smallest, largest, *(m for m in tuned if smallest < m < largest)})


def borders(table: Tuned, hidden_size: int | None = None) -> list[int]:
    """The numbers of rows up to which an operator gains, or does not: ends of ranges for vLLM, whose graphs are then
    decided as a whole. Of all tuned problems, or those of a model with this hidden size.
    """
    found = set[int]()
    for name in OPERATORS:
        families = dict[str, tuple[dict[str, Any], set[int]]]()
        for fields in table.fields(name):
            if hidden_size is None or hidden_size in (fields["n"], fields.get("k")):
                besides = {each: value for each, value in fields.items() if each != "m"}
                families.setdefault(repr(besides), (besides, set()))[1].add(int(fields["m"]))
        for besides, measured in families.values():
            found |= _borders(table, name, besides, measured)
    return sorted(found)


def _borders(table: Tuned, name: str, besides: Mapping[str, Any], measured: Iterable[int]) -> set[int]:
    """Where the decision changes: by bisection between measured sizes, and beyond them, where look-ups end."""
    step, made = table.ranks if name in SHARED_ROWS else 1, workload(name).problem_type

    def gains(count: int) -> bool:
        try:
            return table.gain(made.from_dict({**besides, "m": count * step}))[0] > 0
        except NoMatch:
            return False

    counts = sorted({m // step for m in measured} - {0})
    places = [max(1, counts[0] // 4), *counts, counts[-1] * 4]
    found = set[int]()
    for low, high in zip(places, places[1:], strict=False):
        if gains(low) != gains(high):
            found.add(step * border(lambda count, low=low: gains(count) == gains(low), low, high))
    return found
