"""The warm path: which calls share a config, which do not, and what it costs beside Triton's own."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton
from small_kernels import SIZES, Clock, Recorder

import autotune


@pytest.fixture(autouse=True)
def no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Recorder`` makes functions without source text."""
    monkeypatch.setattr("autotune.decorator.key.source_hash", lambda kernel: "0" * 16)


def recorded(parameters: str, key: list[str], **options: Any) -> tuple[Any, Recorder]:
    kernel = Recorder(parameters)
    return autotune.autotune(SIZES, key=key, do_bench=Clock(*[1.0] * 300), **options)(kernel), kernel


def test_a_launch_passes_everything_on_and_returns_what_the_kernel_does() -> None:
    tuned, kernel = recorded("a, b, n, BLOCK", ["n"])
    a = torch.zeros(1)
    for _ in range(2):
        assert tuned[(3,)](a, 2, n=5) == "the compiled kernel"
    options = {"BLOCK": 32, "num_warps": 4, "num_ctas": 1, "num_stages": 3}
    assert kernel.launches[-1] == ((a, 2), {"grid": (3,), "warmup": False, "n": 5, **options})
    assert kernel.launches[-2] == kernel.launches[-1]


def test_an_optional_tensor_that_comes_and_goes_is_another_key() -> None:
    tuned, _ = recorded("a, bias, rest, n, BLOCK", ["n"])
    a, half = torch.zeros(1), torch.zeros(1, dtype=torch.float16)
    for _ in range(2):
        for bias, rest in ((None, None), (a, None), (half, None), (None, half), (half, half)):
            tuned[(1,)](a, bias, rest, 1)
    names = [tuple(name.removeprefix("torch.") for name in key[1:]) for key in tuned.cache]
    assert names == [("float32",), ("float32", "float32"), ("float32", "float16"), ("float32", "float16", "float16")]


def test_equal_numbers_of_other_types_are_one_key_as_in_triton() -> None:
    tuned, _ = recorded("n, BLOCK", ["n"])
    stock = triton.autotune(SIZES, key=["n"], do_bench=Clock(*[1.0] * 30))(Recorder("n, BLOCK"))
    for n in (1, True, 1.0, 2, 2.5, "2", None):
        tuned[(1,)](n)
        stock[(1,)](n)
    assert list(tuned.cache) == list(stock.cache)


def test_defaults_of_the_kernel_are_no_part_of_the_key() -> None:
    tuned, _ = recorded("a, n=4, BLOCK=8", ["n"])
    tuned[(1,)](torch.zeros(1))
    tuned[(1,)](torch.zeros(1), 4)
    assert list(tuned.cache) == [("torch.float32",), (4, "torch.float32")]


def test_forget_looks_up_anew() -> None:
    tuned, _ = recorded("a, n, BLOCK", ["n"])
    tuned[(1,)](torch.zeros(1), 4)
    assert [answer.source for answer in tuned.decisions.values()] == ["tuned"]
    tuned.forget()
    assert tuned.cache == {} == tuned.decisions
    tuned[(1,)](torch.zeros(1), 4)
    assert [answer.source for answer in tuned.decisions.values()] == ["exact"]


def test_many_threads_tune_a_key_once() -> None:
    clock = Clock(*[1.0] * len(SIZES) * 4)
    recorder = Recorder("a, n, BLOCK")
    kernel = autotune.autotune(SIZES, key=["n"], do_bench=clock)(recorder)
    a = torch.zeros(1)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: kernel[(n,)](a, n), (1, 2, 3, 4) * 16))
    assert clock.left == [] and len(kernel.cache) == 4
    assert answers == ["the compiled kernel"] * 64
    assert all(kwargs["grid"] == args[1:] for args, kwargs in recorder.launches)


@pytest.mark.parametrize("count", [5, 22])
def test_a_warm_launch_costs_a_fraction_of_tritons_own(count: int) -> None:
    names = [f"p{i}" for i in range(count)]

    class Nothing(Recorder):
        def run(self, *args: Any, **kwargs: Any) -> str:
            return ""

    kernel = Nothing(", ".join([*names, "BLOCK"]))
    ours = autotune.autotune(SIZES, key=["p3", "p4"], do_bench=Clock(1, 1, 1))(kernel)
    stock = triton.autotune(SIZES, key=["p3", "p4"], do_bench=Clock(1, 1, 1))(kernel)
    args = (torch.zeros(1), torch.zeros(1), *range(count - 2))
    options = SIZES[0].all_kwargs()
    ways = {
        "hand": lambda: kernel[(1,)](*args, **options),
        "ours": lambda: ours[(1,)](*args),
        "stock": lambda: stock[(1,)](*args),
    }
    took = dict.fromkeys(ways, float("inf"))
    for _ in range(30):
        for name, call in ways.items():
            call()
            begin = time.process_time()
            for _ in range(300):
                call()
            took[name] = min(took[name], time.process_time() - begin)
    assert took["ours"] - took["hand"] < (took["stock"] - took["hand"]) / 3
