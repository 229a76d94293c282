"""The space of all-gather + GEMM at its edges."""

from __future__ import annotations

from edges import Edges

from autotune.config import Config
from autotune.machine import H100, INTERPRETED, MI300X

PUSH = Config({
    "mode": "push", "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 1, "num_warps": 4, "num_stages": 2,
    "loads": "pointer", "split_k": 1, "preload_b": False, "schedule": "tile", "transfer_rows": 16, "k_chunks": 1,
    "comm_programs": 2, "copy_kib": 4, "peer_order": "rotate", "push_site": "same_launch", "head_start": 0,
})  # fmt: skip
PULL = Config({
    "mode": "pull", "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 1, "num_warps": 4, "num_stages": 2,
    "loads": "pointer", "schedule": "tile",
})  # fmt: skip
STAGED = Config({**{name: value for name, value in PUSH.items() if name != "push_site"}, "mode": "pull_staged"})
COPIES = Config(
    {"mode": "copy_engine", "transfer_rows": 256, "gemm_streams": 1, "copies": "pulled", "chunk_sizes": "even"}
)
SMALL_COPIES = COPIES.replace(transfer_rows=16)
SENTINEL = Config(
    {"mode": "custom_collective", "comm_programs": 8, "copy_kib": 2, "peer_order": "fanout", "protocol": "sentinel"}
)
FP8 = {"dtype": "fp8", "b_order": "nk"}
GATED = {**FP8, "scales": "row", "epilogue": "swiglu", "quantised": True}
WIDE = {"block_n": 256, "num_warps": 8}


class TestAllGatherGemm(Edges):
    name = "all_gather_gemm"
    sizes = {"m": 4096, "n": 4 * 1024, "k": 1024, "world_size": 4}
    # fmt: off
    rows = [
        # Those of every GEMM are there, too; test_gemm shows their ends.
        (PULL, {"m": 32}, H100, "no larger than the problem"),
        (PUSH, {"m": 32}, H100, "no larger than the problem"),
        (PUSH.replace(split_k=2), {}, H100, "splits needed"),
        (PUSH.replace(transfer_rows=128), {"m": 4 * 65}, H100, None),
        (PUSH.replace(transfer_rows=128), {"m": 4 * 64}, H100, "transfer within the shard"),
        (PUSH.replace(comm_programs=4), {}, INTERPRETED, None),  # half of its 8
        (PUSH.replace(comm_programs=8), {}, INTERPRETED, "room for the GEMM"),
        (PULL.replace(loads="tma"), {"layout": "k", "k": 4 * 128}, H100, None),
        (PULL.replace(loads="tma"), {"layout": "k", "k": 4 * 96}, H100, "TMA within a shard"),
        (PULL.replace(loads="tma"), {"epilogue": "swiglu"}, H100, "TMA of both halves"),
        (PULL.replace(loads="tma"), {"epilogue": "swiglu", "gate_up": "interleaved"}, H100, None),
        (PULL.replace(loads="tma"), {"epilogue": "swiglu", "b_order": "nk"}, H100, None),
        (PUSH.replace(loads="tma"), {"epilogue": "swiglu"}, H100, None),  # in two loads
        (PUSH.replace(loads="tma", preload_b=True), {"m": 4 * 40, "epilogue": "swiglu"}, H100, "TMA of both halves"),
        # Programs wait for A where rows of two ranks share a tile, where A lies along K, and where tiles are split.
        (PUSH.replace(preload_b=True), {"m": 4 * 80}, H100, None),
        (PUSH.replace(preload_b=True), {"m": 4 * 64}, H100, "preload without effect"),
        (PUSH.replace(preload_b=True), {"m": 4 * 64, "layout": "k"}, H100, None),
        (PUSH.replace(preload_b=True, split_k=2), {"m": 4 * 64}, H100, None),
        # Of 9 steps 4 splits take 3, 3 and 3.
        (PUSH.replace(preload_b=True, split_k=4), {"m": 64, "n": 4 * 1024, "k": 9 * 64}, H100, "preload"),
        (PUSH.replace(preload_b=True, split_k=4), {"m": 64, "n": 4 * 1024, "k": 10 * 64}, H100, None),
        (PUSH.replace(preload_b=True), {"m": 80, **FP8, "scales": "block"}, H100, "preload"),
        (PUSH.replace(k_chunks=4), {"k": 16 * 64}, H100, None),
        (PUSH.replace(k_chunks=4), {"k": 16 * 64 + 64}, H100, "even chunks"),
        (PUSH.replace(k_chunks=2), {"world_size": 3, "m": 96, "n": 3 * 1024}, H100, None),
        (PUSH.replace(k_chunks=2), {"layout": "k", "world_size": 3, "n": 3 * 1024, "k": 6 * 64}, H100, "even chunks"),
        (PUSH.replace(k_chunks=2, preload_b=True), {"m": 4 * 40}, H100, "chunks and loops"),
        (PUSH.replace(push_site="side_stream", schedule="persistent"), {}, H100, None),
        (PUSH.replace(push_site="side_stream", schedule="persistent", comm_programs=1), {}, INTERPRETED, "residency"),
        (PUSH.replace(schedule="persistent", head_start=2), {}, H100, None),
        (PUSH.replace(schedule="persistent", head_start=2, push_site="same_stream"), {}, H100,
         "head start without effect"),
        (STAGED.replace(schedule="persistent", head_start=2), {}, H100, None),
        (STAGED.replace(head_start=2), {}, H100, "head start without effect"),
        # 8 MiB of A.
        (SENTINEL, {"m": 512, "k": 8192}, H100, None),
        (SENTINEL, {"m": 516, "k": 8192}, H100, "few words"),
        (SENTINEL, {"m": 256, "k": 8192, "dtype": "fp32"}, H100, None),
        (SENTINEL, {"m": 260, "k": 8192, "dtype": "fp32"}, H100, "few words"),
        (SENTINEL, {"m": 64, **FP8, "scales": "tensor"}, H100, "words of two bytes or four"),
        (SENTINEL, {"m": 64, "world_size": 1}, H100, "parts of peers"),
        (COPIES.replace(chunk_sizes="shrinking"), {"m": 4 * 512}, H100, "chunks that shrink"),
        (COPIES.replace(chunk_sizes="shrinking"), {"m": 4 * 516}, H100, None),
        (COPIES, {"world_size": 1}, H100, "copies by rows"),
        (COPIES, {"gathered": True}, H100, None),
        (PULL, {"gathered": True}, H100, "a gathered A"),
        (PUSH, {"gathered": True}, H100, None),
        (PUSH.replace(block_m=256, block_n=256), {}, H100, "registers"),
        (PUSH.replace(loads="tma"), {}, MI300X, "TMA exists"),
        (PUSH.replace(loads="tma"), {"n": 4 * 500, "k": 1000}, H100, "TMA alignment"),
        (PUSH.replace(loads="tma"), {"n": 4 * 1028, "out_dtype": "fp32"}, H100, "TMA alignment"),
        # Rows of a transposed B are as long as its depth; C in fp32 has rows of 16 bytes here.
        (PUSH.replace(loads="tma"), {"n": 4 * 1028, "out_dtype": "fp32", "b_order": "nk"}, H100, None),
        (PUSH.replace(loads="tma"), {"n": 4 * 1032, "epilogue": "swiglu"}, H100, "TMA alignment"),
        (PUSH.replace(schedule="persistent"), {}, INTERPRETED, "sequential programs"),
        (PUSH.replace(schedule="flattened", split_k=2), {"m": 256}, H100, "flattening"),
        (PULL.replace(schedule="flattened"), {}, H100, "flattening"),
        (COPIES, {"layout": "k"}, H100, "copies by rows"),
        (COPIES.replace(gemm_streams=2), {}, INTERPRETED, "streams"),
        (COPIES.replace(copies="pushed"), {"gathered": True}, H100, "copies to a result"),
        (Config({"mode": "bsp", "launch": "graph"}), {}, INTERPRETED, "CUDA graphs"),
        (SENTINEL.replace(peer_order="rotate"), {"m": 64}, H100, "words to all"),
        (SENTINEL, {"m": 64}, MI300X, "words arrive"),
        (PUSH.replace(**WIDE), GATED, H100, None),
        (PUSH.replace(block_n=128), GATED, H100, "scales of C"),
        (PUSH.replace(**WIDE), {**GATED, "dtype": "fp8_fnuz"}, MI300X, None),
        # A rank's scales are a multiple of 16 bytes, or copies would begin at addresses that TMA does not take.
        (SMALL_COPIES, {**FP8, "m": 4 * 6, "scales": "row"}, H100, "scales of chunks"),
        (SMALL_COPIES, {**FP8, "m": 4 * 8, "scales": "row"}, H100, None),
        (SMALL_COPIES, {**FP8, "m": 4 * 6, "scales": "tensor"}, H100, None),
        (SMALL_COPIES, {**FP8, "m": 4 * 6, "scales": "block"}, H100, None),
        (SMALL_COPIES, {**FP8, "m": 4 * 6, "scales": "row", "dtype": "fp8_fnuz"}, MI300X, None),
    ]
    # fmt: on
