"""Our kernels behind ``torch.ops.symm_mem``'s fused operators, for code that calls those by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._symmetric_memory as theirs  # registers the operators

from autotune.errors import InputError, InvalidProblem
from autotune.runtime.context import Context, check_context
from autotune.runtime.groups import process_group, ranks_of
from autotune.runtime.symm_mem import fused
from autotune.runtime.workspace import ALIGNMENT

DEVICES = ("CUDA", "CPU")


class Installed:
    """The contexts whose ranks run our operators behind torch's names. As a context manager it uninstalls."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        self._of_group: dict[str, Context | None] = {}
        self._computed: dict[tuple[object, ...], bool] = {}
        """True for a form of call that ours compute, False for others: of a first call the ranks learn it together, by
        what they share. A fallback that one rank alone took would leave the others waiting.
        """
        self._library: torch.library.Library | None = None

    def add(self, context: Context) -> None:
        if context not in self.contexts:
            self.contexts.append(context)
        self._of_group.clear()
        if self._library is None:
            self._register()

    def remove(self) -> None:
        self.contexts.clear()
        self._of_group.clear()
        self._computed.clear()
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def context_of(self, group: Any) -> Context | None:
        """The context of a group's ranks, whatever the group's name is."""
        name = group if isinstance(group, str) else str(group)
        if name not in self._of_group:
            ranks = ranks_of(process_group(group))
            self._of_group[name] = next((each for each in self.contexts if each.ranks == ranks), None)
        found = self._of_group[name]
        return found if found is not None and found.group is not None else None

    def _register(self) -> None:
        devices = DEVICES if torch.cuda.is_available() else DEVICES[1:]
        calls = {(name, device): self._behind(name, device) for name in OURS for device in devices}
        self._library = torch.library.Library("symm_mem", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Oo]verrid.*")
            for (name, device), call in calls.items():
                self._library.impl(name, call, device, allow_override=True)

    def _behind(self, name: str, device: str) -> Callable[..., Any]:
        ours, original = OURS[name], _original(name, device)
        names = [each.name for each in getattr(torch.ops.symm_mem, name).default._schema.arguments]
        at = names.index("group_name")

        def call(*given: Any, **named: Any) -> Any:
            context = self.context_of(given[at] if len(given) > at else named["group_name"])
            if context is None:
                return original(*given, **named)
            asked = {**dict(zip(names, given, strict=False)), **named}
            form = (name, *map(_form, asked.values()))
            known = self._computed.get(form)
            if known is False:
                return original(*given, **named)
            try:
                with torch.no_grad():  # torch's have no backward either
                    result = ours(**{each: _mapped(lying_well, value) for each, value in asked.items()})
            except InvalidProblem:
                if known:  # on this rank alone
                    raise
                self._computed[form] = False
                return original(*given, **named)
            self._computed[form] = True
            return result

        return call


OURS: dict[str, Callable[..., Any]] = {
    "fused_all_gather_matmul": fused.gather_and_multiply,
    "fused_all_gather_scaled_matmul": fused.fused_all_gather_scaled_matmul,
    "fused_matmul_reduce_scatter": fused.fused_matmul_reduce_scatter,
    "fused_scaled_matmul_reduce_scatter": fused.fused_scaled_matmul_reduce_scatter,
}

INSTALLED = Installed()


def install(context: Context) -> Installed:
    """From now on ``torch.ops.symm_mem``'s four fused operators run ours on this context's ranks, whatever the name of
    their group: in torchtitan's layers, under inductor's micro-pipeline, in code of one's own.

        with autotune.Context() as context, symm_mem.install(context): ...

    Once for each context; ``uninstall`` before they are closed. All ranks make the same calls. What ours do not compute
    (fp64, results in fp8), and other groups, torch's own do. Raises InputError where ``context`` is none.
    """
    check_context(context)
    INSTALLED.add(context)
    return INSTALLED


def uninstall() -> None:
    """Give the operators back to torch. Without any effect where nothing is installed."""
    INSTALLED.remove()


def _original(name: str, device: str) -> Callable[..., Any]:
    """Torch's own kernel; on a CPU, where it has none, its fallback of plain collectives."""
    if device == "CPU":
        fallback: Callable[..., Any] = getattr(theirs, f"_{name}_fallback")
        return fallback
    if not hasattr(torch.library, "get_kernel"):
        raise InputError(f"symm_mem.install needs torch.library.get_kernel; torch {torch.__version__} has none")
    kernel = torch.library.get_kernel(f"symm_mem::{name}", device)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device))
    return lambda *given, **named: kernel.call_boxed(keys, *given, **named)


def _form(value: Any) -> object:
    """What all ranks share of an argument."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.stride()
    return tuple(map(_form, value)) if isinstance(value, list) else value


def lying_well(tensor: torch.Tensor) -> torch.Tensor:
    """An operand as our kernels take it: a matrix in either order, at an address of whole vectors; else a copy."""
    turned = tensor.dim() == 2 and tensor.stride(0) == 1
    in_order = tensor.t() if turned else tensor
    if in_order.is_contiguous() and not tensor.data_ptr() % ALIGNMENT:
        return tensor
    copy = in_order.clone(memory_format=torch.contiguous_format)
    return copy.t() if turned else copy


def _mapped(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    return [_mapped(function, each) for each in value] if isinstance(value, list) else value
