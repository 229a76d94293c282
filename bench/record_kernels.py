"""Records the spaces of other people's Triton kernels (``foreign_kernels.py``) on one NVIDIA GPU, a table for each.

    python bench/record_kernels.py --out recorded                    # needs a GPU and the kernels' packages
    python bench/record_kernels.py --compile-only 3                  # compiles three configs of each, without a GPU

Configs, in a random order, are compiled in a pool of processes, then checked against torch and measured by one process
that is started anew where a config breaks it. When a kernel's time is up, its table holds what was done until then.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import random
import statistics
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from arguments import new_parser, positive, some_of, whole
from foreign_kernels import FOREIGN, Arguments, Foreign
from triton.runtime.errors import OutOfResources

from autotune.config import Config
from autotune.db import Provenance
from autotune.kernels.launching.plan import compile_offline_for
from autotune.machine import H100, Machine, machine, versions
from autotune.outcome import Evaluation, Latency, Outcome
from autotune.recordings.file import write
from autotune.recordings.recording import Recording
from autotune.task import Task

WARMUP, ITERATIONS = 2, 10
FEW_ITERATIONS = 3
"""Iterations of kernels that take more than a multiple of the fastest."""
SLOW = 5.0

EVICTED_BYTES = 256 << 20
SLEEP_CYCLES = 500_000
"""The device waits before a measured call, a quarter of a millisecond: the host has enqueued it by then."""

TOLERANCE = 0.02
"""Largest Frobenius norm of an error over that of the reference."""

NO_PROBLEM: Any = None
"""No constraint of these spaces asks a problem for anything."""

DEVICE_SECONDS = 60.0
"""The longest that one config may take on the device, the making of the inputs included."""


def begin_compiler(names: list[str], target: Machine) -> None:
    """Import the kernels, then compile for ``target``: their packages ask the true driver as they are imported."""
    for name in names:
        FOREIGN[name].kernel()
    compile_offline_for(target)


def compile_one(name: str, config: Config, target: Machine) -> Evaluation | None:
    foreign, arguments = FOREIGN[name], meta_arguments(name)
    try:
        bound = foreign.bound(config, arguments)
        compiled = foreign.kernel().warmup(grid=foreign.grid(config, arguments), **bound)
    except Exception as error:  # noqa: BLE001  a compiler: whatever it raises is this config's end
        return Evaluation(Outcome.DID_NOT_COMPILE, one_line(error))
    shared = compiled.metadata.shared
    if shared > target.shared_memory:
        return Evaluation(Outcome.OUT_OF_RESOURCES, f"more than {target.shared_memory} bytes of shared memory")
    return None


def one_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[-1].strip()}"[:120]


@functools.cache
def meta_arguments(name: str) -> Arguments:
    return FOREIGN[name].arguments("meta")


@functools.cache
def device_arguments(name: str) -> tuple[Arguments, torch.Tensor]:
    torch.manual_seed(0)
    arguments = FOREIGN[name].arguments("cuda")
    return arguments, FOREIGN[name].reference(arguments).float()


@functools.cache
def evicted() -> torch.Tensor:
    return torch.empty(EVICTED_BYTES, dtype=torch.int8, device="cuda")


def measure_one(name: str, config: Config, fastest: float) -> Evaluation:
    """In the process that has the device: check the config, then measure it."""
    begin = time.monotonic()
    try:
        evaluation = _measured(FOREIGN[name], config, fastest)
    except OutOfResources as error:
        evaluation = Evaluation(Outcome.OUT_OF_RESOURCES, one_line(error))
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)  # after an illegal access, say, nothing runs in this process any more
    return dataclasses.replace(evaluation, seconds={"total": time.monotonic() - begin})


def _measured(foreign: Foreign, config: Config, fastest: float) -> Evaluation:
    arguments, wanted = device_arguments(foreign.name)
    kernel, grid = foreign.kernel(), foreign.grid(config, arguments)
    bound, output, adds = foreign.bound(config, arguments), arguments[foreign.output], foreign.adds(config)

    def call() -> None:
        if adds:
            output.zero_()
        kernel[grid](**bound)

    output.fill_(-1) if not output.is_floating_point() else output.fill_(float("nan"))
    call()
    error = float((output.float() - wanted).norm() / wanted.norm())
    if not error <= TOLERANCE:
        return Evaluation(Outcome.WRONG_RESULT, "the output differs from the reference")
    times = [timed(call) for _ in range(WARMUP)]
    times = [timed(call) for _ in range(ITERATIONS if times[-1] < SLOW * fastest else FEW_ITERATIONS)]
    low, high = (statistics.quantiles(times, n=5)[i] for i in (0, 3))
    return Evaluation(Outcome.MEASURED, latency=Latency(statistics.median(times), low, high, 0.0, len(times)))


def timed(call: Any) -> float:
    """Microseconds of one call, the L2 evicted, enqueued while the device sleeps."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    evicted().zero_()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


class Device:
    """One process that measures, and its successors."""

    def __init__(self) -> None:
        self._pool = _pool(1)

    def machine(self) -> Machine:
        return self._pool.submit(machine).result()

    def evaluate(self, name: str, config: Config, fastest: float) -> Evaluation:
        try:
            return self._pool.submit(measure_one, name, config, fastest).result(timeout=DEVICE_SECONDS)
        except FutureTimeout:
            evaluation = Evaluation(Outcome.TIMED_OUT, "no answer from the device")
        except BrokenProcessPool:
            evaluation = Evaluation(Outcome.CRASHED, "the device's process ended")
        self.close()
        self._pool = _pool(1)
        return evaluation

    def close(self) -> None:
        stop(self._pool)


def _pool(workers: int, initializer: Any = None, *arguments: Any) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, get_context("spawn"), initializer, arguments)


def stop(pool: ProcessPoolExecutor) -> None:
    """End a pool and whatever its processes are busy with."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()


def record(
    foreign: Foreign, compilers: ProcessPoolExecutor, device: Device, target: Machine, seconds: float
) -> Recording:
    """Compile and measure as many configs as the time allows."""
    deadline = time.monotonic() + seconds
    everything: list[Config] = list(foreign.space.enumerate(Task(NO_PROBLEM, target)))
    shuffled = random.Random(0).sample(everything, len(everything))
    compiling: dict[Future[Evaluation | None], Config] = {
        compilers.submit(compile_one, foreign.name, config, target): config for config in shuffled
    }
    evaluations: dict[Config, Evaluation] = {}
    fastest = float("inf")
    try:
        for future in as_completed(compiling, timeout=seconds):
            config = compiling[future]
            evaluation = future.result() or device.evaluate(foreign.name, config, fastest)
            evaluations[config] = evaluation
            if evaluation.latency is not None:
                fastest = min(fastest, evaluation.latency.median)
            if time.monotonic() > deadline:
                break
    except FutureTimeout:
        pass
    for future in compiling:
        future.cancel()
    version = f"{foreign.package} {importlib.metadata.version(foreign.package)}"
    source = hashlib.sha256(str(foreign.kernel().src).encode()).hexdigest()[:16]
    return Recording(
        workload=foreign.name,
        problem={"package": version, "kernel": foreign.path, **foreign.problem},
        machine=target,
        provenance=Provenance(source, foreign.space.fingerprint(), **{**versions(), "iris": ""}),
        recorded_at=datetime.now(UTC),
        origin="measured",
        restriction={},
        dimensions={name: dimension.values for name, dimension in foreign.space.dimensions.items()},
        evaluations={config: evaluations[config] for config in everything if config in evaluations},
    )


def importable(name: str) -> bool:
    """False, and a line on stderr, where the kernel's package is missing."""
    try:
        importlib.metadata.version(FOREIGN[name].package)
        return True
    except importlib.metadata.PackageNotFoundError:
        print(f"{name} is left out: {FOREIGN[name].package} is not installed", file=sys.stderr)
        return False


def compile_few(names: list[str], count: int, workers: int) -> int:
    """Compile some configs of each kernel for an H100; returns how many kernels have none that compiles."""
    broken = 0
    compilers = _pool(workers, begin_compiler, names, H100)
    for name in names:
        everything = list(FOREIGN[name].space.enumerate(Task(NO_PROBLEM, H100)))
        begin = time.monotonic()
        chosen = random.Random(0).sample(everything, min(count, len(everything)))
        ended = list(compilers.map(compile_one, [name] * len(chosen), chosen, [H100] * len(chosen)))
        seconds = (time.monotonic() - begin) * workers / len(chosen)
        refused = [f"{each.outcome}: {each.reason}" for each in ended if each is not None]
        print(f"{name}: {len(everything)} configs, {len(refused)} of {len(chosen)} refused, {seconds:.1f} s for each")
        print("".join(f"    {count} x {reason}\n" for reason, count in Counter(refused).items()), end="", flush=True)
        broken += len(refused) == len(chosen)
    stop(compilers)
    return broken


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("recorded"), help="the folder for the tables")
    parser.add_argument("--seconds", type=positive, default=90.0, help="for each kernel, compilation included")
    parser.add_argument("--only", type=some_of(FOREIGN), default=[*FOREIGN], help=f"default: {','.join(FOREIGN)}")
    parser.add_argument("--workers", type=whole, default=len(os.sched_getaffinity(0)), help="processes that compile")
    parser.add_argument("--compile-only", type=whole, metavar="COUNT", help="so many configs of each; needs no GPU")
    arguments = parser.parse_args()
    names = [name for name in arguments.only if importable(name)]
    if arguments.compile_only is not None:
        sys.exit(compile_few(names, arguments.compile_only, arguments.workers))
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = Device()
    target = device.machine()
    if target.is_interpreter:
        sys.exit("no GPU is visible: --compile-only does without")
    compilers = _pool(arguments.workers, begin_compiler, names, target)
    for name in names:
        begin = time.monotonic()
        recording = record(FOREIGN[name], compilers, device, target, arguments.seconds)
        write(recording, arguments.out / f"{name}.json.gz")
        ended = Counter(str(evaluation.outcome) for evaluation in recording.evaluations.values())
        size = FOREIGN[name].space.size(Task(NO_PROBLEM, target))
        optimum = f"{recording.optimum:.1f} µs" if ended["measured"] else "nothing measured"
        print(f"{name}: {sum(ended.values())} of {size} configs, {dict(ended)}, optimum {optimum}, "
              f"{time.monotonic() - begin:.0f} s", flush=True)  # fmt: skip
    device.close()
    stop(compilers)


if __name__ == "__main__":
    main()
