"""Tensor-parallel styles for ``parallelize_module``, in the place of torch's; parameters are DTensors, as there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, overload

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor import parallel as theirs
from torch.distributed.tensor.placement_types import Placement

from autotune.errors import InputError
from autotune.nn.functional import column_parallel, readable, row_parallel
from autotune.runtime.context import Context
from autotune.runtime.operators import all_gather_gemm_with_gathered

Tensor = torch.Tensor
Style = theirs.ParallelStyle

LOG = logging.getLogger("autotune")


@dataclass(frozen=True)
class Layouts:
    """A linear layer's neighbours: the layout of its input where that is no DTensor, and of its output."""

    context: Context
    mesh: DeviceMesh
    input: Placement
    output: Placement
    use_local_output: bool
    keep_gathered: bool = False

    def returned(self, local: Tensor, layout: Placement) -> Tensor:
        """A result with this layout, in the layout and of the kind that is asked for."""
        output = self.output
        if isinstance(output, Shard):
            output = Shard(output.dim % local.dim())
        if isinstance(layout, Shard):
            layout = Shard(layout.dim % local.dim())
        if layout == output and self.use_local_output:
            return local
        made = DTensor.from_local(local, self.mesh, (layout,), run_check=False)
        if layout != output:
            made = made.redistribute(placements=(output,))
        return made.to_local() if self.use_local_output else made

    def distributed(self, x: Tensor) -> DTensor:
        """An input as a DTensor. Raises InputError where it is one of another mesh."""
        if not isinstance(x, DTensor):
            return DTensor.from_local(x, self.mesh, (self.input,), run_check=False)
        if x.device_mesh != self.mesh:
            raise InputError(f"the input is a DTensor of the mesh {x.device_mesh}, the layer is one of {self.mesh}")
        return x

    def layout_of(self, x: Tensor) -> Placement:
        """Raises what ``distributed`` raises."""
        return self.distributed(x).placements[0] if isinstance(x, DTensor) else self.input

    def divide(self, x: Tensor, dim: int, whole: bool = False) -> bool:
        """True if the ranks have equal parts of a dimension; ``whole``: of a local ``x``, which is a part otherwise."""
        return not (whole or isinstance(x, DTensor)) or x.shape[dim] % self.mesh.size() == 0


class Gathered:
    """An input that several layers take, gathered by the first of them; forgotten when their module ends."""

    def __init__(self, module: nn.Module) -> None:
        self.linear = [each for each in module.modules() if isinstance(each, nn.Linear)]
        self._input: Tensor | None = None
        self._whole: Tensor | None = None
        self._graded = False
        """True if the whole leads gradients back to the input."""

    @property
    def shared(self) -> bool:
        """True if there are several: what one alone returned for others would make its backward slower."""
        return sum(isinstance(each, ColwiseLinear) for each in self.linear) > 1

    def column_parallel(self, context: Context, input: Tensor, dim: int, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``nn.functional.column_parallel``; ``input`` is compared by identity."""
        graded = torch.is_grad_enabled()
        if self._input is input and self._whole is not None and self._graded >= graded:
            return F.linear(self._whole, weight, bias)
        x, weight, bias = readable(local(input), weight, bias)
        result, whole = all_gather_gemm_with_gathered(context, x, weight.t(), bias, gather_dim=dim)
        self._input, self._whole, self._graded = input, whole, graded
        return result

    def forget(self, *_: Any) -> None:
        self._input = self._whole = None


class ColwiseLinear(nn.Linear):
    """A linear layer with a rank's rows of the weight. An input that ranks share out is gathered within its GEMM."""

    layouts: Layouts
    gathered: Gathered | None = None
    """Shared with the other layers of a module whose style is ``SharedInput``."""

    def forward(self, input: Tensor) -> Tensor:
        layouts, weight, bias = self.layouts, local(self.weight), local(self.bias)
        layout = layouts.layout_of(input)
        if isinstance(layout, Shard) and layouts.divide(input, layout.dim):
            if self.gathered is not None and self.gathered.shared:
                result = self.gathered.column_parallel(layouts.context, input, layout.dim, weight, bias)
            else:
                x = local(input)
                result = column_parallel(layouts.context, x, weight, bias, layout.dim, layouts.keep_gathered)
        elif isinstance(layout, Replicate) and not isinstance(input, DTensor):
            result = column_parallel(layouts.context, input, weight, bias)
        else:  # a whole DTensor has been gathered elsewhere, and its gradient is reduced there
            whole = layouts.distributed(input).redistribute(placements=(Replicate(),))
            result = F.linear(whole.to_local(grad_placements=(Partial(),)), weight, bias)
        return layouts.returned(result, Shard(result.dim() - 1))


class RowwiseLinear(nn.Linear):
    """A linear layer with a rank's columns of the weight. Its GEMM ends in the sum over ranks."""

    layouts: Layouts

    def forward(self, input: Tensor) -> Tensor:
        layouts, weight, bias = self.layouts, local(self.weight), local(self.bias)
        columns = input.dim() - 1
        x: Tensor = input
        if isinstance(x, DTensor) or not is_shard(layouts.input, columns, x.dim()):
            x = local(layouts.distributed(input).redistribute(placements=(Shard(columns),)))
        output = layouts.output
        if isinstance(output, Replicate):
            return layouts.returned(row_parallel(layouts.context, x, weight, bias), output)
        if isinstance(output, Shard) and not is_shard(output, columns, x.dim()) and layouts.divide(x, output.dim, True):
            return layouts.returned(row_parallel(layouts.context, x, weight, bias, output.dim), output)
        parts: Any = super().forward(DTensor.from_local(x, layouts.mesh, (Shard(columns),), run_check=False))
        total = parts.redistribute(placements=(output,))
        returned: Tensor = local(total) if layouts.use_local_output else total
        return returned


class ColwiseParallel(theirs.ColwiseParallel):
    """``ColwiseParallel`` of torch, whose linear layers gather an input that ranks share out within their GEMM.

    The input's gradient is reduced within the GEMM that makes it. A layer whose width the ranks do not divide, or that
    is not an ``nn.Linear``, is left to torch.
    """

    def __init__(
        self, context: Context, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None,
        use_local_output: bool = True, keep_gathered: bool = False,
    ) -> None:  # fmt: skip
        """``keep_gathered`` is that of ``all_gather_gemm``; all else is as in torch."""
        super().__init__(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )  # fmt: skip
        self.context, self.keep_gathered = context, keep_gathered

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not takes(module, "out_features", device_mesh, self.context):
            return super()._apply(module, device_mesh)
        distribute_module(module, device_mesh, self._partition_linear_fn)
        layouts = Layouts(
            self.context, device_mesh, self.input_layouts[0], self.output_layouts[0], self.use_local_output,
            self.keep_gathered,
        )  # fmt: skip
        return become(module, ColwiseLinear, layouts)


class RowwiseParallel(theirs.RowwiseParallel):
    """``RowwiseParallel`` of torch, whose linear layers end in the sum over ranks, all-reduce or reduce-scatter.

    A layer whose depth the ranks do not divide, or that is not an ``nn.Linear``, is left to torch.
    """

    def __init__(
        self, context: Context, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:  # fmt: skip
        """All but ``context`` is as in torch."""
        super().__init__(
            input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output
        )  # fmt: skip
        self.context = context

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not takes(module, "in_features", device_mesh, self.context):
            return super()._apply(module, device_mesh)
        distribute_module(module, device_mesh, self._partition_linear_fn)
        layouts = Layouts(
            self.context, device_mesh, self.input_layouts[0], self.output_layouts[0], self.use_local_output
        )  # fmt: skip
        return become(module, RowwiseLinear, layouts)


class SharedInput(theirs.PrepareModuleInput):
    """Hands on what ranks share out; the linear layers below that take the very same tensor gather it once.

    The module must not write into its input between two of its layers.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        gathered = Gathered(module)
        for each in gathered.linear:
            cast(Any, each).gathered = gathered
        module.register_forward_hook(gathered.forget, always_call=True)
        return super()._apply(module, device_mesh)


@overload
def tuned(
    plan: Style, context: Context, *, keep_gathered: bool = False, share_gather: bool = False, tune: str | None = None
) -> Style: ...
@overload
def tuned(
    plan: Mapping[str, Style],
    context: Context,
    *,
    keep_gathered: bool = False,
    share_gather: bool = False,
    tune: str | None = None,
) -> dict[str, Style]: ...
def tuned(
    plan: Style | Mapping[str, Style],
    context: Context,
    *,
    keep_gathered: bool = False,
    share_gather: bool = False,
    tune: str | None = None,
) -> Style | dict[str, Style]:
    """A plan of ``parallelize_module`` with our styles in the place of torch's own.

    ``PrepareModuleInput`` no longer gathers what it hands on as a DTensor: the linear layers do so, within their GEMMs;
    with ``share_gather`` the first of them for all (``SharedInput``). Other styles, subclasses of torch's among them,
    stay as they are. ``tune``, like 60s: the first forwards tune what they call, see ``Context.tune_first_calls``.
    """
    if tune is not None:
        context.tune_first_calls(tune)
    if isinstance(plan, Mapping):
        return {name: _tuned(style, context, keep_gathered, share_gather) for name, style in plan.items()}
    return _tuned(plan, context, keep_gathered, share_gather)


def _tuned(style: Style, context: Context, keep_gathered: bool, share_gather: bool) -> Style:
    if type(style) is theirs.ColwiseParallel:
        return ColwiseParallel(
            context, input_layouts=style.input_layouts[0], output_layouts=style.output_layouts[0],
            use_local_output=style.use_local_output, keep_gathered=keep_gathered,
        )  # fmt: skip
    if type(style) is theirs.RowwiseParallel:
        return RowwiseParallel(
            context, input_layouts=style.input_layouts[0], output_layouts=style.output_layouts[0],
            use_local_output=style.use_local_output,
        )  # fmt: skip
    if type(style) is theirs.PrepareModuleInput and not style.use_local_output and style.input_layouts is not None:
        kind = SharedInput if share_gather else theirs.PrepareModuleInput
        return kind(
            input_layouts=style.input_layouts,
            desired_input_layouts=tuple(map(_left_shared, style.input_layouts, style.desired_input_layouts or ())),
            input_kwarg_layouts=style.input_kwarg_layouts,
            desired_input_kwarg_layouts=style.desired_input_kwarg_layouts,
        )
    return style


def _left_shared(given: Placement | None, desired: Placement | None) -> Placement | None:
    """The layout of a module's input without the gather."""
    return given if isinstance(given, Shard) and isinstance(desired, Replicate) else desired


def check_mesh(mesh: DeviceMesh, context: Context) -> None:
    """Raise InputError where the context is not that of the mesh."""
    ranks = tuple(mesh.mesh.flatten().tolist())
    if mesh.ndim != 1 or ranks != context.ranks:
        raise InputError(
            f"the mesh has the ranks {ranks} in {mesh.ndim} dimensions, the context {context.ranks}: open the context "
            "with Context(group=mesh), of a mesh of one dimension"
        )


def takes(module: nn.Module, features: str, mesh: DeviceMesh, context: Context) -> bool:
    """True if our kernels take a layer. Raises InputError where the context is not that of the mesh."""
    check_mesh(mesh, context)
    plain = type(module) is nn.Linear and "forward" not in vars(module)  # a forward of its own calls the one of before
    if plain and getattr(module, features) % mesh.size() == 0:
        return True
    LOG.info(
        "%s is left to torch: %d ranks do not divide it evenly, it is not an nn.Linear, or it has a forward of its own",
        module, mesh.size(),
    )  # fmt: skip
    return False


def become(module: nn.Module, kind: type[nn.Linear], layouts: Layouts) -> nn.Module:
    """The linear layer, of this kind from now on; its parameters and hooks stay."""
    module.__class__ = kind
    made = cast(Any, module)
    made.layouts = layouts
    return module


def is_shard(layout: Placement, dim: int, dims: int) -> bool:
    """True if the layout shares out this dimension of ``dims``."""
    return isinstance(layout, Shard) and layout.dim % dims == dim


def local(tensor: Any) -> Any:
    """A rank's part of a DTensor; anything else as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
