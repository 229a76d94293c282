"""The stopwatch and the rates on GPUs: two ranks take turns on one if there is no second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.machine import machine
from autotune.ranks.gang import Gang
from autotune.task import Task
from autotune.tuning.finals import finals_plan
from autotune.workloads import workload

pytestmark = pytest.mark.gpu(1)


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    found = workload("all_gather_gemm")
    with Gang(found, Task(found.problem_type(m=1024, n=4096, k=4096, world_size=2), machine())) as started:
        yield started


def test_a_config_has_its_time_on_the_device_the_hosts_and_that_of_an_isolated_call(gang: Gang) -> None:
    config = gang.workload.default_config(Task(gang.problem, gang.machine))
    latency = gang.evaluate(config, 1, finals_plan(10)).latency
    assert latency is not None and latency.host is not None and latency.isolated is not None
    print(f"device {latency.median:.1f} µs, host {latency.host:.1f} µs, isolated {latency.isolated:.1f} µs")
    assert 1 < latency.host < 5000 and latency.isolated > latency.host
    assert latency.iterations >= 10


def test_the_rates_are_those_of_a_gpu(gang: Gang) -> None:
    rates = gang.measure_rates("bf16")
    print({name: f"{rate:.3g}" for name, rate in rates.items()})
    assert set(rates) == {"links", "memory", "flops"}
    assert rates["flops"] > 20e6 and rates["memory"] > 0.2e6 and rates["links"] > 1e3
