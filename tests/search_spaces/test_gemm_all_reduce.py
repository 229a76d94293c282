"""The space of GEMM + all-reduce at its edges."""

from __future__ import annotations

from edges import Edges

from autotune.config import Config
from autotune.machine import H100, MI300X

PUSH = Config({
    "mode": "one_shot", "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 2, "group_m": 1, "num_warps": 4,
    "num_stages": 4, "loads": "pointer", "schedule": "tile", "programs_per_unit": 1, "combine": "sender",
    "protocol": "signal",
})  # fmt: skip


COLLECTIVE = Config({
    "mode": "custom_collective", "exchange": "one_shot", "protocol": "signal", "transfer_rows": 8192,
    "sum_block": 8192, "sum_warps": 8,
})  # fmt: skip
MANY = {"m": 8192, "k": 8192}
"""Each rank's part of C is 128 MiB, so two slots for 8 ranks are 2 GiB."""
LARGE = PUSH.replace(block_m=128, block_n=128, num_warps=8, split_k=1, block_k=64, num_stages=2)


class TestGemmAllReduce(Edges):
    name = "gemm_all_reduce"
    sizes = {"m": 16, "n": 8192, "k": 28672, "world_size": 8}
    # fmt: off
    rows = [
        (LARGE, MANY, H100, None),
        (LARGE, {**MANY, "m": 8193}, H100, "size of the inbox"),
        (LARGE, {**MANY, "out_dtype": "fp32"}, H100, "size of the inbox"),
        (LARGE.replace(mode="two_shot"), {**MANY, "m": 4 * 8192}, H100, None),  # as large as two parts of C
        (LARGE.replace(mode="two_shot"), {**MANY, "m": 4 * 8192 + 1}, H100, "size of the inbox"),
        (COLLECTIVE, MANY, H100, None),
        (COLLECTIVE.replace(transfer_rows=16384), {**MANY, "m": 16384}, H100, "size of the blocks' inbox"),
        (COLLECTIVE, {**MANY, "m": 16384}, H100, None),  # one chunk after the other
        (COLLECTIVE.replace(protocol="ll", sum_block=512), MANY, H100, "size of the blocks' inbox"),
        (COLLECTIVE.replace(transfer_rows=1024), MANY, H100, None),
        (COLLECTIVE.replace(transfer_rows=512), MANY, H100, "chunks"),  # more than 8 of them
        (COLLECTIVE.replace(transfer_rows=64), {"m": 96}, H100, "chunks"),  # not all of as many rows
        (COLLECTIVE.replace(transfer_rows=32), {"m": 96}, H100, None),
        (COLLECTIVE.replace(transfer_rows=128), {"m": 96}, H100, None),
        (COLLECTIVE.replace(transfer_rows=256), {"m": 96}, H100, "chunks"),
        (COLLECTIVE.replace(transfer_rows=16, sum_block=2048), {"n": 64}, H100, "a block within a chunk"),
        (COLLECTIVE.replace(transfer_rows=16, sum_block=512), {"m": 1, "n": 64}, H100, None),
        (COLLECTIVE.replace(transfer_rows=16, sum_block=1024), {"m": 1, "n": 64}, H100, "a block within a chunk"),
        # 64 LL words of 4 bytes of data for each of 128 threads, of 8 ranks; sentinels hold twice as much.
        (PUSH.replace(protocol="ll", block_n=128), {}, H100, None),
        (PUSH.replace(protocol="sentinel", block_n=256, num_stages=2), {}, H100, None),
        (PUSH.replace(protocol="sentinel", block_n=256, num_stages=2), {"out_dtype": "fp32"}, H100, "LL words fit"),
        (COLLECTIVE.replace(protocol="ll", transfer_rows=16, sum_block=4096), {}, H100, None),
        (COLLECTIVE.replace(protocol="ll", transfer_rows=16), {}, H100, "LL words of blocks fit"),
        (COLLECTIVE.replace(protocol="sentinel", transfer_rows=16), {}, H100, None),
        (PUSH.replace(protocol="ll"), {"wire": "fp8"}, H100, "LL words of fp8"),
        (PUSH.replace(protocol="ll"), {}, MI300X, "LL words arrive"),
        (PUSH.replace(protocol="ll", block_n=256, num_stages=2), {}, H100, "LL words fit"),
        (PUSH.replace(programs_per_unit=2), {}, H100, "persistence"),
        (PUSH.replace(schedule="persistent", programs_per_unit=2, split_k=4), {}, H100, "residency"),
        (PUSH.replace(schedule="persistent", programs_per_unit=2, split_k=4, combine="separate"), {}, H100, None),
        (PUSH.replace(schedule="persistent", split_k=1), {"n": 132 * 64}, H100, "persistence"),
        (PUSH.replace(schedule="persistent", split_k=1), {"n": 133 * 64}, H100, None),
        (PUSH.replace(schedule="persistent", programs_per_unit=2, split_k=1), {"n": 265 * 64}, H100, None),
        (COLLECTIVE.replace(transfer_rows=16), {"world_size": 1}, H100, "parts of peers"),
    ]
    # fmt: on
