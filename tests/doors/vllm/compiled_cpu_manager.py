"""vLLM's pass manager without its last step, which names operators that only its GPU builds have."""

from __future__ import annotations

from typing import Any

from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.compilation.passes.pass_manager import PostGradPassManager


class Nothing(InductorPass):
    def __call__(self, graph: Any) -> None:
        pass


class Manager(PostGradPassManager):
    def configure(self, config: Any) -> None:
        super().configure(config)
        self.fix_functionalization = Nothing()
