"""Flash decode is right in every mode: under the interpreter on 1 to 4 ranks, and on all GPUs there are."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_mode import check_all, on_cpu, ranks_a_gpu, whole
from ranks_of_functions import run_ranks

from autotune.config import Config
from autotune.heap import open_heap
from autotune.kernels.flash_decode import reference
from autotune.kernels.flash_decode.tensors import Tensors
from autotune.machine import H100, Machine, machine
from autotune.problem import LARGEST_DIMENSION
from autotune.ranks.evaluation import MeasurePlan
from autotune.task import Task
from autotune.workloads import workload

WORKLOAD = workload("flash_decode")

MODES = set(WORKLOAD.space.modes)
KERNELS = {"fused", "fine_grained_wait"}
"""Modes whose kernels wait for each other."""

Knobs = dict[str, tuple[int, ...]]


def few_configs(problem: Any, here: Machine, knobs: Knobs, count: int) -> list[Config]:
    """``count`` valid configs of each mode, numbers drawn from ``knobs``, with as many different words as may be."""
    rng = random.Random(3)
    space = WORKLOAD.space
    found: list[Config] = []
    for mode in space.modes:
        dimensions = [d for d in space.dimensions_of(mode) if d.name != "mode"]
        candidates: dict[Config, set[tuple[str, Any]]] = {}
        while len(candidates) < 1 + 25 * (count - 1):
            values = {d.name: rng.choice(knobs[d.name] if d.ordinal else d.values) for d in dimensions}
            config = Config({"mode": mode, **values})
            if space.violation(config, Task(problem, here)) is None:
                candidates[config] = {(d.name, values[d.name]) for d in dimensions if not d.ordinal}
        for _ in range(count):
            best = max(candidates, key=lambda config: len(candidates[config]))
            tried = candidates.pop(best)
            candidates = {config: words - tried for config, words in candidates.items()}
            found.append(best)
    return found


FP16 = {"dtype": "fp16"}
LARGEST_CAP = {"soft_cap": LARGEST_DIMENSION}
"""It leaves logits as they are."""
SCALED = [
    {"batch": 1, "q_heads": 4, "kv_heads": 2, "kv_dtype": "fp8", "kv_scales": "head", "page_size": 16, **FP16},
    {"batch": 2, "q_heads": 2, "kv_heads": 1, "kv_dtype": "fp8_e5m2", "kv_scales": "tensor", "soft_cap": 3},
]
WIDE = {"batch": 1, "q_heads": 2, "kv_heads": 1, "head_dim": 256, "kv_len": 20, "page_size": 24}
LATENT = {"kv_heads": 1, "head_dim": 64, "rope": 32, "scale": 0.125}
MLA = {**LATENT, "head_dim": 512, "rope": 64}
SMALL: Knobs = {
    "block_n": (16, 32), "programs_per_head": (1, 2, 3, 5), "heads_per_program": (1, 2, 4, 8), "num_warps": (2, 4),
    "num_stages": (1, 3), "transfer_heads": (1, 2, 4), "combine_heads": (1, 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("world_size", "count", "sizes"),
    [
        (1, 1, {"batch": 1, "q_heads": 3, "kv_heads": 1, "head_dim": 64, "kv_len": 45, "page_size": 16, **LARGEST_CAP}),
        (3, KERNELS, {"batch": 1, "q_heads": 2, "kv_heads": 2, "head_dim": 64, "kv_len": 21, "page_size": 5}),
        (4, KERNELS, WIDE),
        (2, 1, {"batch": 2, "q_heads": 2, "kv_heads": 1, "head_dim": 64, "kv_len": 21, "result": "heads"}),
        (2, 1, {**LATENT, "batch": 2, "q_heads": 3, "kv_len": 37}),
        (2, {"fused"}, {**MLA, "batch": 1, "q_heads": 2, "kv_len": 21, "page_size": 64}),
        *((2, {"bsp", "fused"}, {**fields, "head_dim": 64, "kv_len": 24}) for fields in SCALED),
        *(whole(2, 1, {**fields, "head_dim": 64, "kv_len": 24}) for fields in SCALED),
        whole(2, 1, {**LATENT, "batch": 2, "q_heads": 4, "kv_len": 45, "page_size": 5, "result": "heads"}),
        whole(4, 1, WIDE),
        whole(2, 1, {"batch": 2, "q_heads": 2, "kv_heads": 1, "head_dim": 64, "kv_len": 21, "soft_cap": 5, **FP16}),
        whole(2, 2, {"batch": 2, "q_heads": 2, "kv_heads": 1, "head_dim": 64, "kv_len": 37, "soft_cap": 5, **FP16}),
        whole(2, 1, {"batch": 1, "q_heads": 8, "kv_heads": 1, "head_dim": 128, "kv_len": 64, "page_size": 32}),
        whole(3, 1, {"batch": 2, "q_heads": 2, "kv_heads": 2, "head_dim": 64, "kv_len": 37, "page_size": 5}),
        whole(2, 2, {"batch": 2, "q_heads": 8, "kv_heads": 1, "head_dim": 64, "kv_len": 37, "result": "heads", **FP16}),
        whole(3, 1, {"batch": 1, "q_heads": 6, "kv_heads": 2, "head_dim": 64, "kv_len": 37, "result": "heads"}),
        whole(4, 1, {"batch": 1, "q_heads": 4, "kv_heads": 4, "head_dim": 64, "kv_len": 40, "result": "heads"}),
    ],
)
def test_every_mode_is_right_under_the_interpreter(
    world_size: int, count: int | set[str], sizes: dict[str, Any]
) -> None:
    """``count``: of configs of each mode; or the modes to have one of each."""
    modes, count = (count, 1) if isinstance(count, set) else (MODES, count)
    problem = WORKLOAD.problem_type(world_size=world_size, **sizes)
    here = on_cpu()
    configs = [config for config in few_configs(problem, here, SMALL, count) if config["mode"] in modes]
    if count == 1:  # two of each mode have more words
        fused = next(config for config in configs if config["mode"] == "fused")
        polled = fused.replace(protocol="ll" if world_size % 2 else "sentinel", wire="fp32", exchange="one_shot")
        configs += [polled] if WORKLOAD.space.violation(polled, Task(problem, here)) is None else []
    check_all(WORKLOAD, problem, configs, modes)


def test_three_roundings_of_a_large_element_pass_under_the_interpreter() -> None:
    """It cuts bf16 off, of softmax weights, of what travels and of the result, and the half of the result is zero."""
    sizes = {"batch": 2, "q_heads": 20, "kv_heads": 4, "head_dim": 64, "kv_len": 45, "result": "heads"}
    problem = WORKLOAD.problem_type(world_size=2, kv_dtype="fp8", kv_scales="head", **sizes)
    default = WORKLOAD.default_config(Task(problem, on_cpu()))
    config = default.replace(block_n=16, programs_per_head=1, transfer_heads=8, combine_heads=2, wire="rounded")
    check_all(WORKLOAD, problem, [config], {"fused"})


def test_results_are_right_before_and_after_the_counters_wrap_around() -> None:
    here, aged = on_cpu(), workload(f"{Path(__file__).parent}/aged.py:Decode")
    problem = aged.problem_type(batch=1, q_heads=2, kv_heads=1, head_dim=64, kv_len=20, world_size=2)
    shape = {"block_n": 16, "programs_per_head": 2, "num_warps": 2}
    default = aged.default_config(Task(problem, here)).replace(**shape, protocol="signal")
    last = default.replace(reducer="last", program_order="tokens")
    fused = [last, default.replace(protocol="ll"), default.replace(exchange="two_shot")]
    fused.append(default.replace(protocol="sentinel", wire="rounded"))
    waiting = next(c for c in aged.first_configs(Task(problem, here)) if c["mode"] == "fine_grained_wait")
    # With the two checks six calls: three before the counters wrap around, three after.
    check_all(aged, problem, [*fused, waiting], {"fused"}, MeasurePlan(warmup=1, screen=1, iterations=1))


def test_a_rank_that_calls_alone_times_out_and_says_so(tmp_path: Path) -> None:
    here = on_cpu()
    problem = WORKLOAD.problem_type(batch=1, q_heads=2, kv_heads=1, head_dim=64, kv_len=40, world_size=2)
    default = WORKLOAD.default_config(Task(problem, here)).replace(protocol="signal")
    changes = ({}, {"protocol": "ll"}, {"protocol": "sentinel"}, {"exchange": "two_shot"})
    calls = [dict(default.replace(**change)) for change in changes]
    alone, other = run_ranks(__file__, "call_alone", 2, tmp_path, argument=calls)
    assert alone == [True] * len(calls)
    assert other == [False] * len(calls)


def drawn(rng: random.Random, world_size: int) -> tuple[Any, list[Config]]:
    problem = WORKLOAD.problem_type(
        batch=rng.randint(1, 140), q_heads=rng.choice((1, 3, 16, 24, 64, 96, 128)), kv_heads=1, head_dim=512, rope=64,
        kv_len=rng.choice((rng.randint(1, 300), rng.randint(300, 3000))), page_size=rng.choice((1, 3, 16, 64, 128)),
        dtype=rng.choice(("bf16", "fp16")), world_size=world_size,
    )  # fmt: skip
    task = Task(problem, machine())
    firsts = [config for config in WORKLOAD.first_configs(task) if config["loads"] == "specialized"]
    programs = [
        changed for config in firsts for count in WORKLOAD.space.dimensions["programs_per_head"].values
        if WORKLOAD.space.violation(changed := config.replace(programs_per_head=count), task) is None
    ]  # fmt: skip
    return problem, rng.sample(programs, min(3, len(programs)))


@pytest.mark.gpu(2, each=True)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_loads_by_warps_of_their_own_are_right_on_gpus(seed: int) -> None:
    if machine().arch != H100.arch:
        pytest.skip(f"warp specialization is for {H100.arch}")
    rng = random.Random(seed)
    for _ in range(5):
        problem, configs = drawn(rng, machine().gpus)
        check_all(WORKLOAD, problem, configs, {config["mode"] for config in configs}, calls=3)


PAGED = {"q_heads": 4, "kv_heads": 2, "head_dim": 64, "kv_len": 40}
ONE_HEAD = {**PAGED, "q_heads": 2, "kv_heads": 1}


ONE_PROGRAM = {"programs_per_head": 1, "reducer": "last", "program_order": "tokens", "protocol": "ll"}
IN_ORDER = {"programs_per_head": 8, "reducer": "last", "program_order": "tokens"}
TWO_SHOT = {"programs_per_head": 3, "reducer": "kernel", "exchange": "two_shot"}
NEXT = {"programs_per_head": 4, "reducer": "last", "combine_site": "next_launch"}
POLLED = {"programs_per_head": 6, "protocol": "sentinel", "program_order": "tokens"}
FP8_CACHE = {"page_size": 1, "kv_dtype": "fp8"}


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [
        (1, [({**ONE_HEAD, "batch": 34, "page_size": 16, "kv_len": 20}, IN_ORDER)]),
        (2, [
            ({**ONE_HEAD, "batch": 9, "page_size": 16}, TWO_SHOT),
            ({**PAGED, **FP8_CACHE, "batch": 4, "kv_scales": "head"}, POLLED),
            ({**PAGED, "batch": 1, "page_size": 64, "kv_len": 70, "dtype": "fp16"}, ONE_PROGRAM),
            ({**PAGED, "batch": 6, "page_size": 64, "result": "heads"}, {"programs_per_head": 5}),
            ({**PAGED, **LATENT, **FP8_CACHE, "batch": 5, "kv_scales": "tensor"}, NEXT),
            ({**PAGED, **LATENT, "batch": 3, "page_size": 64, "result": "heads"}, ONE_PROGRAM),
        ]),
        (3, [({**ONE_HEAD, "batch": 3, "page_size": 16}, {"programs_per_head": 5})]),
    ],
)  # fmt: skip
def test_lengths_differ_from_launch_to_launch_on_one_scratch(
    world_size: int, cases: list[tuple[dict[str, Any], dict[str, Any]]], tmp_path: Path
) -> None:
    """Of any number and kind, none at all among them, and others on each rank."""
    arguments = []
    for sizes, changes in cases:
        problem = WORKLOAD.problem_type(world_size=world_size, **sizes)
        task = Task(problem, on_cpu())
        default = WORKLOAD.default_config(task).replace(block_n=16, num_warps=2, protocol="signal")
        WORKLOAD.space.check(default.replace(**changes), task)
        arguments.append((problem.as_dict(), dict(default.replace(**changes))))
    for found in run_ranks(__file__, "replay_with_other_lengths", world_size, tmp_path, argument=arguments):
        assert found == []


@pytest.mark.parametrize("soft_cap", [0, 3])
def test_the_reference_is_the_textbooks_attention(soft_cap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sets of queries at once, joined over two ranks, the second of which lacks the second sequence; in chunks."""
    monkeypatch.setattr(reference, "CHUNK_BYTES", 4096)
    problem = WORKLOAD.problem_type(
        batch=3, q_heads=6, kv_heads=2, head_dim=64, kv_len=23, page_size=5, soft_cap=soft_cap, world_size=2
    )
    queries = torch.randn(2, 3, 6, 64).bfloat16()
    parts, keys, values = [], [[], [], []], [[], [], []]
    for lengths in ([23, 7, 0], [11, 0, 0]):
        tensors = Tensors.allocate(problem, lambda shape, dtype: torch.randn(shape).to(dtype))
        tensors.block_table.copy_(torch.randperm(15).view(3, 5))
        tensors.lengths.copy_(torch.tensor(lengths))
        parts.append(reference.attention(problem, tensors, queries))
        for sequence, length in enumerate(lengths):
            pages = tensors.block_table[sequence].long()
            keys[sequence].append(tensors.k_cache[pages].flatten(0, 1)[:length].double())
            values[sequence].append(tensors.v_cache[pages].flatten(0, 1)[:length].double())
    out, _ = reference.joined(*parts[0], *parts[1])
    for number, sequence, head in itertools.product(range(2), range(2), range(6)):
        logits = torch.cat(keys[sequence])[:, head // 3] @ queries[number, sequence, head].double() / 8
        if soft_cap:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        expected = torch.softmax(logits, 0) @ torch.cat(values[sequence])[:, head // 3]
        torch.testing.assert_close(out[number, sequence, head], expected.float(), rtol=1e-4, atol=1e-5)
    assert (out[:, 2] == 0).all(), "a sequence without any token"


LARGE: Knobs = {
    "block_n": (16, 32, 64, 128), "programs_per_head": (1, 3, 8, 22, 66), "heads_per_program": (1, 4, 8, 16),
    "num_warps": (2, 4, 8), "num_stages": (1, 2, 3, 4, 5), "transfer_heads": (1, 2, 4, 8), "combine_heads": (1, 2, 4),
}  # fmt: skip

PAPER = {"q_heads": 96, "kv_heads": 12, "head_dim": 128, "dtype": "fp16"}


@ranks_a_gpu
@pytest.mark.parametrize(
    "sizes",
    [
        {**PAPER, "batch": 1, "kv_len": 8192},
        {**PAPER, "batch": 4, "kv_len": 32768},
        {**PAPER, "batch": 16, "kv_len": 8192},
        {**PAPER, "batch": 1, "kv_len": 5000, "page_size": 16, "dtype": "bf16"},
        {"batch": 8, "q_heads": 64, "kv_heads": 8, "head_dim": 128, "kv_len": 4096, "page_size": 64},
        {"batch": 3, "q_heads": 32, "kv_heads": 16, "head_dim": 256, "kv_len": 4097, "page_size": 16, "soft_cap": 50},
        {"batch": 2, "q_heads": 48, "kv_heads": 16, "head_dim": 64, "kv_len": 1000, "page_size": 7},
        {"batch": 2, "q_heads": 16, "kv_heads": 16, "head_dim": 128, "kv_len": 2048, "page_size": 128},
        {"batch": 5, "q_heads": 32, "kv_heads": 1, "head_dim": 64, "kv_len": 777, "dtype": "fp16", "soft_cap": 30},
        {"batch": 1, "q_heads": 1, "kv_heads": 1, "head_dim": 256, "kv_len": 100},
        {"batch": 64, "q_heads": 8, "kv_heads": 8, "head_dim": 64, "kv_len": 512, "page_size": 16},
        {**PAPER, "batch": 1, "kv_len": 8192, "result": "heads"},
        {"batch": 9, "q_heads": 16, "kv_heads": 1, "head_dim": 128, "kv_len": 777, "result": "heads"},
        {**MLA, "batch": 4, "q_heads": 64, "kv_len": 5000, "page_size": 64},
        {**MLA, "batch": 3, "q_heads": 16, "kv_len": 2049, "kv_dtype": "fp8", "kv_scales": "tensor"},
        *({**PAPER, "batch": 3, "kv_len": 8000, "page_size": 16, "dtype": "bf16", "kv_dtype": kind, "kv_scales": scales}
          for kind, scales in itertools.product(("fp8", "fp8_e5m2"), ("head", "tensor"))),
    ],
    ids=lambda sizes: "-".join(str(value) for value in sizes.values()),
)  # fmt: skip
def test_every_mode_is_right_on_gpus(ranks: int, sizes: dict[str, Any]) -> None:
    here = machine()
    problem = WORKLOAD.problem_type(world_size=ranks * here.gpus, **sizes)
    check_all(WORKLOAD, problem, few_configs(problem, here, LARGE, 5), MODES)


SPINS = 40


def call_alone(configs: list[dict[str, Any]]) -> list[bool]:
    """True if rank 0 timed out, for each config: the others set it up and do not call."""
    found = workload("flash_decode")
    problem = found.problem_type(batch=1, q_heads=2, kv_heads=1, head_dim=64, kv_len=40, world_size=2)
    heap = open_heap(found.heap_bytes(problem))
    operation = found.operation(Task(problem, machine()), heap, SPINS)
    timed_out = []
    for values in configs:
        run = operation.prepare(Config(values))
        operation.refresh(1)
        heap.barrier()
        if dist.get_rank() == 0:
            run()
        heap.barrier()
        timed_out.append(operation.timed_out())
    return timed_out


CALLS = 3

FAR_FROM_ONE = (2.0**-70, 1.0, 2.0**40)
"""Factors of queries that have the exponents for it: every key weighs as much, or one alone."""


def replay_with_other_lengths(given: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """The calls with a wrong result, of problems and their configs, each with its lengths."""
    found, rng, wrong = workload("flash_decode"), random.Random(dist.get_rank()), []
    for number, (sizes, values) in enumerate(given):
        problem = found.problem_type.from_dict(sizes)
        heap = open_heap(found.heap_bytes(problem))
        operation: Any = found.operation(Task(problem, machine()), heap, 1 << 20)
        run = operation.prepare(Config(values))
        operation.refresh(number)
        operation._lengths = [drawn_lengths(rng, problem.batch, problem.kv_len) for _ in range(CALLS)]
        operation._queries = operation._queries[[call % 3 for call in range(CALLS)]]
        if problem.dtype == "bf16":
            operation._queries *= torch.tensor(FAR_FROM_ONE).to(operation._queries)[:, None, None, None]
        operation._references = operation._gathered_references()
        operation.poison()
        heap.barrier()
        results = []
        for call in range(CALLS):
            operation.put(call)
            run()
            results.append(operation.outputs()[0].clone())
        heap.barrier()
        allowed = found.tolerance_of(Task(problem, machine()), Config(values)).overall
        for call, result in enumerate(results):
            error = operation.error_of([result], call)
            if not error.overall <= allowed:
                wrong.append(f"{values}: call {call} of {[each.tolist() for each in operation._lengths]}: {error}")
        heap.close()
    return wrong


def drawn_lengths(rng: random.Random, batch: int, longest: int) -> torch.Tensor:
    kinds = [
        lambda: longest, lambda: 0, lambda: rng.randint(0, longest), lambda: rng.randint(0, 2),
        lambda: rng.choice((0, 0, longest)), lambda: rng.choice((1, 16, 17, 32, 64)),
    ]  # fmt: skip
    length = rng.choice(kinds)
    lengths = [min(length(), longest) for _ in range(batch)]
    if rng.random() < 0.3:
        lengths[rng.randrange(batch)] = longest
    return torch.tensor(lengths, dtype=torch.int32)
