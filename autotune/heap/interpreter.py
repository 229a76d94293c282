"""Patches two gaps of Triton's interpreter for rank processes that share memory."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def mend_interpreter() -> None:
    """Replace the interpreter's write-back, and let its ``dot`` multiply bf16. Triton has no switch for either.

    Write-back: the interpreter copies arguments to the host and back after a launch. It copies host tensors onto
    themselves, which would undo the stores of peers into them.

    bf16: NumPy has no such type; the interpreter keeps the bits as uint16, and its ``dot`` would multiply those
    integers.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter.GridExecutor._restore_args_dev = lambda *_: None
    builder = type(interpreter.interpreter_builder)
    dot = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        def widened(operand: Any) -> Any:
            if operand.dtype.scalar != tl.bfloat16:
                return operand
            return self.create_fp_ext(operand, tl.block_type(tl.float32, list(operand.data.shape)))

        return dot(self, widened(a), widened(b), *rest)

    builder.create_dot = create_dot
