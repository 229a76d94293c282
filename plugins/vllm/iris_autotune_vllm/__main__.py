"""Prints vLLM's compilation config for what is tuned here: ``python -m iris_autotune_vllm --tp 2``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from autotune.compiled import served
from autotune.errors import AutotuneError
from iris_autotune_vllm import tables


def compilation_config(tensor_parallel_size: int, hidden_size: int | None = None) -> dict[str, Any]:
    """Our pass; a graph for each range of sizes that our borders make; and vLLM's fused all-reduce + norm left out,
    which would take the all-reduces before our pass sees them. ``hidden_size`` leaves out what is tuned for other
    models, whose ranges would be compiled, too. Raises what a look-up raises.
    """
    return {
        "inductor_passes": {"post_grad_custom_post_pass": "iris_autotune_vllm.PASS"},
        "compile_ranges_endpoints": tables.borders(served.tuned(tensor_parallel_size), hidden_size),
        "pass_config": {"fuse_allreduce_rms": False},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m iris_autotune_vllm", description=__doc__)
    parser.add_argument("--tp", type=int, required=True, help="vLLM's --tensor-parallel-size")
    parser.add_argument("--hidden-size", type=int, help="the model's, where others are tuned, too")
    arguments = parser.parse_args()
    if arguments.tp < 2:
        parser.error(f"--tp {arguments.tp}: with less than 2 ranks nothing is reduced")
    try:
        print(json.dumps(compilation_config(arguments.tp, arguments.hidden_size)))
    except AutotuneError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
