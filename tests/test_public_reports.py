"""Faults that users of other projects have reported, each tried on this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from ranks_of_functions import run_ranks
from small_kernels import SIZES, Clock, Recorder, copy, grid, tensors
from two_ranks import EVERYWHERE

import autotune
from autotune.db import Store
from autotune.errors import NotTuned
from autotune.runtime.entries import forget_entries

OPERATORS = Path(__file__).parent / "runtime" / "operators"
WORST = 2e-2
"""Relative error of a right result in bf16, which the interpreter cuts off."""
NEVER = Clock()
"""A bench that fails when it is asked."""


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    forget_entries()


def on_ranks(file: str, function: str, ranks: int, folder: Path, gpu: bool | str = False) -> list[Any]:
    """A function of the operators' tests, with a database that is not there."""
    url = f"sqlite:///{folder / 'none.db'}"
    return run_ranks(str(OPERATORS / file), function, ranks, folder, gpu=gpu, argument=url)


def decorated(clock: Any = NEVER, **options: Any) -> Any:
    """A kernel as in a new process."""
    kernel = autotune.autotune(SIZES, key=["n"], do_bench=clock, **options)(copy())
    kernel.forget()
    return kernel


def source(kernel: Any) -> str:
    (found,) = kernel.decisions.values()
    return str(found.source)


@pytest.mark.parametrize("gpu", EVERYWHERE)
def test_2_an_entry_on_one_rank_alone(tmp_path: Path, gpu: str) -> None:
    """The others tune, or wait for ever: vLLM #57423, sglang #40320."""
    of_first, of_last = on_ranks("corners_on_ranks.py", "different_databases", 2, tmp_path, gpu)
    for found in (of_first, of_last):
        assert [entry[:2] for entry in found] == [["exact", True], ["default", False]]
    assert [entry[2] for entry in of_last] == [[], []]
    for (told,), words in zip(
        [entry[2] for entry in of_first], (("exact", "default"), ("default", "exact")), strict=True
    ):
        sources = [f"of_{rank}.db: {source}" for rank, source in enumerate(words)]
        assert "different answers" in told and all(source in told for source in sources)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("on_miss", ["tune", "nearest", "default"])
def test_3_a_first_launch_within_a_capture(monkeypatch: pytest.MonkeyPatch, on_miss: Any) -> None:
    """It fails, or captures the benchmark: triton #10596 and #10604."""

    def launched(clock: Clock, n: int = 200, **options: Any) -> str:
        kernel = decorated(clock, **options)
        kernel[grid](*tensors(n), n)
        return source(kernel)

    with monkeypatch.context() as patched:
        patched.setattr("autotune.decorator.decision._is_captured", lambda machine: True)
        if on_miss == "tune":
            with pytest.raises(NotTuned, match="before the capture"):
                launched(NEVER, on_miss=on_miss)
        else:
            assert launched(NEVER, on_miss=on_miss) == "default"
        with pytest.raises(NotTuned, match="before the capture"):
            decorated(on_miss=on_miss).tune(*tensors(), 200, grid=grid)
        pruned = {"early_config_prune": lambda configs, named, **kwargs: configs[1:2]}
        assert launched(NEVER, 300, prune_configs_by=pruned) == "given"
    assert launched(Clock(3, 1, 2)) == "tuned"
    monkeypatch.setattr("autotune.decorator.decision._is_captured", lambda machine: True)
    assert launched(NEVER, on_miss=on_miss) == "exact"


@pytest.mark.gpu(1)
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # the launch is refused
def test_3_a_first_launch_within_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in a real capture, where this launch is the process's first of all."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    forget_entries()
    out, x = (each.cuda() for each in tensors())

    def captured(kernel: Any) -> str:
        out.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel[grid](out, x, 200)
        graph.replay()
        assert torch.equal(out, x)
        return source(kernel)

    assert captured(decorated(None, on_miss="default")) == "default"
    tuning = decorated(None)
    with pytest.raises(NotTuned, match="before the capture"):
        captured(tuning)
    tuning[grid](out, x, 200)
    assert captured(tuning) == "tuned" and captured(decorated(None)) == "exact"


def copied(kernel: Any, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    kernel[grid](out, x, x.numel())
    return out


@pytest.mark.usefixtures("interpreted")
def test_4_a_compiled_function_with_several_keys() -> None:
    """One winner for all of them: pytorch #186886 and #164124. What torch.compile does not capture has its own."""
    kernel = decorated(Clock(3, 1, 2, 1, 2, 3))

    @torch.library.custom_op("public_reports::copied", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        return copied(kernel, x)

    operator.register_fake(torch.empty_like)

    @torch.compiler.disable
    def apart(x: torch.Tensor) -> torch.Tensor:
        return copied(kernel, x)

    for launch, fullgraph in ((apart, False), (operator, True)):
        torch.compiler.reset()
        compiled = torch.compile(lambda x: launch(x) * 2, backend="aot_eager", fullgraph=fullgraph)  # noqa: B023
        for n, block in ((64, 64), (8192, 32), (64, 64)):
            x = torch.randn(n)
            assert torch.equal(compiled(x), 2 * x) and kernel.best_config.kwargs == {"BLOCK": block}


@pytest.mark.gpu(1)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's own imports, in torch 2.11
def test_4_a_kernel_that_is_compiled_with_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known gap: torch.compile tunes by itself, and the database is neither read nor written. Results are right."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    kernel = decorated()
    compiled = torch.compile(lambda x: copied(kernel, x) * 2, fullgraph=True)
    for n in (64, 8192, 64):
        x = torch.randn(n, device="cuda")
        assert torch.equal(compiled(x), 2 * x)
    with Store.open() as store:
        assert store.studies() == [] and not kernel.decisions


@pytest.mark.usefixtures("interpreted")
def test_5_launch_options_of_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the key before leak into the next: facebookexperimental/triton #3514."""
    monkeypatch.setattr("autotune.decorator.key.source_hash", lambda kernel: "0" * 16)  # the stand-in has no source
    configs = [triton.Config({"BLOCK": 32}, num_warps=2), triton.Config({"BLOCK": 32}, num_warps=8, maxnreg=64)]
    kernel = Recorder("a, n, BLOCK")
    tuned, a = autotune.autotune(configs, key=["n"], do_bench=Clock(1, 2, 2, 1))(kernel), torch.zeros(1)
    given = []
    for n in (1, 2, 1, 2):
        tuned[(1,)](a, n)
        options = kernel.launches[-1][1]
        given.append((options["num_warps"], options.get("maxnreg")))
    assert given == [(2, None), (8, 64)] * 2


@pytest.mark.parametrize("world_size", [pytest.param(n, marks=pytest.mark.gpu(n)) for n in (2, 4)])
def test_6_calls_from_several_streams(tmp_path: Path, world_size: int) -> None:
    """All-reduces that each rank reaches at another time deadlock: pytorch #189228."""
    for worst in on_ranks("on_ranks.py", "on_streams", world_size, tmp_path, gpu=True):
        assert "gemm_all_reduce" in worst and max(worst.values()) < WORST, worst
