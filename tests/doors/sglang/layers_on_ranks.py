"""SGLang's own layers on two CPU ranks, before the plugin and with it: ``python layers_on_ranks.py RANK PORT ANSWER``.

Without sgl-kernel and an engine; its names for parallel widths are of 0.5.23.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

# torchvision must be importable; a wheel for CUDA beside a CPU's torch lacks its operators, and fails without these.
if not hasattr(torch.ops.torchvision, "nms"):
    MISSING = torch.library.Library("torchvision", "DEF")
    for each in ("nms", "qnms"):
        MISSING.define(f"{each}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fakes import begun, latency_of
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import flashinfer_comm_fusion, layernorm
from sglang.srt.layers.linear import RowParallelLinear
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_parallel

from autotune.db import Store, Winner
from autotune.machine import machine
from autotune.settings import default_database_url
from autotune.task import Task
from autotune.workloads import workload

WIDTHS = {
    "tp_size": 2, "pp_size": 1, "moe_ep_size": 1, "attn_dp_size": 1, "attn_cp_size": 1, "moe_dp_size": 1,
    "attn_dcp_size": 1, "shared_experts_tp_size": 1, "attn_tp_size": 2, "moe_tp_size": 2,
}  # fmt: skip
DEPTH, COLUMNS, TOKENS = 64, 128, 8
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def no_flashinfer(*_: Any, **__: Any) -> tuple[None, None]:
    """The answer of SGLang's function without FlashInfer, in place of an operator that has no kernel for CPUs."""
    return None, None


def fill() -> None:
    """A database in which ours win at 8 tokens, and the library at one."""
    here, sizes = machine(), {"n": COLUMNS, "world_size": 2}
    cases: list[tuple[str, dict[str, Any]]] = [
        *(("gemm_all_reduce", {**sizes, "k": DEPTH, "b_order": "nk", "bias": bias}) for bias in (False, True)),
        ("all_reduce_norm", sizes),
    ]
    with Store.open(default_database_url().removeprefix("sqlite:///")) as store:
        for name, fields in cases:
            for dtype in DTYPES:
                for m, time in ((1, 150.0), (TOKENS, 50.0)):
                    found = workload(name)
                    task = Task(found.problem_type(m=m, dtype=dtype, **fields), here)
                    ours = [each for each in found.first_configs(task) if each["mode"] != "bsp"]
                    config = next(each for each in ours if found.space.violation(each, task) is None)
                    winner = Winner(config, latency_of(time), {"bsp": latency_of(100.0)})
                    store.finish(begun(store, found, task).id, winner)


def calls(rank: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Results of layer and norm for the same inputs, in several ways of calling them."""
    generator, own = torch.Generator().manual_seed(0), slice(DEPTH // 2 * rank, DEPTH // 2 * (rank + 1))
    weight, x, residual, bias = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((COLUMNS, DEPTH), (TOKENS, DEPTH), (TOKENS, COLUMNS), (COLUMNS,))
    )
    part, found = x[:, own].contiguous(), {}
    for name in ("plain", "biased"):
        layer = RowParallelLinear(DEPTH, COLUMNS, bias=name == "biased", params_dtype=dtype)
        layer.weight.data.copy_(weight[:, own])
        if layer.bias is not None:
            layer.bias.data.copy_(bias)
        found[name] = layer(part)[0]
        found[f"{name}, one token"] = layer(part[:1])[0]
        found[f"{name}, not reduced"] = layer(part, skip_all_reduce=True)[0]
    norm = layernorm.RMSNorm(COLUMNS, eps=1e-6).to(dtype)
    for use_attn_tp_group in (True, False):
        found[f"norm, {use_attn_tp_group}"], found[f"total, {use_attn_tp_group}"] = (
            layernorm._forward_with_allreduce_fusion(
                norm, found["plain, not reduced"].clone(), residual.clone(), None, norm.weight, use_attn_tp_group
            )
        )
    return found


def main() -> None:
    rank, port, answer = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
    }
    if sys.argv[4] == "tuned" and rank == 0:
        fill()
    get_parallel().override_permanently(**WIDTHS, attn_tp_rank=rank)
    parallel_state.init_distributed_environment(world_size=2, rank=rank, local_rank=rank, backend="gloo")
    parallel_state.initialize_model_parallel(backend="gloo")
    flashinfer_comm_fusion.flashinfer_allreduce_residual_rmsnorm = no_flashinfer
    with torch.no_grad():
        before = {name: calls(rank, dtype) for name, dtype in DTYPES.items()}
        load_plugins()
        after = {name: calls(rank, dtype) for name, dtype in DTYPES.items()}
    errors = {
        f"{dtype}: {name}": float((after[dtype][name].double() - right.double()).norm() / right.double().norm())
        for dtype, found in before.items()
        for name, right in found.items()
    }
    from autotune.compiled.served import CALLS
    from autotune.runtime import symm_mem

    answer.write_text(json.dumps({"errors": errors, "calls": CALLS}))
    torch.distributed.barrier()
    symm_mem.close()


if __name__ == "__main__":
    main()
