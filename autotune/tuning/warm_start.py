"""Warm starts: configs that did well on the nearest problems in the cache, tried early."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from typing import Any

from autotune.config import Config, in_turns
from autotune.db import CacheKey, Entry, Provenance, Store
from autotune.db.records import columns, parted
from autotune.outcome import DEFAULT_REGIME, Regime
from autotune.problem import Problem
from autotune.sizes import WIDEST
from autotune.task import Task
from autotune.workloads import Workload

NEIGHBOURS = 3
"""Number of tuned problems whose winners are tried."""

RUNNERS_UP = 4
"""Number of further configs tried from the nearest problem's search."""

OTHER_MODES = 3
"""Configs of the workload's own between the default and warm starts: a neighbour's winner, tried first, took 1.21 times
as long as the best in the geometric mean and 2.4 times at most (32 searches, 2 H100, 2026-11-25).
"""

OF_ANOTHER_KIND = 8.0
"""Distance of two problems that differ in a word (a layout, a type): that of a size 256 times larger."""

FAR = 4.0
"""Distance in sizes beyond which a winner is not tried: that of one size 16 times larger. With 4096 tokens, tiles that
had won with 16 and 128 took 8 and 3 times as long as the default's (dispatch + GEMM, 2 H100, 2026-11-24).
"""

ANOTHER_REGIME = 0.5
"""Distance of two problems tuned for different regimes: less than that of a size twice as large."""


def beginning(workload: Workload, task: Task[Problem], store: Store, regime: Regime = DEFAULT_REGIME) -> list[Config]:
    """The configs with which a search begins: the default and the first of other modes, made for this size; then the
    workload's other first ones and warm starts in turns, so that a short search has seen both.
    """
    default = workload.default_config(task)
    own = [config for config in workload.first_configs(task) if config != default]
    return [default, *own[:OTHER_MODES], *in_turns([warm_starts(workload, task, store, regime), own[OTHER_MODES:]])]


def warm_starts(workload: Workload, task: Task[Problem], store: Store, regime: Regime = DEFAULT_REGIME) -> list[Config]:
    """Winners of the nearest problems tuned on the same kind of device, nearest first, then the nearest one's
    runners-up.

    World size counts as a dimension, so results for other numbers of ranks serve too. So do stale entries, since a
    config is only tried; it must be valid for this problem in today's space.
    """
    key = CacheKey.of(task, regime)
    entries = store.entries(workload.name, task.machine.device)
    distances = {entry.study_id: _distances(key, entry.key) for entry in entries}
    within = [entry for entry in entries if distances[entry.study_id][0] <= FAR]
    near = sorted(within, key=lambda entry: sum(distances[entry.study_id]))[:NEIGHBOURS]
    configs = [entry.winner.config for entry in near]
    if near:
        configs += _fastest(store, near[0])
    return list(workload.space.valid(configs, task))


def previous_winner(
    workload: Workload, task: Task[Problem], store: Store, regime: Regime = DEFAULT_REGIME
) -> list[Config]:
    """The newest winner of the same key, tuned with any versions; None if it is invalid today."""
    key = CacheKey.of(task, regime)
    same = [entry.winner.config for entry in store.entries(workload.name, task.machine.device) if entry.key == key]
    return list(workload.space.valid(same[:1], task))


def neighbours(
    store: Store, key: CacheKey, provenance: Provenance, dimensions: Collection[str]
) -> list[Config]:  # fmt: skip
    """The winners of the next smaller and the next larger size that were searched, along each of the dimensions, alike
    in all else: between those sizes and this one a look-up draws a border by what their configs take here.
    """
    found: list[Config] = []
    same = [each for each in store.unread(key.workload, key.device) if each.provenance == columns(provenance)]
    for name in dimensions:
        ((here,), besides), sizes = parted(columns(key), [name]), dict[int, Config]()
        for each in same:
            (size,), others = parted(each.key, [name])
            near = isinstance(size, int) and here <= WIDEST * size and size <= WIDEST * here
            if near and others == besides and each.entry is not None and not each.entry.winner.verified:
                sizes[size] = each.entry.winner.config
        below = max((size for size in sizes if size < here), default=None)
        above = min((size for size in sizes if size > here), default=None)
        found += [sizes[size] for size in (below, above) if size is not None]
    return list(dict.fromkeys(found))


def _fastest(store: Store, entry: Entry) -> Iterable[Config]:
    best: dict[Config, float] = {}
    for trial in store.trials(entry.study_id):
        if trial.evaluation.latency is not None:
            best[trial.config] = trial.evaluation.latency.of(Regime(entry.key.regime))
    return sorted(best, key=lambda config: best[config])[:RUNNERS_UP]


def _distances(wanted: CacheKey, other: CacheKey) -> tuple[float, float]:
    """Sum of the sizes' |log2 ratio|; and a fixed distance for each word that differs."""
    ours, theirs = _fields(wanted), _fields(other)
    sizes, words = 0.0, ANOTHER_REGIME if wanted.regime != other.regime else 0.0
    for name in ours.keys() | theirs.keys():
        one, another = ours.get(name), theirs.get(name)
        if isinstance(one, int) and isinstance(another, int) and min(one, another) > 0:
            sizes += abs(math.log2(one / another))
        elif one != another:
            words += OF_ANOTHER_KIND
    return sizes, words


def _fields(key: CacheKey) -> dict[str, Any]:
    return {**json.loads(key.problem), "arch": key.arch, "interconnect": key.interconnect}
