"""The table of tuned entries by which pass, operators and layers decide: read once, on the first rank, for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm.distributed import get_tp_group

from autotune.compiled import served
from autotune.compiled.decisions import OPERATORS, SHARED_ROWS, Table, Tuned, border
from autotune.compiled.graphs import NoMatch
from autotune.workloads import workload
from iris_autotune_vllm.settings import LOG, switched_off


def join() -> Table | None:
    """The table of this process's tensor parallel group; None where nothing is tuned for it, ours cannot run, or all is
    switched off. Collective the first time.
    """
    return None if switched_off() else served.joined(get_tp_group(), LOG)


def joined() -> Table | None:
    """The table, if this process's layers have read it: what asks may not be collective."""
    return None if switched_off() else served.known(get_tp_group())


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
