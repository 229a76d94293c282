"""The space of flash decode at its edges, and what is tried unmeasured."""

from __future__ import annotations

from typing import Any

import pytest
from edges import Edges
from fakes import LAPTOP

from autotune.config import Config
from autotune.machine import H100, HOSTS, MI350X, Machine
from autotune.task import Task
from autotune.workloads import workload

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


@pytest.mark.parametrize(
    ("machine", "values", "fields", "most"),
    [
        # Keys and values of a step take 64 KiB of 227, q and the logits 8, or 32. A step is computed from its buffer
        # while the others come, but of 64 heads it is read for longer.
        (H100, {"block_n": 128}, {}, 4),
        (H100, {"block_n": 128, "heads_per_program": 64, "num_warps": 8}, {"q_heads": 128}, 3),
        # Of fp8 half of that, and one more step converted.
        (H100, {"block_n": 128, "num_warps": 4}, {"kv_dtype": "fp8", "kv_scales": "tensor"}, 5),
        (H100, {"block_n": 256, "num_warps": 8}, {"kv_dtype": "fp8", "kv_scales": "tensor"}, 2),
        # Of a latent 72 KiB once, for keys and values, and 80 for 64 queries and their logits; of 16 queries 20.
        (H100, {"block_n": 64, "heads_per_program": 64, "num_warps": 8}, MLA, 2),
        (H100, {"block_n": 64, "heads_per_program": 16}, MLA, 3),
    ],
)
def test_as_many_stages_as_shared_memory_holds(
    machine: Machine, values: dict[str, Any], fields: dict[str, Any], most: int
) -> None:
    sizes = {"batch": 1, "q_heads": 16, "kv_heads": 2, "head_dim": 128, "kv_len": 8192, "world_size": 2}
    problem = FOUND.problem_type(**{**sizes, **fields})
    broken = [FOUND.space.broken(LAST.replace(**values, num_stages=n), Task(problem, machine)) for n in range(1, 6)]
    assert [each and each.name for each in broken] == [None] * most + ["shared memory"] * (5 - most)


def test_the_space_holds_the_papers_config() -> None:
    paper = FOUND.problem_type(batch=1, q_heads=96, kv_heads=12, head_dim=128, kv_len=8192, dtype="fp16", world_size=8)
    task = Task(paper, HOSTS["H200"])
    default = FOUND.default_config(task)
    constants = {"block_n": 64, "programs_per_head": 32, "heads_per_program": 8, "num_warps": 4, "num_stages": 2}
    FOUND.space.check(default.replace(**constants, reducer="kernel", combine_site="next_launch"), task)
