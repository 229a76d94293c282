"""Tiles of GEMMs that communicate: small ones for the interpreter; large, middle and for few rows for GPUs."""

from __future__ import annotations

SMALL = {
    "block_m": 16, "block_n": 32, "block_k": 32, "group_m": 2, "num_warps": 4, "num_stages": 2, "transfer_rows": 16,
    "comm_programs": 2, "copy_kib": 2, "head_start": 0, "gemm_streams": 1, "split_k": 2, "k_chunks": 1,
    "transfer_tiles": 1, "sum_block": 512, "sum_warps": 4, "programs_per_unit": 1,
}  # fmt: skip
LARGER = {**SMALL, "block_m": 32, "block_k": 64, "group_m": 1, "num_stages": 3, "transfer_rows": 32,
          "comm_programs": 4, "copy_kib": 4, "split_k": 1}  # fmt: skip
WIDER = {**SMALL, "block_n": 64, "group_m": 1, "comm_programs": 1, "split_k": 1, "k_chunks": 2}

GPU_TILES = [
    {
        "block_m": 128, "block_n": 256, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 3,
        "transfer_rows": 128, "comm_programs": 12, "copy_kib": 16, "head_start": 0, "gemm_streams": 2, "split_k": 1,
        "k_chunks": 4, "sending_warps": 1,
    },
    {
        "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 4, "num_warps": 4, "num_stages": 4, "transfer_rows": 32,
        "comm_programs": 20, "copy_kib": 4, "head_start": 0, "gemm_streams": 1, "split_k": 2, "k_chunks": 1,
    },
    {
        "block_m": 16, "block_n": 64, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 4,
        "transfer_rows": 16, "comm_programs": 8, "copy_kib": 8, "head_start": 0, "gemm_streams": 2, "split_k": 4,
        "k_chunks": 1,
    },
    {
        "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 4, "num_warps": 4, "num_stages": 4,
        "transfer_rows": 64, "comm_programs": 8, "copy_kib": 8, "head_start": 0, "gemm_streams": 1, "split_k": 1,
        "k_chunks": 1, "sending_warps": 2,
    },
]  # fmt: skip
