"""Capturing a call as a CUDA graph."""

from __future__ import annotations

import torch

from autotune.kernels.launching.tensors import Run


def graphed(run: Run) -> Run:
    """``run`` captured as a CUDA graph; itself where there are no graphs (CPU). Collective if ``run`` is."""
    if not torch.cuda.is_available():
        return run
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay() -> None:
        graph.replay()

    replay.captured = run  # type: ignore[attr-defined]  # the buffers it reads live as long as the graph
    return replay
