"""The price of one config for all sizes: its times beside those of each size's own winner."""

from __future__ import annotations

import dataclasses

from autotune.db import Entry, Store
from autotune.outcome import Regime
from autotune.results.library import baseline_name
from autotune.workloads.descriptors import descriptor_of


def price(entry: Entry, store: Store) -> str:
    """The winner of an invariant problem over the winners of all its sizes together, in a sentence; over the library at
    each size, where one of them has no winner; of the interpreter's times the sizes alone. Empty for other problems.
    """
    key, winner = entry.key, entry.winner
    if not key.fields.get("invariant"):
        return ""
    problem, regime = descriptor_of(key.workload).problem_type.from_dict(key.fields), Regime(key.regime)
    sizes = [each.as_varying() for each in problem.sizes()]
    found = [store.entry(dataclasses.replace(key, problem=each.to_json()), entry.provenance) for each in sizes]
    own = [each.winner.latency.of(regime) for each in found if each is not None]
    ours, rows = winner.latency.of(regime), ", ".join(str(each.batch_rows) for each in reversed(sizes))
    over = f"{problem.one_row} = {rows}"
    if key.is_interpreted:
        return f"times are sums over {over}"
    where = f"in the sum over {over}"
    if len(own) == len(sizes):
        return f"{ours / sum(own):.2f} times as long as each size's own winner, {where}"
    missing = f"{len(sizes) - len(own)} of {len(sizes)} sizes have no winner of their own to compare with"
    name, library = min(winner.baselines.items(), key=lambda each: each[1].of(regime), default=("", None))
    if library is None:
        return missing
    return f"{ours / library.of(regime):.2f} times as long as {baseline_name(key, name)}, {where}; {missing}"
