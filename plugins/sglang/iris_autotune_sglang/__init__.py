"""iris-autotune in SGLang 0.5.23: tuned GEMM + collective kernels in tensor parallel layers, where they are faster.

    pip install iris-autotune-sglang && python -m sglang.launch_server --model-path MODEL --tp 2

``IRIS_AUTOTUNE_SGLANG=0`` switches it off.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from autotune.compiled.served import CALLS as CALLS  # by operator: calls of our kernel, and those that were declined
from autotune.compiled.served import ours, turned

Tensor = torch.Tensor

LOG = logging.getLogger(__name__)

SWITCH = "IRIS_AUTOTUNE_SGLANG"
LAYER = "sglang.srt.layers.linear.RowParallelLinear.forward"
LEFT = "iris_autotune_left"
NORM = "sglang.srt.layers.flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm"


def register() -> None:
    """The plugin, in each of SGLang's processes."""
    if os.environ.get(SWITCH, "1").strip().lower() in ("0", "off", "false", "no"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(LAYER, around_layer, HookType.AROUND)
    HookRegistry.register(NORM, around_norm, HookType.AROUND)
    LOG.info("iris-autotune: beside %s and %s; %s=0 switches it off", LAYER, NORM, SWITCH)


def around_layer(
    original: Callable[..., Any], layer: Any, input_: Tensor, skip_all_reduce: bool = False, forward_batch: Any = None,
    output_tensor: Tensor | None = None,
) -> Any:  # fmt: skip
    """``gemm_all_reduce`` in place of a row-parallel layer whose results are all-reduced as they are."""
    group = None
    if not skip_all_reduce and output_tensor is None and input_.dim() == 2 and not torch.compiler.is_compiling():
        group = _reducing(layer, forward_batch)
    if group is not None:
        bias = None if layer.skip_bias_add else layer.bias
        result = ours("gemm_all_reduce", group, {"a": input_, "b": turned(layer.weight), "bias": bias}, LOG)
        if result is not None:
            return result, layer.bias if layer.skip_bias_add else None
    return original(layer, input_, skip_all_reduce, forward_batch, output_tensor)


def around_norm(
    original: Callable[..., Any], input_tensor: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6,
    max_token_num: int = 2048, use_oneshot: bool | None = None, trigger_completion_at_end: bool = False,
    fp32_acc: bool = True, use_attn_tp_group: bool = True,
) -> Any:  # fmt: skip
    """``all_reduce_norm`` in place of FlashInfer's, also where that is not to be had. Returns norm and total."""
    from sglang.srt.layers.flashinfer_comm_fusion import resolve_fusion_group

    world_size, _, group = resolve_fusion_group(use_attn_tp_group=use_attn_tp_group)
    if world_size > 1:
        operands = {"x": input_tensor, "residual": residual, "weight": weight}
        result = ours("all_reduce_norm", group, operands, LOG, eps=eps)
        if result is not None:
            return result
    return original(
        input_tensor, residual, weight, eps, max_token_num=max_token_num, use_oneshot=use_oneshot,
        trigger_completion_at_end=trigger_completion_at_end, fp32_acc=fp32_acc, use_attn_tp_group=use_attn_tp_group,
    )  # fmt: skip


def _reducing(layer: Any, forward_batch: Any) -> Any:
    """The group over which the layer would all-reduce its results, as ``RowParallelLinear.forward`` decides; None where
    it does something else.
    """
    if LEFT not in vars(layer):  # known at the first call, when the weights are where they stay
        vars(layer)[LEFT] = _left(layer)
    should_skip_mlp_all_reduce, get_exec, get_forward, get_parallel = _state()
    if vars(layer)[LEFT] or get_forward().sp_active or should_skip_mlp_all_reduce():
        return None
    if forward_batch is not None and not layer.use_dp_attention_reduce:
        if get_exec().comm.enable_quant_communications and not forward_batch.forward_mode.is_decode_or_idle():
            return None
    parallel = get_parallel()
    group = parallel.attn_tp_group if layer.use_dp_attention_reduce else parallel.tp_group
    return group if group.world_size == layer.tp_group.world_size > 1 else None


@functools.cache
def _state() -> tuple[Callable[[], Any], ...]:
    """SGLang's, which can be imported once it runs."""
    from sglang.srt.layers.moe.utils import should_skip_mlp_all_reduce
    from sglang.srt.runtime_context import get_exec, get_forward, get_parallel

    return should_skip_mlp_all_reduce, get_exec, get_forward, get_parallel


def _left(layer: Any) -> bool:
    """True if our operator does not compute what a layer does; the reason is told once."""
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    reasons = {
        "its results are not reduced": not layer.reduce_results,
        "its input is not sharded": not layer.input_is_parallel,
        "it is not shared out": layer.tp_group is None,
        f"its weights are of {type(layer.quant_method).__name__}": (
            type(layer.quant_method) is not UnquantizedLinearMethod
        ),
    }
    left = ", ".join(reason for reason, holds in reasons.items() if holds)
    _tell(f"RowParallelLinear left: {left}" if left else "RowParallelLinear taken")
    return bool(left)


@functools.cache
def _tell(what: str) -> None:
    LOG.info("iris-autotune: %s", what)
