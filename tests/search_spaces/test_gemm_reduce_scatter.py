"""The space of GEMM + reduce-scatter at its edges."""

from __future__ import annotations

from typing import Any

from edges import Edges
from fakes import LAPTOP

from autotune.config import Config
from autotune.machine import H100, MI300X, MI350X

PUSH = Config({
    "mode": "push", "block_m": 128, "block_n": 256, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 4,
    "loads": "tma", "split_k": 1, "schedule": "persistent", "peer_order": "rotate", "transfer_tiles": 4,
    "signals": "next_turn",
})  # fmt: skip
COPIES = Config({"mode": "copy_engine", "transfer_rows": 1024, "gemm_streams": 2, "sum_block": 2048, "sum_warps": 8})
AMD: dict[str, Any] = {"num_warps": 4, "num_stages": 2, "loads": "pointer"}
FLATTENED = PUSH.replace(schedule="flattened", signals="at_once")


class TestGemmReduceScatter(Edges):
    name = "gemm_reduce_scatter"
    sizes = {"m": 8192, "n": 8192, "k": 28672, "world_size": 8}
    # fmt: off
    rows = [
        *((config, {}, H100, None) for config in (PUSH, PUSH.replace(mode="pull"), FLATTENED, COPIES)),
        (PUSH, {"m": 512}, H100, "tile within an owner's rows"),
        (PUSH.replace(transfer_tiles=32), {"m": 1024, "n": 256}, H100, "transfer within an owner's tiles"),
        (PUSH.replace(schedule="flattened"), {}, H100, "next turn"),
        (FLATTENED.replace(split_k=2), {"m": 1024, "n": 2048}, H100, "flattening"),
        (PUSH.replace(schedule="tile"), {}, H100, "next turn"),
        (PUSH.replace(peer_order="interleaved"), {"world_size": 2}, H100, "order without effect"),
        (COPIES, {"world_size": 1}, H100, "parts of peers"),
        (COPIES, {"m": 512}, H100, "chunks"),
        (COPIES.replace(transfer_rows=64), {}, H100, "chunks"),
        (COPIES, {}, LAPTOP, "streams"),
        # 128 numbers for each of 256 threads: of four warps on AMD, whose warps are twice as wide.
        (PUSH.replace(**AMD), {}, MI300X, None),
        (PUSH.replace(**AMD), {}, MI350X, None),
        (PUSH.replace(**AMD), {}, H100, "registers"),
    ]
    # fmt: on
