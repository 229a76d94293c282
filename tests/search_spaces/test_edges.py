"""The spaces at their edges."""

from __future__ import annotations

from typing import Any

import pytest
from edges import Edges
from fakes import LAPTOP

from autotune.config import Config
from autotune.machine import A100, H100, HOSTS, INTERPRETED, MI300X, MI350X, Machine
from autotune.task import Task
from autotune.workloads import workload

TILE = Config({
    "mode": "one_shot", "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 1, "group_m": 1, "num_warps": 4,
    "num_stages": 1, "loads": "pointer", "schedule": "tile", "programs_per_unit": 1, "combine": "sender",
    "protocol": "signal",
})  # fmt: skip
SIZES = {"m": 256, "n": 8192, "k": 28672, "world_size": 2}


class TestGemm(Edges):
    name = "gemm_all_reduce"
    sizes = SIZES
    # fmt: off
    rows = [(TILE.replace(**tile), {"m": 256 if "block_m" in tile else 16, **fields}, *end) for tile, fields, *end in [
        ({"split_k": 2, "block_k": 512}, {"k": 2 * 512}, H100, "depth of a split"),
        ({"split_k": 2, "block_k": 512}, {"k": 2 * 520}, H100, None),
        ({"split_k": 8}, {"n": 132 * 64}, H100, None),  # 8 programs for each unit
        ({"split_k": 8}, {"n": 133 * 64}, H100, "splits needed"),
        ({"block_n": 32}, {}, H100, None),  # 128 elements of the tile for each warp
        ({"block_n": 32, "num_warps": 8}, {}, H100, "a warp's share"),
        ({"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8}, {}, H100, None),  # 128 registers
        ({"block_n": 128}, {"n": 64}, H100, "no larger than the problem"),
        ({}, {"k": 2 * 64}, H100, "no larger than the problem"),
        ({"block_k": 64}, {"k": 2 * 40, "n": 40}, H100, None),
        ({}, {"wire": "fp8"}, A100, "fp8 on its way"),
        ({}, {}, A100, None),
        ({}, {"wire": "fp8"}, H100, None),
        ({}, {"wire": "fp8"}, MI300X, None),
        ({}, {"dtype": "fp8", "scales": "block", "b_order": "nk"}, H100, None),
        ({"block_k": 256}, {"dtype": "fp8", "scales": "block", "b_order": "nk"}, H100, "scales by blocks"),
        ({"block_k": 256}, {"dtype": "fp8", "scales": "row", "b_order": "nk"}, H100, None),
    ]]
    # fmt: on


ONE_SHOT = TILE.replace(split_k=2, num_stages=4)
COLLECTIVE = Config({
    "mode": "custom_collective", "exchange": "one_shot", "protocol": "signal", "transfer_rows": 8192,
    "sum_block": 8192, "sum_warps": 8,
})  # fmt: skip
MANY = {"m": 8192, "k": 8192}
"""Each rank's part of C is 128 MiB, so two slots for 8 ranks are 2 GiB."""
LARGE = ONE_SHOT.replace(block_m=128, block_n=128, num_warps=8, split_k=1, block_k=64, num_stages=2)


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
        (ONE_SHOT.replace(protocol="ll", block_n=128), {}, H100, None),
        (ONE_SHOT.replace(protocol="sentinel", block_n=256, num_stages=2), {}, H100, None),
        (ONE_SHOT.replace(protocol="sentinel", block_n=256, num_stages=2), {"out_dtype": "fp32"}, H100, "LL words fit"),
        (COLLECTIVE.replace(protocol="ll", transfer_rows=16, sum_block=4096), {}, H100, None),
        (COLLECTIVE.replace(protocol="ll", transfer_rows=16), {}, H100, "LL words of blocks fit"),
        (COLLECTIVE.replace(protocol="sentinel", transfer_rows=16), {}, H100, None),
        (ONE_SHOT.replace(protocol="ll"), {"wire": "fp8"}, H100, "LL words of fp8"),
        (ONE_SHOT.replace(protocol="ll"), {}, MI300X, "LL words arrive"),
        (ONE_SHOT.replace(protocol="ll", block_n=256, num_stages=2), {}, H100, "LL words fit"),
        (ONE_SHOT.replace(programs_per_unit=2), {}, H100, "persistence"),
        (ONE_SHOT.replace(schedule="persistent", programs_per_unit=2, split_k=4), {}, H100, "residency"),
        (ONE_SHOT.replace(schedule="persistent", programs_per_unit=2, split_k=4, combine="separate"), {}, H100, None),
        (ONE_SHOT.replace(schedule="persistent", split_k=1), {"n": 132 * 64}, H100, "persistence"),
        (ONE_SHOT.replace(schedule="persistent", split_k=1), {"n": 133 * 64}, H100, None),
        (ONE_SHOT.replace(schedule="persistent", programs_per_unit=2, split_k=1), {"n": 265 * 64}, H100, None),
        (COLLECTIVE.replace(transfer_rows=16), {"world_size": 1}, H100, "parts of peers"),
    ]
    # fmt: on


SCATTER = Config({
    "mode": "push", "block_m": 128, "block_n": 256, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 4,
    "loads": "tma", "split_k": 1, "schedule": "persistent", "peer_order": "rotate", "transfer_tiles": 4,
    "signals": "next_turn",
})  # fmt: skip
SUMMED = Config({"mode": "copy_engine", "transfer_rows": 1024, "gemm_streams": 2, "sum_block": 2048, "sum_warps": 8})
AMD: dict[str, Any] = {"num_warps": 4, "num_stages": 2, "loads": "pointer"}
FLATTENED = SCATTER.replace(schedule="flattened", signals="at_once")


class TestGemmReduceScatter(Edges):
    name = "gemm_reduce_scatter"
    sizes = {"m": 8192, "n": 8192, "k": 28672, "world_size": 8}
    # fmt: off
    rows = [
        *((config, {}, H100, None) for config in (SCATTER, SCATTER.replace(mode="pull"), FLATTENED, SUMMED)),
        (SCATTER, {"m": 512}, H100, "tile within an owner's rows"),
        (SCATTER.replace(transfer_tiles=32), {"m": 1024, "n": 256}, H100, "transfer within an owner's tiles"),
        (SCATTER.replace(schedule="flattened"), {}, H100, "next turn"),
        (FLATTENED.replace(split_k=2), {"m": 1024, "n": 2048}, H100, "flattening"),
        (SCATTER.replace(schedule="tile"), {}, H100, "next turn"),
        (SCATTER.replace(peer_order="interleaved"), {"world_size": 2}, H100, "order without effect"),
        (SUMMED, {"world_size": 1}, H100, "parts of peers"),
        (SUMMED, {"m": 512}, H100, "chunks"),
        (SUMMED.replace(transfer_rows=64), {}, H100, "chunks"),
        (SUMMED, {}, LAPTOP, "streams"),
        # 128 numbers for each of 256 threads: of four warps on AMD, whose warps are twice as wide.
        (SCATTER.replace(**AMD), {}, MI300X, None),
        (SCATTER.replace(**AMD), {}, MI350X, None),
        (SCATTER.replace(**AMD), {}, H100, "registers"),
    ]
    # fmt: on


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
        # Those of every GEMM are there, too; TestGemm shows their ends.
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


DISPATCH = workload("moe_dispatch_gemm")
EXPERTS = {"tokens": 512, "hidden": 7168, "width": 2048, "experts": 64, "top_k": 8, "world_size": 2}
GATED_TILE = next(
    config for config in DISPATCH.first_configs(Task(DISPATCH.problem_type(**EXPERTS), H100))
    if config["mode"] == "unfused"
).replace(loads="tma")  # fmt: skip


class TestMoeDispatchGemm(Edges):
    name, sizes = "moe_dispatch_gemm", EXPERTS
    rows = [
        (GATED_TILE, {"gate_up": "halves", "b_order": "kn"}, H100, "TMA of both halves"),
        (GATED_TILE, {"gate_up": "interleaved", "b_order": "kn"}, H100, None),
        (GATED_TILE, {"gate_up": "halves", "b_order": "nk"}, H100, None),
    ]


FOUND = workload("flash_decode")


@pytest.mark.parametrize("machine", [*HOSTS.values(), LAPTOP], ids=lambda machine: machine.device)
def test_words_are_tried_only_where_ordinary_stores_arrive(machine: Machine) -> None:
    problem = FOUND.default_problem(machine, 2)
    tried = {config.get("protocol") for config in FOUND.first_configs(Task(problem, machine))}
    for protocol in ("ll", "sentinel"):
        words = FOUND.default_config(Task(problem, machine)).replace(protocol=protocol)
        refused = FOUND.space.violation(words, Task(problem, machine))
        assert (refused is not None and "NVIDIA" in refused) == (machine.kind == "hip")
        assert (protocol in tried) == (machine.kind != "hip")


LAST = Config({
    "mode": "fused", "block_n": 64, "programs_per_head": 8, "heads_per_program": 8, "num_warps": 4, "num_stages": 3,
    "loads": "pipelined", "table_reads": "ahead", "program_order": "heads", "reducer": "trailing",
    "transfer_heads": 1, "combine_heads": 1, "wire": "fp32", "exchange": "one_shot",
    "combine_site": "same_launch", "protocol": "signal",
})  # fmt: skip


WORDS = {"protocol": "sentinel", "transfer_heads": 2}
MLA = {"q_heads": 64, "kv_heads": 1, "head_dim": 512, "rope": 64}


class TestFlashDecode(Edges):
    name = "flash_decode"
    sizes = {"batch": 1, "q_heads": 16, "kv_heads": 2, "head_dim": 128, "kv_len": 4096, "world_size": 2}
    # fmt: off
    rows = [(LAST.replace(**values), *more) for values, *more in [
        ({"heads_per_program": 16}, {"q_heads": 24}, H100, None),  # 12 of a group
        ({"heads_per_program": 16}, {}, H100, "heads of a group"),
        ({"transfer_heads": 2, "combine_heads": 4}, {}, H100, "tile within the transfer"),
        ({"transfer_heads": 16}, {}, H100, "transfer within the program"),
        # Each of 4 ranks gets 4 of 16 heads: half of a group.
        ({"transfer_heads": 4}, {"world_size": 4, "result": "heads"}, H100, None),
        ({"transfer_heads": 8}, {"world_size": 4, "result": "heads"}, H100, "one owner"),
        ({"transfer_heads": 8}, {"world_size": 4}, H100, None),
        # 12 each, whole groups of 12: the second group's first heads are 12 to 19.
        ({"transfer_heads": 8}, {"q_heads": 24, "result": "heads"}, H100, None),
        ({"exchange": "two_shot"}, {"world_size": 4, "result": "heads"}, H100, "owners keep"),
        ({"exchange": "two_shot"}, {"world_size": 1}, H100, "peers"),
        # 32 fp32 elements for each of 128 threads.
        ({"transfer_heads": 8, "combine_heads": 8}, {"head_dim": 256}, H100, None),
        ({"heads_per_program": 16, "transfer_heads": 16, "combine_heads": 16},
         {"head_dim": 256, "q_heads": 32}, H100, None),
        ({"num_warps": 2, "block_n": 16, "heads_per_program": 16, "transfer_heads": 16, "combine_heads": 16},
         {"head_dim": 256, "q_heads": 32}, H100, "registers of a merge"),
        ({"protocol": "sentinel", "transfer_heads": 8, "combine_heads": 8},
         {"world_size": 8, "head_dim": 64}, H100, None),
        ({"protocol": "sentinel", "transfer_heads": 8, "combine_heads": 8},
         {"world_size": 8}, H100, "words in registers"),
        # Fewer words than threads: two threads hold the same one, and may see it before and after it has come.
        (WORDS, {"head_dim": 64}, H100, None),
        ({**WORDS, "num_warps": 8}, {"head_dim": 64}, H100, "words for all threads"),
        ({**WORDS, "num_warps": 8, "combine_heads": 2}, {"head_dim": 64}, H100, None),
        ({"protocol": "ll", "wire": "rounded"}, {}, H100, "LL words hold fp32"),
        ({"protocol": "sentinel", "wire": "rounded"}, {}, H100, None),
        ({"protocol": "ll", "exchange": "two_shot"}, {}, H100, "words go one way"),
        ({}, {"kv_len": 7 * 64 + 1}, H100, None),
        ({}, {"kv_len": 7 * 64}, H100, "steps for each program"),
        ({}, {"kv_len": 7 * 32, "batch": 3}, H100, None),
        ({"block_n": 128, "programs_per_head": 1}, {"kv_len": 64}, H100, "no longer than the sequence"),
        # 8 programs for each of 132 units, of 528 for each of two heads.
        ({"programs_per_head": 528}, {"kv_len": 1 << 16}, H100, None),
        ({"programs_per_head": 608}, {"kv_len": 1 << 16}, H100, "waves"),
        ({"programs_per_head": 528, "heads_per_program": 4}, {"kv_len": 1 << 16}, H100, "waves"),
        ({"programs_per_head": 1}, {"batch": 8 * 265}, H100, None),
        ({"block_n": 256, "num_stages": 1}, {"head_dim": 256}, MI350X, "registers of a step"),
        ({"block_n": 32, "num_stages": 1}, {"head_dim": 256}, MI350X, None),
        ({"block_n": 32, "num_stages": 1, "num_warps": 2}, {"head_dim": 256}, MI350X, "registers of a step"),
        ({"block_n": 32}, {}, H100, None),
        ({"block_n": 16}, {}, H100, "a warp's share"),
        # 64 rows are shared out over four warps, of eight each two have the same tokens.
        ({"block_n": 16, "num_warps": 8, "heads_per_program": 64, "num_stages": 2}, MLA, H100, None),
        ({"block_n": 16, "num_warps": 8, "heads_per_program": 32, "num_stages": 2}, MLA, H100, "a warp's share"),
    ]]
    # fmt: on


WIDE_TILE = {"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8}
STEP = {**TestFlashDecode.sizes, "kv_len": 8192}
FP8_CACHE = {"kv_dtype": "fp8", "kv_scales": "tensor"}
STAGES: dict[str, tuple[Config, dict[str, Any], list[tuple[Machine, dict[str, Any], dict[str, Any], int]]]] = {
    "gemm_all_reduce": (TILE, SIZES, [
        # 80 KiB a stage, of 227 KiB, or of 160: below 64 rows one stage of 16 bits is in registers.
        (H100, {}, {"block_k": 512}, 3),
        (H100, {"dtype": "fp32"}, {"block_k": 256}, 2),
        (MI350X, {}, {"block_k": 512}, 1),  # two would be all of the LDS, but for what they are padded with
        (MI300X, {}, {"block_k": 256}, 2),  # 40 KiB a stage, of 64, and one on its way in
        # 48 KiB a stage; half of the columns of C that TMA stores: 32 KiB in 16 bits.
        (H100, {}, {**WIDE_TILE, "loads": "tma"}, 4),
        (H100, {"out_dtype": "fp32"}, WIDE_TILE, 4),
        (H100, {"out_dtype": "fp32"}, {**WIDE_TILE, "loads": "tma"}, 3),
    ]),
    "flash_decode": (LAST, STEP, [
        # Keys and values of a step take 64 KiB of 227, q and the logits 8, or 32. A step is computed from its buffer
        # while the others come, but of 64 heads it is read for longer.
        (H100, {}, {"block_n": 128}, 4),
        (H100, {"q_heads": 128}, {"block_n": 128, "heads_per_program": 64, "num_warps": 8}, 3),
        # Of fp8 half of that, and one more step converted.
        (H100, FP8_CACHE, {"block_n": 128, "num_warps": 4}, 5),
        (H100, FP8_CACHE, {"block_n": 256, "num_warps": 8}, 2),
        # Of a latent 72 KiB once, for keys and values, and 80 for 64 queries and their logits; of 16 queries 20.
        (H100, MLA, {"block_n": 64, "heads_per_program": 64, "num_warps": 8}, 2),
        (H100, MLA, {"block_n": 64, "heads_per_program": 16}, 3),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "machine", "fields", "tile", "most"), [(name, *row) for name, (*_, rows) in STAGES.items() for row in rows]
)
def test_as_many_stages_as_shared_memory_holds(
    name: str, machine: Machine, fields: dict[str, Any], tile: dict[str, Any], most: int
) -> None:
    found, (config, sizes, _) = workload(name), STAGES[name]
    task = Task(found.problem_type(**{**sizes, **fields}), machine)
    stages = found.space.dimensions["num_stages"].values
    configs = [config.replace(**tile, num_stages=count) for count in stages]
    assert all(map(found.space.holds, configs)) and len(stages) >= 5
    broken = [found.space.broken(each, task) for each in configs]
    assert [each and each.name for each in broken] == [None] * most + ["shared memory"] * (len(stages) - most)


def test_the_space_holds_the_papers_config() -> None:
    paper = FOUND.problem_type(batch=1, q_heads=96, kv_heads=12, head_dim=128, kv_len=8192, dtype="fp16", world_size=8)
    task = Task(paper, HOSTS["H200"])
    default = FOUND.default_config(task)
    constants = {"block_n": 64, "programs_per_head": 32, "heads_per_program": 8, "num_warps": 4, "num_stages": 2}
    FOUND.space.check(default.replace(**constants, reducer="kernel", combine_site="next_launch"), task)
