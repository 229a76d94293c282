"""Marks: the operations of a call that torch makes, each between two events: collectives, GEMMs, copies."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autotune.ranks.protocol import Stamped
from autotune.timeline import COLLECTIVE, COPY, GEMM, OTHER

SHORTEST_GAP = 0.03
"""Of the call: shorter gaps between marked operations are those of launches."""


class Marks(TorchDispatchMode):
    """Marks what is called within it. Where nothing is marked, kernels run that torch's dispatcher does not see."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._cuda = device.type == "cuda"
        self._spans: list[tuple[int, int, Any, Any]] = []
        self._streams: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = _kind(func)
        if kind is None:
            return func(*args, **(kwargs or {}))
        stream, begin = self._stream(), self.now()
        result = func(*args, **(kwargs or {}))
        if kind == COLLECTIVE:  # it may run on a stream of its own
            for each in result if isinstance(result, tuple) else (result,):
                if isinstance(each, torch.ScriptObject):
                    each.wait()
        self._spans.append((stream, kind, begin, self.now()))
        return result

    def now(self) -> Any:
        """An event on the current stream; the host's nanoseconds without one."""
        if not self._cuda:
            return time.monotonic_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def events(self, origin: Any, end: Any) -> tuple[Stamped, ...]:
        """What was marked, a row for each stream, and the gaps; nothing where nothing was marked."""

        def since(moment: Any) -> float:
            return origin.elapsed_time(moment) * 1e3 if self._cuda else (moment - origin) / 1e3

        found = [
            (0, stream, kind, number, since(begin), since(ended))
            for number, (stream, kind, begin, ended) in enumerate(self._spans)
        ]
        whole, covered, gaps = since(end), 0.0, []
        for begin, ended in [*sorted(each[4:] for each in found), (whole, whole)]:
            if begin - covered > SHORTEST_GAP * whole:
                gaps.append((0, 0, OTHER, len(gaps), covered, begin))
            covered = max(covered, ended)
        return (*found, *gaps) if found else ()

    def _stream(self) -> int:
        """A number for the current stream, in the order of their first use."""
        handle = torch.cuda.current_stream().cuda_stream if self._cuda else 0
        return self._streams.setdefault(handle, len(self._streams))


def _kind(func: Any) -> int | None:
    namespace, _, name = func._schema.name.partition("::")
    if "c10d" in namespace:
        return COLLECTIVE
    if "mm" in name.split("_") or name.endswith("mm"):
        return GEMM
    return COPY if name == "copy_" else None
