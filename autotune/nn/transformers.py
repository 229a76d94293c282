"""Models of Hugging Face transformers, their tensor-parallel plans on our styles (``iris-autotune[transformers]``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autotune.errors import InputError
from autotune.nn.styles import ColwiseLinear, Layouts, RowwiseLinear, become, takes
from autotune.runtime.context import Context

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

ADVICE = "pip install 'iris-autotune[transformers]'"


@contextmanager
def tuned(context: Context) -> Iterator[None]:
    """Within it ``from_pretrained(…, distributed_config=…)`` parallelises linear layers by our styles.

    Every name in transformers' registry of styles that means its ``ColwiseParallel`` or ``RowwiseParallel`` means ours,
    with the same layouts. Raises InputError where transformers has no such registry.
    """
    api = _their_api()
    colwise, rowwise = _styles(api, context)
    registry = api.ALL_PARALLEL_STYLES
    before = {name: registry[name] for name in registry}
    for name, style in before.items():
        if type(style) is api.ColwiseParallel:
            registry.register(name, colwise(**_layouts(style)))
        elif type(style) is api.RowwiseParallel:
            registry.register(name, rowwise(**_layouts(style)))
    try:
        yield
    finally:
        for name, style in before.items():
            registry.register(name, style)


def parallelize(model: Any, mesh: DeviceMesh, context: Context) -> Any:
    """Share out a model that every rank has whole, by its own tensor-parallel plan, and return it.

    Raises InputError where the model has no such plan.
    """
    if not model.tp_plan:
        raise InputError(f"{type(model).__name__} has no tensor-parallel plan (tp_plan)")
    with tuned(context):
        return shared_out(model, mesh)


def shared_out(model: Any, mesh: DeviceMesh) -> Any:
    """The same by the styles that are in transformers' registry now; outside of ``tuned`` these are its own."""
    api = _their_api()
    if not hasattr(model, "_resolve_parallel_plans"):  # before 5.18 the plan was read off the model
        return api.apply_tensor_parallelism(model, mesh)
    from transformers.distributed.configuration_utils import DistributedConfig

    plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh.size()))
    return api.apply_tensor_parallelism(model, mesh, plan)


def _layouts(style: Any) -> dict[str, Any]:
    return {name: getattr(style, name) for name in ("input_layouts", "output_layouts", "use_local_output")}


def _styles(api: Any, context: Context) -> tuple[type[Any], type[Any]]:
    """Subclasses of theirs: parameters are shared out as there, forwards are ours where our kernels take a layer."""

    class Colwise(api.ColwiseParallel):  # type: ignore[misc]
        def install_forward(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
            if not takes(module, "out_features", mesh, context):
                return super().install_forward(module, mesh)  # type: ignore[no-any-return]
            layouts = Layouts(context, mesh, self.input_layouts, self.output_layouts, self.use_local_output)
            return become(module, ColwiseLinear, layouts)

    class Rowwise(api.RowwiseParallel):  # type: ignore[misc]
        def install_forward(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
            if not takes(module, "in_features", mesh, context):
                return super().install_forward(module, mesh)  # type: ignore[no-any-return]
            layouts = Layouts(context, mesh, self.input_layouts, self.output_layouts, self.use_local_output)
            return become(module, RowwiseLinear, layouts)

    return Colwise, Rowwise


def _their_api() -> Any:
    try:
        from transformers.distributed import tensor_parallel
    except ImportError as error:
        raise InputError(
            f"transformers with transformers.distributed.tensor_parallel is missing ({error}): {ADVICE}"
        ) from error
    from transformers import PreTrainedModel, __version__

    if not hasattr(PreTrainedModel, "_resolve_parallel_plans"):
        raise InputError(f"transformers {__version__} resolves no parallel plans; 5.23 or newer is needed: {ADVICE}")
    return tensor_parallel
