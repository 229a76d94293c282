"""Configs that the space calls valid compile for NVIDIA's and AMD's GPUs, on a machine that has neither."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from typing import Any

import pytest
from compile_worker import Compilers, assembly
from edges import sampled
from every_mode import whole

from autotune.config import Config
from autotune.dtypes import multiplies
from autotune.errors import InvalidProblem
from autotune.machine import A100, B200, CHIPS, H100, L40S, MI300X, MI350X, Machine
from autotune.problem import Problem
from autotune.task import Task
from autotune.taxes.measure import ladder_of
from autotune.workloads import workload

SAMPLE = int(os.environ.get("COMPILE_SAMPLE", "12"))
"""Configs of each workload, over all targets, with ``-m slow``."""

REGISTERS = 65536
"""Of a multiprocessor of sm_90, which has 228 KiB of shared memory, 1 KiB of each program's the system's."""

WITHOUT_SHARED_MEMORY = {
    "push_kernel", "sum_kernel", "barrier_kernel", "all_reduce_norm_kernel", "add_norm_kernel", "signal_chunk_kernel",
    "wait_for_chunk_kernel", "seal_kernel", "reduce_kernel", "combine_kernel",
}  # fmt: skip
"""A row may be one warp's, and so may a signal and, with Triton 3.9, a wait."""
LAUNCH_NOTHING_OF_OURS = {"bsp"}

ASIDE = {"specialized_kernel": 8, "specialized_grouped_kernel": 8}
"""Words that warp-specialized kernels may put aside before their loops: none of them is a sum."""
LAUNCH_OTHERS = {
    "moe_dispatch_gemm": {"custom_collective"}, "moe_gemm_combine": {"custom_collective", "unfused"},
    "gemm_all_reduce_norm": {"custom_collective", "library_collective"}, "flash_decode": {"iris_all_gather"},
}  # fmt: skip
"""Modes whose kernels are those of another workload or mode: compiled for that one, and with ``-m slow`` for both."""
FOR_AMD_BELOW = {"all_gather_gemm", "moe_gemm_combine", "flash_decode"}
"""Workloads that are compiled for AMD's GPUs with scales, or as rungs of the taxes."""
WITH_SCALES = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_reduce_norm")


def problem(name: str, **fields: Any) -> Problem:
    return workload(name).problem_type(**fields)


MIXTURE = {"tokens": 128, "hidden": 7168, "experts": 256, "top_k": 8, "world_size": 8}
SMALL_MIXTURE = {"tokens": 9, "hidden": 2888, "experts": 6, "top_k": 1, "world_size": 6}
DECODE = {"batch": 4, "q_heads": 96, "kv_heads": 12, "kv_len": 32768, "world_size": 8}
FP8 = {"dtype": "fp8", "scales": "row", "b_order": "nk"}
ODD = {"dtype": "fp16", "bias": True, "b_order": "nk"}
FIELDS: dict[str, list[dict[str, Any]]] = {
    "all_gather_gemm": [
        {"m": 1024, "n": 28672, "k": 8192, "world_size": 4},
        {"m": 200, "n": 8 * 360, "k": 2880, "world_size": 8, "layout": "k", "epilogue": "swiglu", **ODD},
    ],
    "gemm_reduce_scatter": [
        {"m": 4096, "n": 8192, "k": 28672, "world_size": 8},
        {"m": 8 * 25, "n": 360, "k": 8 * 104, "world_size": 8, "residual": True, **ODD},
        {"m": 8, "n": 2880, "k": 4 * 2880, "world_size": 4, "dtype": "fp32"},
    ],
    "gemm_all_reduce": [
        {"m": 64, "n": 8192, "k": 28672, "world_size": 8},
        {"m": 9, "n": 360, "k": 6 * 500, "world_size": 6, "residual": True, **ODD},
    ],
    "all_reduce_norm": [{"m": 64, "n": 8192, "world_size": 8}, {"m": 3, "n": 5120, "world_size": 6, "dtype": "fp16"},
                        {"m": 64, "n": 7168, "world_size": 8, "quantised": "block"}],
    "gemm_all_reduce_norm": [{"m": 64, "n": 8192, "k": 28672, "world_size": 8}],
    "moe_dispatch": [MIXTURE, {**MIXTURE, "dtype": "fp8", "scales": "block"}, {**SMALL_MIXTURE, "dtype": "fp32"}],
    "moe_dispatch_gemm": [
        {**MIXTURE, "width": 2048},
        {**SMALL_MIXTURE, "width": 360, "dtype": "fp16", "b_order": "kn", "gate_up": "interleaved",
         "epilogue": "swiglu_oai", "bias": True},
    ],
    "moe_gemm_combine": [
        {**MIXTURE, "width": 2048}, {**SMALL_MIXTURE, "width": 520, "b_order": "kn", "dtype": "fp32", "bias": True},
    ],
    "moe_combine": [MIXTURE, {**SMALL_MIXTURE, "dtype": "fp32"}],
    "flash_decode": [
        {**DECODE, "head_dim": 128, "dtype": "fp16"}, {**DECODE, "head_dim": 256, "page_size": 16, "soft_cap": 30},
        {**DECODE, "head_dim": 64, "page_size": 256, "result": "heads"},
        {**DECODE, "q_heads": 64, "kv_heads": 1, "head_dim": 512, "rope": 64, "page_size": 64},
    ],
}  # fmt: skip
"""Large and even; small and odd."""
PROBLEMS = {name: [problem(name, **fields) for fields in several] for name, several in FIELDS.items()}


def sample(task: Task[Problem], count: int, small: bool = False) -> list[Config]:
    """Large blocks take the compiler ten times as long."""
    space = workload(task.problem.workload).space.narrowed(task)
    return sampled(space, task, count, frozenset(LAUNCH_NOTHING_OF_OURS), _blocks if small else None)


def _blocks(config: Config) -> int:
    return math.prod(int(value) for name, value in config.items() if name.startswith("block_") or name == "num_stages")


def taken(name: str, machine: Machine) -> list[Problem]:
    """The problems that a machine runs in any mode."""
    found = []
    for each in PROBLEMS[name]:
        with contextlib.suppress(InvalidProblem):
            workload(name).space.check_problem(Task(each, machine))
            found.append(each)
    return found


def modes_of(name: str, machine: Machine) -> set[str]:
    """The modes with kernels of their own: on sm_90 all of them."""
    space = workload(name).space
    found = {mode for problem in taken(name, machine) for mode in space.narrowed(Task(problem, machine)).modes}
    assert machine != H100 or found == set(space.modes)
    return found - LAUNCH_NOTHING_OF_OURS


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_mode_compiles_and_fits(name: str, compilers: Compilers) -> None:
    """The problems in turn; for NVIDIA all modes, for one or the other of AMD's GPUs one of them."""
    turn = list(PROBLEMS).index(name)
    for machine in (H100,) if name in FOR_AMD_BELOW else (H100, (MI300X, MI350X)[turn % 2]):
        count, modes = len(modes_of(name, machine)), sorted(modes_of(name, machine) - LAUNCH_OTHERS.get(name, set()))
        drawn = [
            (problem, each) for problem in PROBLEMS[name] for each in sample(Task(problem, machine), count, small=True)
        ]
        ways = [[(problem, config) for problem, config in drawn if config["mode"] == mode] for mode in modes]
        assert all(ways)
        jobs = [found[number % len(found)] for number, found in enumerate(ways)]
        fits(machine, jobs if machine.kind == "cuda" else [jobs[turn % len(jobs)]], compilers)


@pytest.mark.slow
@pytest.mark.parametrize("machine", CHIPS, ids=lambda machine: machine.arch)
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_sample_of_the_space_compiles_and_fits(name: str, machine: Machine, compilers: Compilers) -> None:
    count = max(len(modes_of(name, machine)), SAMPLE // 3 // len(PROBLEMS[name]))
    problems = [each for each in taken(name, machine) if multiplies(machine.kind, machine.arch, each.dtype)]
    jobs = [(problem, config) for problem in problems for config in sample(Task(problem, machine), count)]
    assert {config["mode"] for _, config in jobs} == modes_of(name, machine)
    # The search finds those slow; more would say that the constraint on registers is wrong. (What NVIDIA's tool states
    # is all of the stack.)
    assert fits(machine, jobs, compilers) <= max(1, len(jobs) // 5)


def fits(machine: Machine, jobs: list[tuple[Problem, Config]], compilers: Compilers) -> int:
    """Compile them all; returns how many kernels spill registers where that says something."""
    spilled = 0
    for config, kernels in compilers.compiled(machine, jobs):
        for kernel in kernels:
            room = 0 < kernel.shared_memory <= machine.shared_memory
            assert room or kernel.name in WITHOUT_SHARED_MEMORY, f"{config}: {kernel}"
            assert kernel.registers is not None and kernel.spills is not None, f"{config}: {kernel}"
            spilled += kernel.spills > 0 and machine.kind == "hip"
    return spilled


@pytest.mark.parametrize(
    ("name", "machine", "which"),
    [
        ("all_reduce_norm", B200, slice(1)),
        ("gemm_reduce_scatter", A100, slice(1)),
        *(whole(name, machine, slice(None)) for name in PROBLEMS for machine in CHIPS),
    ],
    ids=lambda value: getattr(value, "arch", None),
)
def test_first_configs_do_not_run_out_of_registers(
    name: str, machine: Machine, which: slice, compilers: Compilers
) -> None:
    found = workload(name)
    task = Task(found.default_problem(machine, 8), machine)
    first = dict.fromkeys([found.default_config(task), *found.first_configs(task)])
    configs = [config for config in first if config["mode"] not in LAUNCH_NOTHING_OF_OURS][which]
    assert configs or not machine.has_peer_atomics
    for config, kernels in compilers.compiled(machine, [(task.problem, config) for config in configs]):
        for kernel in kernels:
            assert kernel.spills <= ASIDE.get(kernel.name, 0), f"{config}: {kernel}"


@pytest.mark.parametrize(
    ("machine", "dtype", "which"),
    [
        (H100, "fp8", slice(2, None, 4)),  # one of each kind of scales
        (MI300X, "fp8_fnuz", slice(0, None, 4)),
        whole(H100, "fp8", slice(None)),
        whole(MI350X, "fp8", slice(0, None, 4)),
        whole(dataclasses.replace(L40S, interconnect="nvlink"), "fp8", slice(0, None, 2)),
    ],
    ids=lambda value: getattr(value, "arch", value),
)
def test_scaled_gemms_compile_for_the_machines_that_multiply_them(
    machine: Machine, dtype: str, which: slice, compilers: Compilers
) -> None:
    fields = {"m": 256, "n": 4 * 1024, "k": 4 * 1024, "dtype": dtype, "b_order": "nk", "world_size": 4}
    jobs = []
    for name, scales, count in (
        ("all_gather_gemm", "row", 4), ("all_gather_gemm", "block", 4), ("gemm_reduce_scatter", "block", 2),
        ("gemm_all_reduce", "tensor", 1),
    ):  # fmt: skip
        each = problem(name, scales=scales, **fields)
        configs = sample(Task(each, machine), count, small=True)
        jobs += [(each, config) for config in configs if config["mode"] != "custom_collective"]
    jobs = jobs[which]
    assert {problem.scales for problem, _ in jobs} >= {"row", "block"}
    sizes = {"tokens": 128, "hidden": 2048, "width": 1024, "experts": 32, "top_k": 4, "dtype": dtype, "world_size": 4}
    name, scales = ("moe_dispatch_gemm", "row") if machine.kind == "cuda" else ("moe_gemm_combine", "block")
    each = problem(name, scales=scales, **sizes)
    jobs += [(each, config) for config in sample(Task(each, machine), 1, small=True)]
    fits(machine, jobs, compilers)


def test_a_preload_takes_the_shared_memory_of_a_stage_more(compilers: Compilers) -> None:
    """So the space of sm_90 leaves out six stages of this tile with a preload: 229 of 227 KiB."""
    each = problem("all_gather_gemm", m=64, n=28672, k=8192, world_size=2)
    tile = {"block_m": 64, "block_n": 64, "block_k": 128, "num_stages": 3, "preload_b": True}
    pushes = (c for c in workload("all_gather_gemm").first_configs(Task(each, H100)) if c["mode"] == "push")
    preloads = next(pushes).replace(**tile)
    jobs = [(each, preloads), (each, preloads.replace(num_stages=4, preload_b=False))]
    (preloading, other) = (kernels[-1] for _, kernels in compilers.compiled(H100, jobs))
    assert preloading.shared_memory >= 4 * (64 + 64) * 128 * 2
    assert abs(preloading.shared_memory - other.shared_memory) < 64
    space = workload("all_gather_gemm").space
    assert str(space.violation(preloads.replace(num_stages=6), Task(each, H100))).startswith("preload")
    assert space.violation(preloads.replace(num_stages=5), Task(each, H100)) is None


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("all_gather_gemm", {"m": 1024, "n": 2 * 4096, "k": 4096}),
        whole("moe_gemm_combine", {"tokens": 1024, "hidden": 7168, "width": 2048, "experts": 32, "top_k": 8}),
    ],
)
def test_two_programs_with_promoted_sums_fit_on_a_multiprocessor(
    name: str, sizes: dict[str, int], compilers: Compilers
) -> None:
    """Else the tensor cores wait: with spills, or alone, they took a third to a half longer on H200."""
    each = problem(name, **sizes, dtype="fp8", scales="row", b_order="nk", world_size=2)
    found = workload(name)
    configs = [config for config in found.first_configs(Task(each, H100)) if config["mode"] == "push"][:1]
    (kernel,) = [
        kernel
        for _, kernels in compilers.compiled(H100, [(each, config) for config in configs])
        for kernel in kernels
        if kernel.name in ("gather_gemm_kernel", "gemm_combine_kernel")
    ]
    assert kernel.spills <= 2, "what lives beside a loop of products may be put aside, once"
    assert 2 * kernel.registers * 32 * kernel.warps <= REGISTERS
    assert 2 * (kernel.shared_memory + 1024) <= 228 << 10


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("gemm_reduce_scatter", slice(1)),
        *(whole(name, slice(9)) for name in ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")),
    ],
)
def test_on_blackwell_the_compiler_gives_loads_warps_of_their_own(
    name: str, which: slice, compilers: Compilers
) -> None:
    each = problem(name, m=4096, n=8192, k=8192, world_size=2)
    task, space = Task(each, B200), workload(name).space
    tile = {"loads": "specialized", "block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}
    firsts = {c["mode"]: c.replace(**tile) for c in workload(name).first_configs(task) if "loads" in c}
    configs = [config for config in firsts.values() if space.violation(config, task) is None][which]
    assert configs
    for config, kernels in compilers.compiled(B200, [(each, config) for config in configs]):
        assert all(kernel.spills == 0 for kernel in kernels), config
        assert any("setmaxnreg" in text for text in compilers.submit(B200, assembly, task, config).result()), config
        assert str(space.violation(config, Task(each, H100))).startswith("warps of their own")


SPECIALIZED = {
    "all_gather_gemm": {"m": 2048, "n": 28672, "k": 8192},
    "moe_dispatch_gemm": {"tokens": 2048, "hidden": 7168, "width": 2048, "experts": 64, "top_k": 8},
}


@pytest.mark.parametrize(
    ("name", "fields", "which"),
    [
        ("all_gather_gemm", FP8, slice(1, 2)),
        ("all_gather_gemm", {"m": 256}, slice(1)),  # across shards
        ("moe_dispatch_gemm", {**FP8, "scales": "block"}, slice(1)),
        *(whole(name, fields, slice(9)) for name in SPECIALIZED for fields in (
            {}, FP8, {"b_order": "nk", "bias": True}, {**FP8, "fast_accum": True},
            {"b_order": "nk", "epilogue": "swiglu"}, {**FP8, "epilogue": "swiglu"},
            {**FP8, "scales": "block"}, {**FP8, "scales": "block", "epilogue": "swiglu"},
        )),
    ],
)  # fmt: skip
def test_warp_specialized_kernels_keep_their_sums_in_registers(
    name: str, fields: dict[str, Any], which: slice, compilers: Compilers
) -> None:
    each = problem(name, **{**SPECIALIZED[name], "world_size": 2} | fields)
    configs = [c for c in workload(name).first_configs(Task(each, H100)) if c["mode"] == "warp_specialized"]
    assert len(configs) >= 2
    kernels = [kernels[-1] for _, kernels in compilers.compiled(H100, [(each, config) for config in configs[which]])]
    assert kernels and all(kernel.spills <= ASIDE[kernel.name] and kernel.resident in (132, None) for kernel in kernels)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("all_gather_gemm", {"m": 1024, "n": 2 * 14336, "k": 8192, "epilogue": "swiglu"}),
        whole("moe_dispatch_gemm", {"tokens": 1024, "hidden": 7168, "width": 2048, "experts": 32, "top_k": 8}),
    ],
)
def test_gate_and_up_in_halves_are_loaded_as_columns_in_turns_are(
    name: str, sizes: dict[str, int], compilers: Compilers
) -> None:
    """In vectors that are on their way stages ahead, and so in shared memory. One by one they took 14 times as long."""
    tile = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3, "loads": "pointer"}
    jobs = []
    for gate_up in ("halves", "interleaved"):
        each = problem(name, **sizes, gate_up=gate_up, b_order="kn", world_size=2)
        first = next(c for c in workload(name).first_configs(Task(each, H100)) if "num_warps" in c and "block_m" in c)
        jobs.append((each, first.replace(**tile)))
    halves, in_turns = (kernels[-1] for _, kernels in compilers.compiled(H100, jobs))
    assert halves.shared_memory == in_turns.shared_memory >= 2 * 256 * 64 * 2


def test_a_shard_of_one_column_and_rows_of_b_that_tma_does_not_take_compile(compilers: Compilers) -> None:
    odd = [
        problem("all_gather_gemm", m=32, n=64, k=1, world_size=1),
        problem("all_gather_gemm", m=32, n=64, k=2, layout="k", b_order="nk", world_size=2),
        problem("gemm_reduce_scatter", m=64, n=36, k=128, out_dtype="fp32", world_size=2),
    ]
    jobs = [(each, workload(each.workload).default_config(Task(each, H100))) for each in odd]
    fits(H100, jobs, compilers)


@pytest.mark.parametrize(("machine", "dtype"), [(H100, "fp8_fnuz"), (MI300X, "fp8"), (MI350X, "fp8_fnuz")])
def test_a_machine_without_matrix_units_for_an_element_type_says_so(machine: Machine, dtype: str) -> None:
    for name in WITH_SCALES:
        found = workload(name)
        each = problem(name, m=64, n=256, k=256, dtype=dtype, scales="row", b_order="nk", world_size=2)
        told = found.space.violation(found.default_config(Task(each, machine)), Task(each, machine))
        assert told is not None and told.startswith("element type")
        for refused in (found.space.check_problem, found.space.narrowed):
            with pytest.raises(InvalidProblem, match=machine.arch):
                refused(Task(each, machine))


OVERLAPPING = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode")


@pytest.mark.parametrize(
    ("machine", "name", "letters"),
    [
        (H100, "gemm_all_reduce", "B"), (MI300X, "flash_decode", "B"),  # the two most unlike
        *(whole(machine, name, "BDF") for machine in (H100, MI300X, MI350X) for name in OVERLAPPING),
    ],
    ids=lambda value: getattr(value, "arch", value),
)  # fmt: skip
def test_rungs_of_the_taxes_compile(machine: Machine, name: str, letters: str, compilers: Compilers) -> None:
    found = workload(name)
    task = Task(found.default_problem(machine, 4), machine)
    config = next(each for each in found.first_configs(task) if each["mode"] in found.overlapping)
    rungs, _ = ladder_of(found, task, config, config)
    jobs = [(task.problem, rungs[letter]) for letter in letters if letter in rungs]
    assert jobs
    fits(machine, jobs, compilers)
