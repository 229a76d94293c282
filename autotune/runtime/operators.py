"""Operators: one call runs a tuned kernel; the caller needs no knowledge of modes."""

from __future__ import annotations

from collections import OrderedDict

import torch

from autotune.config import Config
from autotune.errors import GangError, HeapExhausted, InvalidProblem
from autotune.kernels.all_gather_gemm import launch
from autotune.kernels.all_gather_gemm.problem import AllGatherGemm
from autotune.kernels.all_gather_gemm.tensors import Tensors
from autotune.kernels.launching.tensors import TORCH_DTYPES, Run
from autotune.runtime.context import Context

MOST_BINDINGS = 64
"""Sets of tensors whose launches a workspace remembers, of callers who give ``out``."""

ON_HEAP = ("pull", "pull_staged", "copy_engine")
"""Modes whose peers read our shard where it lies: it has to be on the symmetric heap."""


def all_gather_gemm(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
    *, layout: str = "rows", out: torch.Tensor | None = None, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """C = all_gather(A) @ B (+ bias) with the tuned config for this problem, on the current stream. Collective.

    ``a`` is this rank's shard: [m / world_size, k] for layout ``rows``, [m, k / world_size] for ``k``; contiguous,
    bf16, fp16 or fp32. ``b`` is [k, n_local], contiguous or the transpose of a contiguous [n_local, k]; ``bias``
    [n_local].
    Returns C [m, n_local], ``out`` where one is given. A shard allocated with ``context.heap.allocate`` is used where
    it lies; another one is copied first in the modes in which peers read it.

    Raises InvalidProblem where shapes, strides or types do not fit, HeapExhausted where the context's heap is too
    small, and on the first call of a problem what ``lookup`` raises.
    """
    problem = _problem(context, a, b, bias, layout)
    chosen = context.choose(problem, config).config
    key = (problem, chosen)
    workspace = context.workspaces.get(key)
    if workspace is None:
        workspace = context.workspaces[key] = _Workspace(context, problem, chosen)
    if out is not None:
        if out.shape != (problem.m, problem.n_local) or out.dtype != a.dtype or not out.is_contiguous():
            wanted = [problem.m, problem.n_local]
            raise InvalidProblem(f"out is {list(out.shape)} {out.dtype}; {wanted} {a.dtype}, contiguous, is needed")
        workspace.run(a, b, bias, out, remember=True)
        return out
    made = torch.empty((problem.m, problem.n_local), dtype=a.dtype, device=a.device)
    workspace.run(a, b, bias, made, remember=False)
    return made


class _Workspace:
    """What one config of one problem keeps on the heap, and its launches bound to the tensors seen so far."""

    def __init__(self, context: Context, problem: AllGatherGemm, config: Config) -> None:
        # A graph would be bound to fixed addresses; callers who capture graphs capture the eager calls.
        self._config = config.replace(launch="eager") if config["mode"] == "bsp" else config
        self._context, self._problem = context, problem
        self._shard: torch.Tensor | None = None
        mark = context.heap.mark()
        try:
            self._scratch = launch.share_scratch(problem, self._config, context.machine, context.heap)
            if config["mode"] in ON_HEAP:
                self._shard = context.heap.allocate(problem.shard, TORCH_DTYPES[problem.dtype])
        except HeapExhausted:
            context.heap.release(mark)  # on every rank alike: a smaller problem may still fit
            raise
        self._bound: OrderedDict[tuple[int, ...], Run] = OrderedDict()

    def run(
        self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, *, remember: bool
    ) -> None:
        """Enqueue one call. ``remember`` keeps the launches for these tensors, which it keeps alive."""
        if self._shard is not None and not self._context.heap.owns(a):
            # Safe to overwrite: these modes end only when every peer has read.
            self._shard.copy_(a)
            a = self._shard
        key = tuple(tensor.data_ptr() if tensor is not None else 0 for tensor in (a, b, bias, out))
        call = self._bound.get(key) or self._bind(Tensors(a, b, out, bias))
        if remember:
            self._bound[key] = call
            if len(self._bound) > MOST_BINDINGS:
                self._bound.popitem(last=False)
        call()
        if out.device.type == "cpu" and self.gave_up():
            raise GangError("all_gather_gemm: a wait in the kernel gave up; not all ranks made this call")

    def _bind(self, tensors: Tensors) -> Run:
        context = self._context
        return launch.bind(
            self._problem, self._config, context.machine, tensors, self._scratch, context.heap, context.spin_limit
        )

    def gave_up(self) -> bool:
        """Whether a wait in a kernel gave up; waits for the device."""
        return self._scratch is not None and bool(self._scratch.status.item())


def _problem(
    context: Context, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, layout: str
) -> AllGatherGemm:
    dtypes = {dtype: name for name, dtype in TORCH_DTYPES.items()}
    if a.dtype not in dtypes or b.dtype != a.dtype or (bias is not None and bias.dtype != a.dtype):
        raise InvalidProblem(f"a is {a.dtype}, b {b.dtype}: allowed is one of {', '.join(map(str, dtypes))} for all")
    if a.dim() != 2 or b.dim() != 2 or not a.is_contiguous():
        raise InvalidProblem(f"a {list(a.shape)} and b {list(b.shape)} must be matrices, and a contiguous")
    if not b.is_contiguous() and not b.t().is_contiguous():
        raise InvalidProblem(
            f"b has strides {b.stride()}: it must be contiguous, or the transpose of a contiguous matrix"
        )
    world_size = context.heap.world_size
    m, k = (a.shape[0] * world_size, a.shape[1]) if layout == "rows" else (a.shape[0], a.shape[1] * world_size)
    if b.shape[0] != k or (bias is not None and bias.shape != (b.shape[1],)):
        raise InvalidProblem(
            f"b is {list(b.shape)}, bias {None if bias is None else list(bias.shape)}; with a {list(a.shape)}, layout "
            f"{layout} and {world_size} ranks, b [{k}, n_local] and bias [n_local] are needed"
        )
    return AllGatherGemm(
        m=m, n=b.shape[1] * world_size, k=k, dtype=dtypes[a.dtype], layout=layout, world_size=world_size,
        b_order="kn" if b.is_contiguous() else "nk", bias=bias is not None,
    )  # fmt: skip
