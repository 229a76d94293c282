"""A GPU's stopwatch: ways to do the same, in turns, each replayed from a CUDA graph of many calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

SECONDS = 0.05
"""That a graph's calls take."""
ROUNDS = 5


def in_turns(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of a call, by name."""
    graphs = {name: captured(run) for name, run in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(ROUNDS):
        for name, (graph, calls) in graphs.items():
            graph.replay()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return {name: statistics.median(each) for name, each in found.items()}


def captured(run: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of so many calls that it lasts ``SECONDS``."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run()
    begin.record()
    for _ in range(3):
        run()
    end.record()
    end.synchronize()
    calls = max(3, int(SECONDS * 1e3 / (begin.elapsed_time(end) / 3)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return graph, calls
