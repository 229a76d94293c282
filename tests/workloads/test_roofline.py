"""Cost models: a finite prediction for every config of the built-in spaces, ordered as physics has it; else none."""

from __future__ import annotations

import itertools
import math
import statistics
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.kernels.flash_decode.lengths import KINDS
from autotune.kernels.moe.histogram import histogram_text
from autotune.kernels.moe.problem import GroupedProblem
from autotune.kernels.moe.routing import drawn_routing
from autotune.machine import H100, MI300X
from autotune.task import Task
from autotune.workloads import workload
from autotune.workloads.built_in.flash_decode import FlashDecodeOperation
from autotune.workloads.roofline import roofline

BUILT_IN = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode")


@pytest.mark.parametrize("machine", [H100, MI300X])
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_mode_has_a_finite_prediction(name: str, machine: object) -> None:
    found = workload(name)
    problem = found.default_problem(machine, 8)
    for mode in found.space.modes:
        for config in itertools.islice(found.space.enumerate(Task(problem, machine), mode), 200):
            predicted = found.predict(Task(problem, machine), config)
            assert predicted is not None and math.isfinite(predicted) and predicted > 0


def test_what_saves_launches_bytes_or_trips_is_predicted_to_take_less_time() -> None:
    gather = workload("all_gather_gemm")
    large = gather.problem_type(m=4096, n=8 * 4096, k=8192, world_size=8)
    scaled = gather.problem_type(m=4096, n=8 * 4096, k=8192, world_size=8, dtype="fp8", scales="row", b_order="nk")
    of_mode = {str(config["mode"]): config for config in reversed(gather.first_configs(Task(large, H100)))}
    default = of_mode["push"]
    eager, graph = (gather.baselines(Task(large, H100))[f"bsp {launch}"] for launch in ("eager", "graph"))
    copies = of_mode["copy_engine"]
    decode = workload("flash_decode")
    step = decode.problem_type(batch=4, q_heads=64, kv_heads=8, head_dim=128, kv_len=4096, world_size=8)
    fused = decode.default_config(Task(step, H100))
    in_turn = decode.baselines(Task(step, H100))
    pairs = [
        (gather, large, default, default.replace(block_m=64, block_n=64)),
        (gather, large, default.replace(loads="tma"), default.replace(loads="pointer")),
        (gather, large, default.replace(comm_programs=16), default.replace(comm_programs=1)),
        (gather, large, default, graph), (gather, large, graph, eager),
        (gather, large, copies, copies.replace(transfer_rows=16)),
        (gather, large, of_mode["pull_staged"], of_mode["pull"]), (gather, large, default, default.replace(copy_kib=2)),
        (gather, large, default, default.replace(num_stages=2)), (gather, large, default, default.replace(split_k=8)),
        (gather, large, default.replace(k_chunks=2), default.replace(k_chunks=1)),
        (decode, step, fused, fused.replace(reducer="kernel")),
        (decode, step, in_turn["bsp graph"], in_turn["bsp eager"]),
        (decode, step, fused, fused.replace(programs_per_head=1)),
        (decode, step, fused.replace(protocol="sentinel"), fused.replace(protocol="ll")),
        (decode, step, fused.replace(protocol="sentinel"), fused.replace(protocol="signal")),
    ]  # fmt: skip
    for number, (found, problem, less, more) in enumerate(pairs):
        one, other = found.predict(Task(problem, H100), less), found.predict(Task(problem, H100), more)
        assert one is not None and other is not None and one < other, number
    of_half, whole = gather.predict(Task(scaled, H100), graph), gather.predict(Task(large, H100), graph)
    assert of_half is not None and whole is not None and of_half < 0.7 * whole


def test_a_resource_without_work_is_left_out_of_the_roofline() -> None:
    alone = workload("all_gather_gemm").problem_type(m=64, n=64, k=64, world_size=1)
    found = roofline(alone, {"flops": 1e3, "memory": 2.0, "links": 5.0})
    assert found is not None and found.rates == {"flops": 1e3, "memory": 2.0, "links": 5.0}
    assert found.times == {"flops": 2 * 64**3 / 1e3, "memory": 2 * 2 * 64 * 64 / 2.0}
    assert roofline(alone, {"links": 5.0}) is None and roofline(alone, {}) is None


def busy(name: str, resource: str, **fields: Any) -> float:
    """Microseconds for which a problem keeps a resource busy that moves a byte in each."""
    found = roofline(workload(name).problem_type(**fields), {resource: 1.0})
    assert found is not None
    return found.times[resource]


@pytest.mark.parametrize("batch", [2, 3, 16])
@pytest.mark.parametrize("lengths", [*KINDS, "0,5,4096"])
def test_as_many_tokens_are_read_as_trials_of_every_seed_have(batch: int, lengths: str) -> None:
    sizes = {"q_heads": 8, "kv_heads": 2, "head_dim": 64, "kv_len": 4096, "world_size": 4}
    problem = workload("flash_decode").problem_type(batch=batch, lengths=lengths, **sizes)
    token = busy("flash_decode", "memory", batch=1, **sizes) / 4096
    tokens = busy("flash_decode", "memory", batch=batch, lengths=lengths, **sizes) / token
    for seed, rank in itertools.product(range(5), range(4)):
        operation: Any = SimpleNamespace(_problem=problem, _heap=SimpleNamespace(rank=rank))
        *_, timed = FlashDecodeOperation._drawn_lengths(operation, seed)
        assert int(timed.sum()) == round(tokens)


HOT = histogram_text([1000 if expert % 8 == 0 else 10 for expert in range(64)])


@pytest.mark.parametrize("tokens", [1, 4, 32])
@pytest.mark.parametrize(
    "routing",
    [{}, {"routing": "zipf", "exponent": 1.0}, {"routing": "recorded", "histogram": HOT}],
    ids=["uniform", "zipf", "recorded"],
)
def test_of_a_mixture_only_the_experts_that_get_tokens_are_read(tokens: int, routing: dict[str, Any]) -> None:
    sizes = {"hidden": 1024, "width": 1 << 20, "experts": 64, "top_k": 6, "world_size": 4, "tokens": tokens}
    problem = workload("moe_gemm_combine").problem_type(**sizes, **routing)
    assert isinstance(problem, GroupedProblem)
    drawn = [len(drawn_routing(problem, torch.device("cpu"), seed).ids.unique()) / 4 for seed in range(100)]
    of_expert = 2 * 1024 * sizes["width"]
    experts = busy("moe_gemm_combine", "memory", **sizes, **routing) / of_expert
    assert experts == pytest.approx(statistics.fmean(drawn), rel=0.05, abs=6 * tokens / 1024)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_parts_that_may_travel_as_fp8_keep_the_links_busy_as_such(world_size: int) -> None:
    sizes = {"m": 64, "n": 128, "k": 64 * world_size, "world_size": world_size}
    parts = (world_size - 1) * 64 * 128 // world_size
    assert busy("gemm_reduce_scatter", "links", **sizes) == 2 * parts
    assert busy("gemm_reduce_scatter", "links", wire="fp8", **sizes) == parts
    assert busy("gemm_all_reduce", "links", **sizes) == (2 + 2) * parts
    # Its sums travel as they are; two ranks send each other everything instead.
    assert busy("gemm_all_reduce", "links", wire="fp8", **sizes) == (1 + 2 if world_size > 2 else 2) * parts
