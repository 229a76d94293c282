"""The host cost of a warm launch: by hand, by our decorator and by Triton's, with 5 and with 22 arguments.

    python bench/launch_path.py [--kernel stand-in]

With a GPU the kernel is a real one that does nothing, and the times are those of whole launches. Without one, or with
``--kernel stand-in``, a Python object with a JITFunction's interface stands for it: its launch does nothing at all, so
that what is left over is the decorators' own layer. The best of many rounds counts, each way in turn.
"""

from __future__ import annotations

import inspect
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from arguments import need_gpu, new_parser
from in_turns import best
from tables import head, row
from triton.runtime.jit import KernelInterface

import autotune
from autotune.machine import machine

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (64, 128)]
KEY = ["m", "n"]
ROUNDS, LAUNCHES = 30, 2000


@triton.jit
def short(a, b, m, n, stride, BLOCK: tl.constexpr):
    pass


@triton.jit
def long(
    a, b, c, m, n, k, s0, s1, s2, s3, s4, s5, alpha, beta, o0, o1, o2, o3, o4, o5, o6, o7, BLOCK: tl.constexpr,
):  # fmt: skip
    pass


class StandIn(KernelInterface[Any]):
    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.arg_names = list(inspect.signature(function).parameters)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        pass


def compare(kernel: Any, tensors: int, device: str, db: str) -> tuple[dict[str, float], float]:
    """The three ways' microseconds, and milliseconds of the key's first look-up with all in the database."""
    numbers = len(kernel.arg_names) - 1 - tensors
    args = (*(torch.empty(16, device=device) for _ in range(tensors)), *range(1024, 1024 + numbers))
    bench = {"do_bench": lambda call, quantiles: [1.0, 1.0, 1.0]}
    ours, stock = (
        autotune.autotune(CONFIGS, KEY, db=db, **bench)(kernel),
        triton.autotune(CONFIGS, KEY, **bench)(kernel),
    )
    for tuner in (ours, stock):
        tuner[(1,)](*args)
    ours.forget()
    begin = time.perf_counter()
    ours[(1,)](*args)
    first = (time.perf_counter() - begin) * 1e3
    options = ours.best_config.all_kwargs()
    ways = {
        "by hand": lambda: kernel[(1,)](*args, **options),
        "autotune": lambda: ours[(1,)](*args),
        "triton": lambda: stock[(1,)](*args),
    }
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    return best(ways, settle, ROUNDS, LAUNCHES), first


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--kernel", choices=("real", "stand-in"), help="default: real where there is a GPU")
    real = (parser.parse_args().kernel or ("real" if torch.cuda.is_available() else "stand-in")) == "real"
    if real:
        need_gpu(parser, "--kernel real", "; --kernel stand-in does without")
    print(f"{machine().device if real else 'a stand-in for the kernel'}, {platform.machine()}, Python "
          f"{platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}\n")  # fmt: skip
    print(head(["arguments", "by hand, µs", "autotune, µs", "over by hand", "triton, µs", "over by hand",
                "first look-up, ms"]))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for function, tensors in ((short, 2), (long, 3)):
            kernel = function if real else StandIn(function.fn)
            took, first = compare(kernel, tensors, "cuda" if real else "cpu", str(Path(folder, "cache.db")))
            hand, ours, stock = took["by hand"], took["autotune"], took["triton"]
            times = (hand, ours, ours - hand, stock, stock - hand)
            print(row([len(kernel.arg_names) - 1, *(f"{time:.2f}" for time in times), f"{first:.1f}"]))


if __name__ == "__main__":
    main()
