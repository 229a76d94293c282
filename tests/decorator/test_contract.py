"""The contract of ``triton.autotune`` holds for ours: every test here runs on both, unless versions differ."""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import triton
from small_kernels import SIZES, Clock, add_double, add_some, copy, grid, increment, tensors
from triton.runtime.autotuner import Autotuner

import autotune
from autotune.errors import InvalidArguments


@pytest.fixture(params=[triton.autotune, autotune.autotune], ids=["triton", "ours"])
def decorate(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_the_fastest_wins_and_each_key_is_tuned_once(decorate: Any) -> None:
    kernel = decorate(SIZES, key=["n"], do_bench=Clock(3, 1, 2, 1, 2, 3))(copy())
    assert isinstance(kernel, Autotuner)
    out, x = tensors()
    for _ in range(3):
        kernel[grid](out, x, 200)
    assert torch.equal(out, x) and kernel.best_config.kwargs == {"BLOCK": 64}
    assert list(kernel.configs_timings.values()) == [[3] * 3, [1] * 3, [2] * 3]
    assert kernel.bench_time > 0 and kernel.nargs is None
    kernel[grid](out, x, 100)
    assert kernel.best_config.kwargs == {"BLOCK": 32} and len(kernel.cache) == 2
    kernel[grid](out, x, 200)
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_arguments_may_be_named_and_in_any_order(decorate: Any) -> None:
    kernel = decorate(SIZES, key=["n"], do_bench=Clock(3, 1, 2, 1, 2, 3))(copy())
    out, x = tensors()
    kernel[grid](out, x, 200)
    kernel[grid](n=100, x=x, out=out)
    kernel.run(out, x, 100, grid=grid, warmup=False)
    assert [key[0] for key in kernel.cache] == [200, 100]
    assert kernel[grid](out, n=200, x=x) is None and len(kernel.cache) == 2


def test_the_key_has_every_dtype_but_no_other_argument(decorate: Any) -> None:
    kernel = decorate(SIZES, key=[], do_bench=Clock(3, 1, 2, 1, 2, 3))(copy())
    out, x = tensors()
    kernel[grid](out, x, 200)
    kernel[grid](out, x, 150)
    assert len(kernel.cache) == 1
    kernel[grid](out.half(), x, 200)
    assert list(kernel.cache) == [("torch.float32", "torch.float32"), ("torch.float16", "torch.float32")]
    assert kernel.best_config.kwargs == {"BLOCK": 32}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("how", "before"), [("restore_value", 0.0), ("reset_to_zero", 7.0)])
def test_a_tuning_leaves_the_effect_of_one_call(decorate: Any, how: str, before: float, named: bool) -> None:
    kernel = decorate(SIZES, key=["n"], do_bench=Clock(3, 1, 2), **{how: ["x"]})(increment())
    x = torch.full((200,), before)
    kernel[grid](x=x, n=200) if named else kernel[grid](x, 200)
    assert torch.equal(x, torch.ones(200))
    kernel[grid](x, 200)
    assert torch.equal(x, torch.full((200,), 2.0)), "only tuning resets"


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("how", ["restore_value", "reset_to_zero"])
def test_an_argument_that_is_none_is_neither_reset_nor_restored(how: str, named: bool) -> None:
    options: dict[str, Any] = {how: ["x", "bias"], "do_bench": Clock(3, 1, 2, 3, 1, 2)}
    kernel = autotune.autotune(SIZES, key=["n"], **options)(add_some())
    x = torch.zeros(200)
    kernel[grid](x=x, bias=None, n=200) if named else kernel[grid](x, None, 200)
    assert torch.equal(x, torch.ones(200))
    bias = torch.full((200,), 3.0)
    kernel[grid](x, bias, 100)
    assert torch.equal(bias[:100], torch.full((100,), 4.0 if how == "restore_value" else 1.0))


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_share_is_of_what_early_pruning_left_and_never_none(share: float) -> None:
    prune = {
        "early_config_prune": lambda configs, named, **kwargs: configs[:2],
        "perf_model": lambda BLOCK, **kwargs: -BLOCK,
        "top_k": share,
    }
    kernel = autotune.autotune(SIZES, key=["n"], prune_configs_by=prune, do_bench=Clock())(copy())
    out, x = tensors()
    kernel[grid](out, x, 200)
    assert torch.equal(out, x) and kernel.best_config.kwargs == {"BLOCK": 64}, "one of two is left, and not timed"


def test_a_top_k_that_is_neither_share_nor_number() -> None:
    prune = {"perf_model": lambda BLOCK, **kwargs: BLOCK, "top_k": 1.5}
    kernel = autotune.autotune(SIZES, key=["n"], prune_configs_by=prune)(copy())
    with pytest.raises(TypeError, match="top_k"):
        kernel[grid](*tensors(), 200)


def test_hooks_come_in_pairs_around_every_timed_call_and_once_after_tuning(decorate: Any) -> None:
    calls = []
    kernel = decorate(
        SIZES, key=["n"], do_bench=Clock(3, 1, 2),
        pre_hook=lambda named, reset_only=False: calls.append(("pre", named.get("BLOCK"), reset_only)),
        post_hook=lambda named, exception: calls.append(("post", named["BLOCK"], exception)),
    )(triton.heuristics({"DOUBLE": lambda named: named["n"] * 2})(add_double()))  # fmt: skip
    x = torch.zeros(200)
    kernel[grid](x, 200)
    pairs = [(when, block, extra) for block in (32, 64, 128) for when, extra in (("pre", False), ("post", None))]
    assert calls[:6] == pairs
    assert calls[6:] == [("pre", 64, True)]
    kernel[grid](x, 200)
    assert len(calls) == 7
    assert torch.equal(x, torch.full((200,), 5 * 400.0))


def test_a_post_hook_sees_the_exception_and_the_caller_gets_it(decorate: Any) -> None:
    seen = []

    kernel = decorate(
        SIZES, key=["n"], pre_hook=lambda named, reset_only=False: None,
        post_hook=lambda named, exception: seen.append(exception), do_bench=lambda call, quantiles: call(),
    )(copy())  # fmt: skip
    with pytest.raises(Exception, match="'str' object has no attribute") as caught:
        kernel[grid](torch.zeros(10), "no tensor", 200)
    assert len(seen) == 1 and seen[0] is caught.value


def test_a_configs_own_hook_runs_in_the_bench_and_before_every_launch(decorate: Any) -> None:
    seen: list[dict[str, Any]] = []
    configs = [triton.Config({"BLOCK": block}, pre_hook=seen.append) for block in (32, 64)]
    kernel = decorate(configs, key=["n"], do_bench=Clock(1, 2))(copy())
    out, x = tensors()
    kernel[grid](out, x, 200)
    kernel[grid](out, x=x, n=200)
    assert [named["BLOCK"] for named in seen] == [32, 64, 32, 32]
    assert all(named["out"] is out and named["x"] is x and named["num_warps"] == 4 for named in seen)


@pytest.mark.parametrize("bind", [functools.partial, lambda note, number: lambda named: note(number, named)])
def test_configs_that_differ_in_what_their_hooks_are_bound_to_are_all_timed(decorate: Any, bind: Any) -> None:
    seen: list[int] = []

    def note(number: int, named: dict[str, Any]) -> None:
        seen.append(number)

    configs = [triton.Config({"BLOCK": 64}, pre_hook=bind(note, number)) for number in range(3)]
    kernel = decorate(configs, key=["n"], do_bench=Clock(3, 1, 2))(copy())
    kernel[grid](*tensors(), 200)
    assert seen == [0, 1, 2, 1] and kernel.best_config is configs[1] and len(kernel.configs_timings) == 3


def test_another_list_may_be_set_later(decorate: Any) -> None:
    kernel = decorate(SIZES, key=["n"], do_bench=Clock(3, 1, 2, 2, 1))(copy())
    kernel[grid](*tensors(), 200)
    kernel.configs = [SIZES[0], SIZES[2]]
    kernel[grid](*tensors(), 100)
    assert kernel.best_config is SIZES[2] and list(kernel.configs_timings) == kernel.configs
    kernel.configs = SIZES[:1]
    kernel[grid](*tensors(), 100)
    assert kernel.best_config is SIZES[0]


def test_early_pruning_sees_the_call(decorate: Any) -> None:
    seen = {}

    def prune(configs: list[Any], named: dict[str, Any], **kwargs: Any) -> list[Any]:
        seen.update(positional=sorted(named), named=kwargs["n"], configs=len(configs))
        return configs[1:]

    kernel = decorate(SIZES, key=["n"], prune_configs_by={"early_config_prune": prune}, do_bench=Clock(2, 1))(copy())
    out, x = tensors()
    kernel[grid](out, x, n=200)
    assert seen == {"positional": ["out", "x"], "named": 200, "configs": 3}
    assert kernel.best_config.kwargs == {"BLOCK": 128} and torch.equal(out, x)


def test_pruning_everything_is_an_error(decorate: Any) -> None:
    prune = {"early_config_prune": lambda configs, named, **kwargs: []}
    kernel = decorate(SIZES, key=["n"], prune_configs_by=prune)(copy())
    with pytest.raises(triton.runtime.errors.AutotunerError, match="at least one"):
        kernel[grid](*tensors(), 200)


@pytest.mark.parametrize("top_k", [2, 0.7])
def test_a_performance_model_ranks_and_the_best_are_timed(decorate: Any, top_k: float) -> None:
    asked = []

    def model(out: Any, x: Any, n: int, BLOCK: int, num_warps: int, **kwargs: Any) -> float:
        asked.append((BLOCK, n, num_warps))
        return 1 / BLOCK

    prune = {"perf_model": model, "top_k": top_k}
    kernel = decorate(SIZES, key=["n"], prune_configs_by=prune, do_bench=Clock(2, 1))(copy())
    kernel[grid](*tensors(), 200)
    assert asked == [(32, 200, 4), (64, 200, 4), (128, 200, 4)]
    assert [config.kwargs["BLOCK"] for config in kernel.configs_timings] == [128, 64]
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_one_config_is_neither_timed_nor_keyed(decorate: Any) -> None:
    kernel = decorate(SIZES[:1], key=["n"], do_bench=Clock())(copy())
    out, x = tensors()
    for n in (200, 100, 200):
        kernel[grid](out, x, n)
    assert torch.equal(out, x) and kernel.cache == {} and kernel.best_config is SIZES[0]


def test_no_configs_mean_the_default_one(decorate: Any) -> None:
    kernel = decorate([], key=["n"])(copy())
    out, x = tensors()
    kernel[(2,)](out, x, 200, BLOCK=128)
    assert torch.equal(out, x)
    assert (kernel.best_config.kwargs, kernel.best_config.num_warps) == ({}, 4)


def test_what_a_config_chooses_cannot_be_passed(decorate: Any) -> None:
    kernel = decorate(SIZES, key=["n"], do_bench=Clock(1, 2, 3))(copy())
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel[grid](*tensors(), 200, BLOCK=64)


FULL, LOST = triton.runtime.errors.OutOfResources(2, 1, "shared memory"), [float("inf")] * 3


@pytest.mark.parametrize(
    ("times", "best", "kept"),
    [
        ([[1.0] * 3, [2.0] * 3, FULL], 0, [[1.0] * 3, [2.0] * 3, LOST]),
        ([LOST] * 3, 0, [LOST] * 3),
        ([[1.0, 1.0, 2.0], [1.0, 1.0, 1.5], [1.0, 1.0, 1.5]], 1, None),
        ([2.0, 1.0, 3.0], 1, [2.0, 1.0, 3.0]),
    ],
    ids=["out of resources", "all fail", "ties go to later quantiles, then to the order", "one number"],
)
def test_the_times_of_a_bench_decide(decorate: Any, times: list[Any], best: int, kept: list[Any] | None) -> None:
    left = list(times)

    def bench(kernel_call: Callable[[], object], quantiles: Any) -> Any:
        kernel_call()
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    kernel = decorate(SIZES, key=["n"], do_bench=bench)(copy())
    out, x = tensors()
    kernel[grid](out, x, 200)
    assert torch.equal(out, x) and kernel.best_config is SIZES[best]
    assert kept is None or list(kernel.configs_timings.values()) == kept


def test_heuristics_may_stand_outside(decorate: Any) -> None:
    tuned = decorate(SIZES, key=["n"], do_bench=Clock(2, 1, 3))(add_double())
    kernel = triton.heuristics({"DOUBLE": lambda named: named["n"] * 2})(tuned)
    x = torch.zeros(200)
    for _ in range(2):
        kernel[grid](x, 200)
    assert torch.equal(x, torch.full((200,), 5 * 400.0)) and tuned.best_config is SIZES[1]


def test_warmup_goes_through_every_config_and_launches_none(decorate: Any) -> None:
    kernel = decorate(SIZES, key=["n"], do_bench=Clock())(copy())
    assert kernel.warmup(torch.float32, torch.float32, 200, grid=(1,)) == [None] * 3
    assert kernel.nargs is None


def test_a_module_that_has_a_kernel_can_be_copied(decorate: Any) -> None:
    holder = {"kernel": decorate(SIZES, key=["n"], do_bench=Clock(2, 1, 3))(copy())}
    out, x = tensors()
    deepcopy(holder)["kernel"][grid](out, x, 200)
    assert torch.equal(out, x)


def test_printing(decorate: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    kernel = decorate(SIZES, key=["n"], do_bench=Clock(2, 1, 3))(copy())
    for _ in range(2):
        kernel[grid](*tensors(), 200)
    said = capsys.readouterr().out
    assert said.count("Autotuning kernel copy with config BLOCK: ") == 3
    assert said.count("autotuning for function copy") == 1


def test_deprecated_arguments_still_warn_and_work(decorate: Any) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):
        kernel = decorate(SIZES[:1], key=["n"], warmup=1, rep=2)(copy())
    out, x = tensors()
    kernel[grid](out, x, 200)
    assert torch.equal(out, x)


@pytest.mark.parametrize("where", ["key", "reset_to_zero", "restore_value"])
def test_unknown_names_are_refused_as_triton_39_does(where: str) -> None:
    with pytest.raises(InvalidArguments, match=f"{where} names m"):
        autotune.autotune(SIZES, **{"key": ["n"], where: ["m"]})(copy())
