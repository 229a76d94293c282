"""Models of Hugging Face transformers, their tensor-parallel plans on our styles (``iris-autotune[transformers]``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from autotune.errors import InputError
from autotune.kernels.primitives.gated import OAI_ALPHA, OAI_LIMIT
from autotune.nn.block_fp8 import check_share, see_through
from autotune.nn.experts import GPT_OSS, MIXTRAL, ExpertForm, ExpertParallel, expert_parallel
from autotune.nn.styles import ColwiseLinear, Layouts, RowwiseLinear, become, check_mesh, takes
from autotune.runtime.call import needs_gradient
from autotune.runtime.context import Context

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

LOG = logging.getLogger("autotune")

EXCHANGES = ("auto", "all_to_all", "all_reduce")
"""Transformers' names of ways in which tokens reach experts; ours takes their place."""

ADVICE = "pip install 'iris-autotune[transformers]'"


@contextmanager
def tuned(context: Context) -> Iterator[None]:
    """Within it ``from_pretrained(…, distributed_config=…)`` parallelises linear layers and experts by our kernels.

    Every name in transformers' registry of styles that means its ``ColwiseParallel`` or ``RowwiseParallel`` means ours,
    with the same layouts; and so does every one of ``EXCHANGES`` in its registry of expert parallelism, from 5.23 on.
    Raises InputError where transformers has no registry of styles, and, as it loads, what ``check_share`` raises.
    """
    api = _their_api()
    ours = {
        api.ColwiseParallel: _style(api.ColwiseParallel, ColwiseLinear, "out_features", context),
        api.RowwiseParallel: _style(api.RowwiseParallel, RowwiseLinear, "in_features", context),
    }
    registry = api.ALL_PARALLEL_STYLES
    before = {name: registry[name] for name in registry}
    for name, style in before.items():
        if type(style) in ours:
            layouts = {each: getattr(style, each) for each in ("input_layouts", "output_layouts", "use_local_output")}
            registry.register(name, ours[type(style)](**layouts))
    exchanges, theirs = _their_exchanges()
    for name, exchange in theirs.items():
        exchanges.register(name, _exchange(exchange, context))
    try:
        yield
    finally:
        for name, style in before.items():
            registry.register(name, style)
        for name, exchange in theirs.items():
            exchanges.register(name, exchange)


def parallelize(model: Any, mesh: DeviceMesh, context: Context) -> Any:
    """Share out a model that every rank has whole, by its own tensor-parallel plan, and return it.

    Experts that ``share_experts`` has shared out stay as they are. Raises InputError where the model has no such plan,
    and for fp8 by blocks that ranks cannot share out, see ``check_share``.
    """
    if not model.tp_plan:
        raise InputError(f"{type(model).__name__} has no tensor-parallel plan (tp_plan)")
    for module in model.modules():
        see_through(module)
    with tuned(context):
        return shared_out(model, mesh)


def share_experts(model: Any, context: Context, **options: Any) -> Any:
    """Share out the experts of a mixture that every rank has whole, by ``ExpertParallel``, and return it; inference.

    All else stays whole, and each rank forwards its own sequences, as many tokens as the others; or, with
    ``replicated=True``, all ranks the same. ``options`` are those of ``ExpertParallel``. Raises InputError where the
    model has no experts, or others than pairs of matrices with SwiGLU, or gpt-oss' form of it, between them.
    """
    named = {name: module for name, module in model.named_modules() if _are_experts(module)}
    if not named:
        raise InputError(
            f"{type(model).__name__} has no experts: modules with a gate_up_proj [experts, 2 * width, hidden] and a "
            "down_proj [experts, hidden, width]"
        )
    forms = {name: _form(experts) for name, experts in named.items()}
    for name, form in forms.items():
        if isinstance(form, str):
            raise InputError(f"{name}, a {type(named[name]).__name__}: {form}")
    for name, experts in named.items():
        ours = ExpertParallel.from_experts(experts, context, form=forms[name], **options)
        model.set_submodule(name, ours.train(experts.training))
    return model


def _are_experts(module: Any) -> bool:
    shapes = [getattr(getattr(module, name, None), "ndim", 0) for name in ("gate_up_proj", "down_proj")]
    return shapes == [3, 3] and not isinstance(module, ExpertParallel)


def _form(experts: Any) -> ExpertForm | str:
    """The form of these experts, or the reason why our layer does not compute it."""
    from transformers.activations import SiLUActivation
    from transformers.integrations.moe import _default_apply_gate
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    if isinstance(experts, GptOssExperts):
        clamped = {name: getattr(experts, name) for name in ("alpha", "limit")}
        if clamped != {"alpha": OAI_ALPHA.value, "limit": OAI_LIMIT.value}:
            return f"alpha and limit are {clamped}; {OAI_ALPHA.value} and {OAI_LIMIT.value} are needed"
        return GPT_OSS
    if not isinstance(getattr(experts, "act_fn", None), SiLUActivation | nn.SiLU):
        return f"the activation is {getattr(experts, 'act_fn', None)}; SiLU is needed"
    if getattr(type(experts), "_apply_gate", None) is not _default_apply_gate:
        return "gate and up meet in a way of their own; SiLU(gate) * up is needed"
    if getattr(experts, "has_post_expert_norm", False):
        return "has_post_expert_norm is True; False is needed"
    return ExpertForm(
        gate_up="halves" if getattr(experts, "is_concatenated", True) else "interleaved",
        bias=getattr(experts, "has_bias", False),
        transposed=getattr(experts, "is_transposed", False),
    )


def shared_out(model: Any, mesh: DeviceMesh) -> Any:
    """Apply the styles that are in transformers' registry now; outside of ``tuned`` these are its own.

    A tied weight is shared out by its first name, and stays tied.
    """
    api, tied = _their_api(), _tied(model)
    if not hasattr(model, "_resolve_parallel_plans"):  # before 5.18 the plan was read off the model
        model = api.apply_tensor_parallelism(model, mesh)
    else:
        from transformers.distributed.configuration_utils import DistributedConfig

        plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh.size()))
        ours = [f"{name}." for name, module in model.named_modules() if isinstance(module, ExpertParallel)]
        left = {name for name in plan if name in tied or f"{name}.".startswith(tuple(ours))}
        plan = {name: style for name, style in plan.items() if name not in left}
        model = api.apply_tensor_parallelism(model, mesh, plan)
    for name, first in tied.items():
        holder, _, own = name.rpartition(".")
        setattr(model.get_submodule(holder), own, model.get_parameter(first))
    return model


def _tied(model: nn.Module) -> dict[str, str]:
    """The first name of each parameter that has several, by each other one."""
    first: dict[nn.Parameter, str] = {}
    named = list(model.named_parameters(remove_duplicate=False))
    return {name: first[each] for name, each in named if first.setdefault(each, name) != name}


def _style(theirs: Any, kind: type[nn.Linear], features: str, context: Context) -> type[Any]:
    """A subclass of theirs: parameters are shared out as there, forwards are ours where our kernels take a layer."""

    class Ours(theirs):  # type: ignore[misc]
        def install_forward(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
            check_share(module, features, mesh.size())
            see_through(module)
            if not takes(module, features, mesh, context):
                return super().install_forward(module, mesh)  # type: ignore[no-any-return]
            layouts = Layouts(context, mesh, self.input_layouts, self.output_layouts, self.use_local_output)
            return become(module, kind, layouts)

    return Ours


def _their_exchanges() -> tuple[Any, Mapping[str, Any]]:
    """The registry of expert parallelism, and what it has by ``EXCHANGES``; nothing before transformers 5.23."""
    try:
        from transformers.distributed.expert_parallel import EPImplementationInterface
    except ImportError:
        return None, {}
    known = EPImplementationInterface()
    return EPImplementationInterface, {name: known[name] for name in EXCHANGES if name in known}


def _exchange(theirs: Any, context: Context) -> Any:
    """A subclass of theirs that runs the experts by our kernels where these compute the same, without a gradient."""

    class Exchange(theirs):  # type: ignore[misc]
        def __init__(self, experts: Any, ep_mesh: DeviceMesh, tp_mesh: DeviceMesh) -> None:
            super().__init__(experts, ep_mesh, tp_mesh)
            check_mesh(ep_mesh, context)
            form = _form(experts)
            reason, self.form = (form, MIXTRAL) if isinstance(form, str) else ("", form)
            if not reason and tp_mesh.size() > 1 and not self.shares_batch:
                reason = "some of its ranks, but not all, share a batch"
            if reason:
                LOG.info("%s is left to transformers: %s", type(experts).__name__, reason)
            self.experts = None if reason else experts

        def __call__(self, hidden: Any, ids: Any, weights: Any) -> Any:
            ours = self.experts
            if ours is None or needs_gradient((hidden, weights, ours.gate_up_proj, ours.down_proj)):
                return super().__call__(hidden, ids, weights)
            gate_up, down, *biases = (getattr(ours, name) for name in self.form.parameters)
            return expert_parallel(
                context, hidden, ids, weights, gate_up, down, biases=biases, form=self.form,
                replicated=self.shares_batch,
            )  # fmt: skip

    return Exchange


def _their_api() -> Any:
    try:
        from transformers.distributed import tensor_parallel
    except ImportError as error:
        raise InputError(
            f"transformers with transformers.distributed.tensor_parallel is missing ({error}): {ADVICE}"
        ) from error
    return tensor_parallel
