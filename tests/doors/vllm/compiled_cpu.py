"""For tests alone: vLLM's CPU platform compiled as on a GPU, so that a pass sees the graphs that it will see there.

The CPU platform hands the graph to plain inductor, reduces in place by a custom operator, multiplies by oneDNN's, and
writes norms out. Here collectives, norms and GEMMs are the nodes that they are on CUDA.
"""

from __future__ import annotations

import os
from typing import Any

from vllm.platforms.cpu import CpuPlatform


def platform() -> str | None:
    return "compiled_cpu.CompiledCpu" if os.environ.get("TEST_COMPILED_CPU") else None


class CompiledCpu(CpuPlatform):
    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        return True

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        return "compiled_cpu_manager.Manager"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        from vllm.config import CompilationMode

        compilation = vllm_config.compilation_config
        wanted = compilation.mode
        super().check_and_update_config(vllm_config)
        if wanted == CompilationMode.VLLM_COMPILE:
            compilation.mode = wanted
            compilation.backend = "inductor"
            compilation.ir_enable_torch_wrap = True
            compilation.compile_sizes = []


def change_operators() -> None:
    """A plugin: GEMMs by torch, since oneDNN's take the weights away; and where graphs are compiled, all-reduces out of
    place: a custom operator must not return what it was given.
    """
    import vllm._custom_ops as operators
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    operators._supports_onednn = False
    if platform() is not None and not hasattr(CpuCommunicator, "in_place"):
        CpuCommunicator.in_place = CpuCommunicator.all_reduce
        CpuCommunicator.all_reduce = lambda self, x: self.in_place(x.clone())
