"""Run as a program: compiles all launches of the probe of transports for Hopper, and prints their number."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from autotune.kernels.launching.plan import compile_offline_for
from autotune.machine import H100

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import transports as bench
from transport_kernels import POINTERS, TMA, TMA_ADD


def meta(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def main() -> None:
    compile_offline_for(H100)
    launches = []
    for way in (POINTERS, TMA, TMA_ADD):
        dtype = torch.float32 if way == TMA_ADD else torch.int32
        for block in bench.BLOCKS:
            launches.append(
                bench.send_launch(meta(256, 1024, dtype=dtype), meta(256, 1024, dtype=dtype), way, block, 8)
            )
    launches.append(bench.add_launch(meta(64, dtype=torch.float32), meta(64, dtype=torch.float32), 2))
    for name in bench.WAYS:
        for words in (64, 4096):
            inbox = meta(3 * 2 * words, dtype=torch.int64 if name == "LL" else torch.int32)
            launches.append(
                bench.message_launch(
                    name, meta(2 * words), inbox, inbox, meta(2), meta(2, dtype=torch.int64),
                    meta(8, dtype=torch.int64), words, rank=0, bases=meta(2, dtype=torch.int64), turn=0, messages=3,
                )
            )  # fmt: skip
    for launch in launches:
        launch.compile()
    print(len(launches))


if __name__ == "__main__":
    main()
