"""Results that a decorated kernel finds and stores: exact, nearest, default, tuned; logged once; never by accident."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from small_kernels import SIZES, Clock, copy, grid, tensors

import autotune
from autotune.db import Store
from autotune.decorator.key import tuning_key
from autotune.errors import InvalidArguments, MachineTooSmall, NotTuned, StoreError
from autotune.machine import INTERPRETED, INTERPRETER
from autotune.outcome import Outcome

NEVER = Clock()
"""A bench that fails when it is asked."""


def tuned(fn: Any, clock: Clock, n: int = 200, **options: Any) -> Any:
    """A fresh tuner as in a new process, launched once."""
    kernel = autotune.autotune(SIZES, **{"key": ["n"], "do_bench": clock, **options})(fn)
    kernel.forget()
    kernel[grid](*tensors(n), n)
    return kernel


def found(kernel: Any) -> Any:
    (answer,) = kernel.decisions.values()
    return answer


def test_a_second_process_finds_what_the_first_tuned() -> None:
    first = tuned(copy(), Clock(3, 1, 2))
    assert (found(first).source, found(first).reason) == ("tuned", "")
    again = tuned(copy(), NEVER)
    assert found(again).source == "exact" and again.best_config is SIZES[1]
    assert again.configs_timings == {SIZES[1]: [1.0] * 3}
    entry = found(again).entry
    assert json.loads(entry.key.problem) == {"n": 200, "out.dtype": "torch.float32", "x.dtype": "torch.float32"}
    assert (entry.key.workload, entry.key.world_size, entry.key.device) == ("copy", 1, INTERPRETER)
    assert entry.winner.latency.median == 1000.0 and entry.trials == 3


def test_a_kernel_without_a_source_is_told_where_to_lie() -> None:
    """As ``python -c`` or exec define one: the interpreter runs it, Triton itself would not compile it."""
    cell: dict[str, Any] = {"triton": triton, "tl": tl}
    exec("@triton.jit\ndef nowhere(x, out, n, BLOCK: tl.constexpr):\n    tl.store(out, tl.load(x))\n", cell)
    with pytest.raises(InvalidArguments, match="nowhere"):
        tuned(cell["nowhere"], NEVER)


class Interrupted(Clock):
    """Ctrl-C once it is at an end."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not self.left:
            raise KeyboardInterrupt
        return super().__call__(*given, **named)


def test_an_interrupted_tuning_goes_on_where_it_was() -> None:
    with pytest.raises(KeyboardInterrupt):
        tuned(copy(), Interrupted(1))
    assert tuned(copy(), Clock(2, 3)).best_config is SIZES[0]


class NoDriver:
    def get_current_target(self) -> None:
        raise RuntimeError("0 active drivers ([]). There should only be one.")


def test_without_a_gpu_and_without_the_interpreter_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr("autotune.decorator.decision.this_machine", lambda: INTERPRETED)
    monkeypatch.setattr(triton.runtime.driver, "_active", NoDriver())
    with pytest.raises(MachineTooSmall, match="TRITON_INTERPRET=1"):
        tuned(copy(), NEVER)
    with Store.open() as store:
        assert store.studies() == []


def test_every_timing_is_kept() -> None:
    tuned(copy(), Clock(3, float("inf"), 2))
    with Store.open() as store:
        (study,) = store.studies()
        kept = [(t.config["BLOCK"], t.evaluation.outcome, t.source) for t in store.trials(study.id)]
    outcomes = (Outcome.MEASURED, Outcome.CRASHED, Outcome.MEASURED)
    assert kept == [(block, outcome, "listed") for block, outcome in zip((32, 64, 128), outcomes, strict=True)]
    assert (study.state, study.space_size) == ("finished", 3)


def _other_source() -> Any:
    @triton.jit
    def copy(out, x, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n, other=0), mask=at < n)

    return copy


def test_another_source_another_list_or_another_dtype_is_tuned_anew() -> None:
    tuned(copy(), Clock(3, 1, 2))
    stale = tuned(_other_source(), Clock(1, 2, 3))
    assert found(stale).source == "tuned"
    fewer = autotune.autotune(SIZES[:2], key=["n"], on_miss="default", do_bench=NEVER)(copy())
    fewer[grid](*tensors(), 200)
    assert found(fewer).source == "default" and "stale" in found(fewer).reason
    out, x = tensors()
    other = autotune.autotune(SIZES, key=["n"], on_miss="default", do_bench=NEVER)(copy())
    other[grid](out.half(), x, 200)
    assert found(other).source == "default" and "nothing tuned" in found(other).reason


def test_an_entry_of_another_machine_is_not_served_and_a_miss_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(copy(), Clock(3, 1, 2))
    assert found(tuned(copy(), Clock(1, 2, 3), 201, free=["n"])).source == "tuned", "never guessed"
    other = dataclasses.replace(INTERPRETED, device="NVIDIA H200")
    monkeypatch.setattr("autotune.decorator.decision.INTERPRETED", other)
    assert found(tuned(copy(), NEVER, on_miss="default")).source == "default"


def test_nearest_only_over_free_arguments_and_within_a_factor_of_two() -> None:
    tuned(copy(), Clock(3, 1, 2))
    sources = {}
    kernel = autotune.autotune(SIZES, key=["n"], free=["n"], on_miss="nearest", do_bench=NEVER)(copy())
    for n in (200, 399, 100, 401, 99):
        kernel[grid](*tensors(n), n)
        sources[n] = (kernel.decisions[n, "torch.float32", "torch.float32"].source, kernel.best_config)
    near, default = ("nearest", SIZES[1]), ("default", SIZES[0])
    assert sources == {200: ("exact", SIZES[1]), 399: near, 100: near, 401: default, 99: default}
    bound = tuned(copy(), NEVER, 150, on_miss="nearest")
    assert found(bound).source == "default"


@pytest.mark.parametrize("on_miss", ["tune", "error"])
def test_a_config_that_pruning_made_is_found_again(on_miss: Any) -> None:
    made = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 8})]
    prune: dict[str, Any] = {"prune_configs_by": {"early_config_prune": lambda configs, named, **kwargs: made}}
    assert tuned(copy(), Clock(2, 1), **prune).best_config is made[1]
    again = tuned(copy(), NEVER, on_miss=on_miss, **prune)
    assert (found(again).source, again.best_config.kwargs) == ("exact", {"BLOCK": 8})


def test_a_winner_that_pruning_refuses_since_is_not_served_again() -> None:
    assert tuned(copy(), Clock(3, 2, 1)).best_config is SIZES[2]
    prune = {"early_config_prune": lambda configs, named, **kwargs: configs[:2]}
    again = tuned(copy(), NEVER, prune_configs_by=prune)
    assert again.best_config is SIZES[1], "the best of what is left, all of it timed before"
    assert found(tuned(copy(), NEVER, prune_configs_by=prune)).source == "exact"


def test_what_pruning_made_before_an_interrupt_and_makes_no_more_does_not_win() -> None:
    def making(*blocks: int) -> dict[str, Any]:
        made = [triton.Config({"BLOCK": block}) for block in blocks]
        return {"prune_configs_by": {"early_config_prune": lambda configs, named, **kwargs: made}}

    with pytest.raises(KeyboardInterrupt):
        tuned(copy(), Interrupted(1), **making(16, 8))
    assert tuned(copy(), Clock(3, 2), **making(4, 2)).best_config.kwargs == {"BLOCK": 2}


def test_default_takes_no_neighbour_and_error_says_what_to_do() -> None:
    tuned(copy(), Clock(3, 1, 2))
    assert found(tuned(copy(), NEVER, 201, free=["n"], on_miss="default")).source == "default"
    assert found(tuned(copy(), NEVER, 200, free=["n"], on_miss="error")).source == "exact"
    with pytest.raises(NotTuned, match="n=201"):
        tuned(copy(), NEVER, 201, free=["n"], on_miss="error")


@pytest.mark.parametrize("on_miss", ["tune", None])
def test_offline_never_tunes(monkeypatch: pytest.MonkeyPatch, on_miss: Any) -> None:
    tuned(copy(), Clock(3, 1, 2))
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "1")
    assert found(tuned(copy(), NEVER, 201, free=["n"], on_miss=on_miss)).source == "nearest"
    assert found(tuned(copy(), NEVER, 1000, free=["n"], on_miss=on_miss)).source == "default"
    kernel = autotune.autotune(SIZES, key=["n"], do_bench=NEVER)(copy())
    with pytest.raises(NotTuned, match="AUTOTUNE_OFFLINE"):
        kernel.tune(*tensors(), 200, grid=grid)
    monkeypatch.setenv("AUTOTUNE_OFFLINE", "0")
    assert found(tuned(copy(), Clock(1, 2, 3), 999)).source == "tuned"


def test_tuning_on_demand_replaces_what_is_known() -> None:
    kernel = tuned(copy(), Clock(3, 1, 2, 3, 2, 1))
    assert kernel.best_config is SIZES[1]
    answer = kernel.tune(*tensors(), 200, grid=grid)
    assert (answer.source, answer.config["BLOCK"]) == ("tuned", 128)
    kernel[grid](*tensors(), 200)
    assert kernel.best_config is SIZES[2]
    assert tuned(copy(), NEVER).best_config is SIZES[2]


def test_one_query_reads_all_entries_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (200, 300):
        tuned(copy(), Clock(3, 1, 2), n)
    kernel = tuned(copy(), NEVER)
    monkeypatch.setattr("autotune.runtime.entries.Store", None)
    kernel[grid](*tensors(300), 300)
    assert [answer.source for answer in kernel.decisions.values()] == ["exact", "exact"]


@pytest.mark.parametrize("refused", ["unread", "study", "record"])
def test_a_database_that_cannot_be_used_costs_one_try_and_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    """``unread`` reads, the others write; a try may wait half a minute for another's lock."""
    tries = []

    def refuse(*_: object, **__: object) -> None:
        tries.append(refused)
        raise StoreError("locked")

    Store.open().close()
    with monkeypatch.context() as patched:
        patched.setattr(Store, refused, refuse)
        kernel = autotune.autotune(SIZES, key=["n"], do_bench=Clock(3, 1, 2, 3, 1, 2))(copy())
        for n in (200, 300):
            out, x = tensors(n)
            kernel[grid](out, x, n)
            assert torch.equal(out, x)
        other = autotune.autotune(SIZES, key=["n"], on_miss="default", do_bench=NEVER)(copy())
        other[grid](*tensors(), 200)
    assert {each.source for each in kernel.decisions.values()} == {"tuned"}
    assert found(other).reason == "locked" and len(tries) == 1
    assert caplog.text.count("only in this process") == 1
    assert found(tuned(copy(), Clock(3, 1, 2))).source == "tuned", "after forget() it is asked again"
    assert found(tuned(copy(), NEVER)).source == "exact"


def test_whoever_tunes_the_same_waits_for_the_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Threads here, each with a tuner of its own; they meet in the database, as processes do."""
    monkeypatch.setattr("autotune.tuning.claim.POLL_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "autotune")
    asked, times = threading.Event(), [3.0, 1.0, 2.0]

    def bench(kernel_call: Callable[[], object], quantiles: Any) -> list[float]:
        asked.set()
        while caplog.text.count("is tuning this problem") < 2:
            time.sleep(0.01)
        return [times.pop(0)] * 3

    kernels = [autotune.autotune(SIZES, key=["n"], do_bench=each)(copy()) for each in (bench, NEVER, NEVER)]

    def decide(kernel: Any) -> Any:
        with kernel.launched_with((*tensors(), 200), {"grid": grid, "warmup": False}) as launch:
            return kernel._decider.decide(tuning_key(launch.named, ["n"]), launch)

    with ThreadPoolExecutor(3) as pool:
        tuner = pool.submit(decide, kernels[0])
        assert asked.wait(120)
        others = [pool.submit(decide, kernel) for kernel in kernels[1:]]
        won = tuner.result()
        joined = [other.result() for other in others]
    assert won.source == "tuned" and [(each.source, each.config) for each in joined] == [("exact", won.config)] * 2


def copy_with_extra() -> Any:
    @triton.jit
    def copy(out, x, n, extra: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

    return copy


def test_key_arguments_of_every_plain_kind_are_kept() -> None:
    values = [1, 1.5, "word", True, None, torch.float16, tl.float32, tl.constexpr(3), (1, "a")]

    kept = []
    for attempt in range(2):
        kernel = autotune.autotune(SIZES, key=["extra"], do_bench=Clock(*[1.0] * 30) if attempt == 0 else NEVER)(
            copy_with_extra()
        )
        for value in values:
            kernel[grid](*tensors(), n=200, extra=value)
        kept.append([answer.source for answer in kernel.decisions.values()])
    assert set(kept[0]) == {"tuned"} and set(kept[1]) == {"exact"}
    with pytest.raises(InvalidArguments, match="extra"):
        kernel[grid](*tensors(), n=200, extra=torch.zeros(1))


def test_configs_with_values_that_json_has_not_come_back_as_they_were() -> None:
    values = ((0.5, None), (None, 64))
    configs = [triton.Config({"BLOCK": 32, "extra": extra}, maxnreg=limit) for extra, limit in values]
    for clock in (Clock(2, 1), NEVER):
        kernel = autotune.autotune(configs, key=["n"], do_bench=clock)(copy_with_extra())
        kernel[(7,)](*tensors(), 200)
        assert kernel.best_config is configs[1] and kernel.best_config.kwargs["extra"] is None
        kernel.forget()
