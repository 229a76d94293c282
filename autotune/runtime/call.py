"""A form of call: checked once, at its first call, and looked up before each launch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.autograd import forward_ad

from autotune.errors import InvalidProblem
from autotune.kernels.launching.tensors import TORCH_DTYPES, Run
from autotune.problem import Problem
from autotune.runtime.workspace import ALIGNMENT, Operands, Results, Workspace

NO_BACKWARD = (
    "a tensor requires a gradient, and this call has no backward (all_gather_gemm, gemm_reduce_scatter and "
    "gemm_all_reduce have one, without fp8, in_place and out): call within torch.no_grad() or torch.inference_mode(), "
    "or give tensor.detach()"
)
NO_TANGENT = (
    "a tensor has a tangent of forward-mode AD, and no call has such a derivative: take gradients backwards, or give "
    "torch.autograd.forward_ad.unpack_dual(tensor).primal"
)


_WORDS: dict[torch.dtype | None, str] = {None: "auto", **{dtype: name for name, dtype in TORCH_DTYPES.items()}}

OPERATORS: dict[str, Any] = {}
"""Every ``Operator`` of this process, by the name of its workload."""

Ways = Sequence[Sequence[Problem]]
"""Alternatives for one place in a graph: the problems that are used together."""


class Listener(Protocol):
    def called(self, problem: Problem) -> None: ...

    def found(self, ways: Ways, replaced: bool) -> None:
        """A place in a graph was compiled; ``replaced``: calls of its first way are heard as they are made."""


LISTENERS: list[Listener] = []
"""Listeners to operators: none, but for ``autotune.collect``."""

_MODES, _TRANSFORM = torch._C._len_torch_dispatch_stack, torch._C._functorch.maybe_current_level
"""The number of modes around a call, and the level of ``torch.func``."""


@dataclass(frozen=True)
class Form:
    """The properties of a tensor that its checks use, except its address."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def fitting(self, given: torch.Tensor) -> torch.Tensor:
        """The tensor that is given. Raises InvalidProblem where it is not of this form."""
        fits = given.shape == self.shape and given.dtype == self.dtype and given.device == self.device
        if not fits or not given.is_contiguous() or given.is_neg():
            negated = ", negated when it is read" if given.is_neg() else ""
            raise InvalidProblem(
                f"out is {list(given.shape)} {given.dtype} on {given.device}, strides {given.stride()}{negated}; "
                f"{list(self.shape)} {self.dtype} on {self.device}, contiguous, expected"
            )
        if given.requires_grad:
            demand_no_gradient((given,))
        return given


@dataclass
class Prepared:
    """A form of call: what its first call checks and sets up, and what every later one finds."""

    results: tuple[Form, ...]
    workspace: Workspace | None = None
    """None where the results have no rows, and nothing runs."""
    copies: bool = False
    """True if the launches cannot read some operand as it lies, so that each call copies it."""
    launches: dict[tuple[int, ...], Run] = field(default_factory=dict)
    """By the addresses of results and operands."""

    def check(self, operands: Operands, outs: Results | None) -> list[torch.Tensor]:
        """The results of a first call: allocated, unless ``outs`` are given. Raises InvalidProblem where no such call
        can be made.
        """
        demand_no_gradient(operands)
        return fitting(self.results, outs)

    def bind(self, operands: Operands, outs: Results | None, workspace: Workspace) -> list[torch.Tensor]:
        """``check``, then bind to a workspace: all of a first call that can fail while other ranks wait for it."""
        results = self.check(operands, outs)
        readable = workspace.readable(operands)
        self.copies = any(mine is not given for mine, given in zip(readable, operands, strict=True))
        self.launches = workspace.launches(readable)
        workspace.prepare(readable, results, self.launches)
        self.workspace = workspace
        return results


def fitting(forms: Sequence[Form], given: Results | None) -> list[torch.Tensor]:
    """A tensor of each form: those that are given, or new ones. Raises InvalidProblem."""
    if given is None:
        # The size by its name: torch takes a microsecond less to tell which of its ``empty`` is meant.
        return [torch.empty(size=form.shape, dtype=form.dtype, device=form.device) for form in forms]
    if len(given) != len(forms):
        raise InvalidProblem(f"out holds {len(given)} tensors; one for each of {len(forms)} results is needed")
    return [form.fitting(out) for form, out in zip(forms, given, strict=True)]


def word_of(out_dtype: torch.dtype | None) -> str:
    """The problem's word for a result's element type. Raises InvalidProblem for a type that no result has."""
    word = _WORDS.get(out_dtype)
    if word is None:
        raise InvalidProblem(f"out_dtype={out_dtype}: allowed: None, {', '.join(map(str, TORCH_DTYPES.values()))}")
    return word


def needs_gradient(tensors: Sequence[torch.Tensor | None]) -> bool:
    """True if autograd would have to go through a call."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # every call comes through here: a generator would take twice as long
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def demand_no_gradient(tensors: Sequence[torch.Tensor | None]) -> None:
    """Raise InvalidProblem where autograd would have to go through a call."""
    if needs_gradient(tensors):
        raise InvalidProblem(NO_BACKWARD)


def demand_no_tangent(tensors: Sequence[torch.Tensor | None]) -> None:
    """Raise InvalidProblem where forward-mode AD would have to go through a call, which torch does not see."""
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise InvalidProblem(NO_TANGENT)


def demand_the_same(context: Any, name: str, added: Mapping[str, torch.Tensor | None]) -> None:
    """Raise RanksDisagree in the first call of an operator with such tensors if they differ between ranks. Collective;
    ``context`` is a Context.
    """
    given = {each: x for each, x in added.items() if x is not None}

    def check() -> str:
        bits = b"".join(x.contiguous().view(torch.uint8).cpu().numpy().tobytes() for x in given.values())
        return (
            f"what fusing() took to be the same on every rank is {hashlib.sha256(bits).hexdigest()[:12]} (pass "
            "replicated=False where it is not, True where rounding alone differs)"
        )

    context.agree_once(name, *[(each, *x.shape) for each, x in given.items()], check=check)


def dispatched() -> bool:
    """True within a transform of ``torch.func``, and in a mode such as ``FakeTensorMode``: there tensors may have no
    memory, and torch's dispatcher knows what stands behind them.
    """
    return _MODES() > 0 or _TRANSFORM() is not None


def aligned(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor, or a copy that begins with a whole vector: compilers and autograd make views that do not."""
    if tensor is None or not tensor.is_floating_point() or not tensor.data_ptr() % ALIGNMENT:
        return tensor
    return tensor.clone()
