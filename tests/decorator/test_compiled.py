"""Triton features of compiled kernels only: its own cache of timings on disk, and listeners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from small_kernels import SIZES, Clock, copy
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

import autotune
from autotune.db import Store


class Unlaunched(KernelInterface[Any]):
    """Stands before a compiled kernel and launches nothing: there is no GPU."""

    def __init__(self, kernel: Any) -> None:
        self.fn = kernel
        self.arg_names = kernel.arg_names

    def run(self, *args: Any, **kwargs: Any) -> None:
        pass


class Target:
    """The part of a driver that Triton's cache key needs."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def compiled_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(driver, "_active", Target())


def launched(decorate: Any, clock: Clock, **options: Any) -> Any:
    kernel = decorate(SIZES, key=["n"], do_bench=clock, cache_results=True, **options)(Unlaunched(copy()))
    kernel[(1,)](torch.zeros(8), torch.zeros(8), 8)
    return kernel


def test_what_triton_has_timed_is_taken_over(tmp_path: Path) -> None:
    launched(triton.autotune, Clock(3, 1, 2))
    ours = launched(autotune.autotune, Clock())
    assert ours.best_config == SIZES[1]
    with Store.open() as store:
        (entry,) = store.entries("copy")
        sources = [trial.source for trial in store.trials(entry.study_id)]
    assert entry.winner.latency.median == 1000.0 and sources == ["adopted"] * 3


def test_after_an_interrupt_triton_takes_over_the_timings_from_before_it_too() -> None:
    with pytest.raises(IndexError, match="pop from empty list"):
        launched(autotune.autotune, Clock(3, 1))
    ours = launched(autotune.autotune, Clock(2))
    assert ours.best_config is SIZES[1]
    assert list(ours.configs_timings.items()) == [(SIZES[0], [3] * 3), (SIZES[1], [1] * 3), (SIZES[2], [2] * 3)]
    assert launched(triton.autotune, Clock()).best_config == SIZES[1]


@pytest.mark.skipif(not hasattr(triton.knobs.autotuning, "listener"), reason="listeners came with Triton 3.8")
@pytest.mark.parametrize("decorate", [triton.autotune, autotune.autotune], ids=["triton", "ours"])
def test_a_listener_hears_of_a_tuning(monkeypatch: pytest.MonkeyPatch, decorate: Any) -> None:
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(triton.knobs.autotuning, "listener", lambda **told: heard.append(told))
    kernel = launched(decorate, Clock(3, 1, 2))
    kernel[(1,)](torch.zeros(8), torch.zeros(8), 8)
    (told,) = heard
    assert told["fn"] is kernel.fn.fn and told["best_config"] is SIZES[1] and told["key"][0] == 8
    assert list(told["configs_timings"].values()) == [[3] * 3, [1] * 3, [2] * 3]
    assert told["duration"] > 0 and told["cache_hit"] is False


def test_torch_compile_asks_no_database_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    kernel, graphs = autotune.autotune(SIZES, key=["n"], do_bench=Clock())(copy()), []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph.code)
        return lambda *arguments: (arguments[-1],)

    @torch.compile(backend=backend, fullgraph=True, dynamic=False)
    def copied(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[(1,)](out, x, x.numel())
        return out

    assert list(kernel.configs) == SIZES and not caplog.messages
    copied(torch.zeros(8))
    copied(torch.zeros(9))
    assert len(graphs) == 2 and all("triton_kernel_wrapper" in code for code in graphs)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "autotune"]
    assert said.startswith("copy: torch.compile") and "torch.library.custom_op" in said
