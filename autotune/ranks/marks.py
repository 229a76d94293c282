"""Marks: what torch and our kernels do in a call, each between two events: collectives, GEMMs, copies, waits."""

from __future__ import annotations

import time
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs

from autotune.ranks.protocol import Stamped
from autotune.timeline import BARRIER, CALL, COLLECTIVE, COPY, GEMM

KERNELS = (
    (BARRIER, ("barrier", "wait", "signal")),
    (GEMM, ("gemm",)),
    (COLLECTIVE, ("gather", "push", "reduce", "sum", "scatter", "dispatch", "combine")),
)
"""The first kind counts of whose words one is in a kernel's name."""


class Marks(TorchDispatchMode):
    """Marks what torch's dispatcher sees within it, and Triton's kernels on a GPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cuda = device.type == "cuda"
        self._marked: list[tuple[int, int, Any, Any]] = []
        self._streams: dict[int, int] = {}
        """Numbers of streams, in the order of their first use."""
        self._launched: Any = None

    def __enter__(self) -> Self:
        knobs.runtime.launch_enter_hook.add(self._launch)
        knobs.runtime.launch_exit_hook.add(self._launched_kernel)
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        knobs.runtime.launch_enter_hook.remove(self._launch)
        knobs.runtime.launch_exit_hook.remove(self._launched_kernel)

    def _launch(self, _: Any) -> None:
        self._launched = self.now()

    def _launched_kernel(self, launch: Any) -> None:
        name = launch.get()["name"]
        kind = next((kind for kind, words in KERNELS if any(word in name for word in words)), None)
        if kind is not None:
            self._mark(kind, self._launched)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise the first operation imports torch's compiler, for a second or two."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = _kind(func)
        if kind is None:
            return func(*args, **(kwargs or {}))
        begin = self.now()
        result = func(*args, **(kwargs or {}))
        if kind == COLLECTIVE and not self._cuda:  # NCCL's runs on the current stream, and its work is a null pointer
            for each in result if isinstance(result, tuple) else (result,):
                if isinstance(each, torch.ScriptObject):
                    each.wait()  # type: ignore[attr-defined]
        self._mark(kind, begin)
        return result

    def _mark(self, kind: int, begin: Any) -> None:
        stream = torch.cuda.current_stream().cuda_stream if self._cuda else 0
        self._marked.append((self._streams.setdefault(stream, len(self._streams)), kind, begin, self.now()))

    def now(self) -> Any:
        """An event on the current stream; the host's nanoseconds without one."""
        if not self._cuda:
            return time.monotonic_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def events(self, origin: Any, end: Any) -> tuple[Stamped, ...]:
        """The whole call, and what was marked, a row for each stream; nothing without a collective or a GEMM: other
        kernels run then.
        """
        if not {COLLECTIVE, GEMM} & {kind for _, kind, *_ in self._marked}:
            return ()

        def since(moment: Any) -> float:
            return float(origin.elapsed_time(moment) * 1e3 if self._cuda else (moment - origin) / 1e3)

        marked = enumerate([(0, CALL, origin, end), *self._marked])
        return tuple((0, row, kind, number, since(begin), since(ended)) for number, (row, kind, begin, ended) in marked)


def _kind(func: Any) -> int | None:
    namespace, _, name = func._schema.name.partition("::")
    if "c10d" in namespace:
        return COLLECTIVE
    if name.strip("_").removesuffix("_v2").endswith("mm"):
        return GEMM
    return COPY if name == "copy_" else None
