"""A joint space at a user's own kernel: every config where there are few, a search where there are many."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from small_kernels import SIZES, copy, grid, tensors
from triton.runtime.jit import KernelInterface

import autotune
from autotune.config import Config
from autotune.db import Store
from autotune.decorator import RIGHT_FORM
from autotune.decorator.candidates import ListedSpace
from autotune.errors import InvalidArguments, InvalidConfig
from autotune.outcome import Outcome
from autotune.search_spaces import Constraint, Space, choices, numbers

BLOCKS = [numbers("BLOCK", 16, 32, 64, 128, 256), numbers("num_warps", 1, 2, 4, 8)]


class Formula:
    """A ``do_bench`` that runs the kernel once; the milliseconds are a formula of what was launched."""

    def __init__(self, milliseconds: Callable[[dict[str, Any]], float]) -> None:
        self.milliseconds = milliseconds
        self.launched: list[dict[str, Any]] = []

    def hook(self, named: dict[str, Any]) -> None:
        """To be the ``config_hook``."""
        self.launched.append({name: value for name, value in named.items() if isinstance(value, int | str)})

    def __call__(self, kernel_call: Callable[[], object], quantiles: Any) -> list[float]:
        kernel_call()
        return [self.milliseconds(self.launched[-1])] * 3


def moved() -> Any:
    @triton.jit
    def moved(out, x, n, mode: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr = 0):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        if mode == "push":
            tl.store(out + at, tl.load(x + at, mask=at < n) + UNIT, mask=at < n)
        else:
            tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

    return moved


def test_a_small_space_is_tried_in_full() -> None:
    bench = Formula(lambda named: abs(named["BLOCK"] - 60) + named["num_warps"])
    options = {"space": BLOCKS, "key": ["n"], "config_hook": bench.hook}
    kernel = autotune.autotune(**options, on_miss="tune", do_bench=bench)(copy())
    out, x = tensors()
    kernel[grid](out, x, 200)
    assert torch.equal(out, x) and len(bench.launched) == 20 + 1
    assert (kernel.best_config.kwargs, kernel.best_config.num_warps) == ({"BLOCK": 64}, 1)
    again = autotune.autotune(**options)(copy())
    again[grid](out, x, 200)
    assert again.best_config == kernel.best_config
    assert [answer.source for answer in again.decisions.values()] == ["exact"]


def test_a_large_space_is_searched_within_its_trials() -> None:
    bench = Formula(lambda named: abs(named["BLOCK"] - 60) + named["num_warps"])
    kernel = autotune.autotune(
        space=BLOCKS, key=["n"], on_miss="tune", trials=9, default={"BLOCK": 256, "num_warps": 8}, do_bench=bench,
        config_hook=bench.hook,
    )(copy())  # fmt: skip
    kernel[grid](*tensors(), 200)
    assert len(bench.launched) == 9 + 1 and bench.launched[0]["BLOCK"] == 256
    assert kernel.best_config.kwargs["BLOCK"] < 256
    with Store.open() as store:
        (study,) = store.studies()
        trials = store.trials(study.id)
    assert (len(trials), study.space_size, trials[0].source) == (9, 20, "first")
    assert {trial.source for trial in trials[1:]} <= {"sampler", "surrogate", "random"}


def test_at_another_key_a_search_begins_with_what_loses_least_at_those_around_it() -> None:
    """The nearest key's winner is slow at the next one, and the next one's is as good as it at the nearest."""
    kernel, taking = copy(), dict[int, float]()
    bench = Formula(lambda named: taking.get(named["BLOCK"], 3.0) + named["num_warps"] / 1000)

    def launched(n: int, trials: int, **times: float) -> list[int]:
        taking.clear()
        taking.update({int(block[1:]): time for block, time in times.items()})
        bench.launched.clear()
        tuned = autotune.autotune(
            space=BLOCKS, key=["n"], on_miss="tune", trials=trials, default={"BLOCK": 256, "num_warps": 8},
            do_bench=bench, config_hook=bench.hook,
        )(kernel)  # fmt: skip
        tuned[grid](*tensors(), n)
        return [each["BLOCK"] for each in bench.launched]

    launched(128, 20, b32=1.0, b64=1.01)
    launched(200, 20, b64=1.0, b32=2.0)
    assert launched(150, 9, b64=1.0)[:3] == [64, 32, 256], "what is expected, then the default"


def test_a_step_in_a_list_leads_to_what_is_most_alike_and_its_numbers_are_in_order() -> None:
    listed = [
        Config({"mode": "kernel", "BLOCK": block, "split": split, "layout": layout})
        for block, split, layout in itertools.product((64, 16, 32), (4, 1), ("row", "column"))
    ]
    space = ListedSpace(listed)
    assert [space.dimensions[name].values for name in ("BLOCK", "split")] == [(16, 32, 64), (1, 4)]
    assert not space.dimensions["layout"].ordinal
    nothing: Any = None  # no constraint looks at it
    first, *others = listed
    found = list(space.neighbours(first, nothing))
    differ = [sum(other[name] != first[name] for name in first) for other in found]
    assert differ == [1] * 4 + [2] * 4 and first not in found and set(found) <= set(others)
    few = Config({**first, "BLOCK": 128})
    assert space.narrowed(nothing).violation(few, nothing) is not None
    assert set(space.enumerate(nothing, nothing)) == set(listed)
    flags = ListedSpace([Config({"mode": "kernel", "wide": wide}) for wide in (True, False)]).dimensions["wide"]
    assert flags.values == (True, False) and not flags.ordinal


def test_the_mode_decides_what_a_config_carries_and_reaches_the_kernel() -> None:
    space = Space(
        choices("mode", "pull", "push"), numbers("BLOCK", 32, 64), numbers("UNIT", 1, 2, modes=("push",)),
        constraints=(Constraint("small", ("UNIT", "BLOCK"), lambda s, UNIT, BLOCK: s.problem.n > UNIT * BLOCK, "n"),),
    )  # fmt: skip
    bench = Formula(lambda named: 1.0 if named["mode"] == "push" else 2.0)
    kernel = autotune.autotune(space=space, key=["n"], on_miss="tune", do_bench=bench, config_hook=bench.hook)(moved())
    out, x = tensors(100)
    kernel[grid](out, x, 100)
    tried = [(launch["mode"], launch["BLOCK"], launch.get("UNIT")) for launch in bench.launched[:-1]]
    units = [(32, 1), (32, 2), (64, 1)]
    assert sorted(tried, key=str) == [("pull", 32, None), ("pull", 64, None), *(("push", *unit) for unit in units)]
    assert kernel.best_config.kwargs == {"mode": "push", "BLOCK": 32, "UNIT": 1} and torch.equal(out, x + 1)


def test_untuned_the_default_runs_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "autotune")
    by_size = autotune.autotune(
        space=BLOCKS, key=["n"], default=lambda call: {"BLOCK": 32 if call.n < 100 else 128, "num_warps": 4}
    )(copy())
    first = autotune.autotune(space=BLOCKS, key=["n"])(copy())
    for kernel, n, block in ((by_size, 50, 32), (by_size, 200, 128), (first, 200, 16)):
        out, x = tensors(n)
        kernel[grid](out, x, n)
        assert kernel.best_config.kwargs == {"BLOCK": block} and torch.equal(out, x)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "default (nothing tuned" in caplog.text


def _whole(configs: list[Any], named: dict[str, Any], **kwargs: Any) -> list[Any]:
    return [config for config in configs if named["n"] % config.kwargs["BLOCK"] == 0]


FITS = Constraint("fits", ("BLOCK",), lambda s, BLOCK: s.problem.n % BLOCK == 0, "no rest")


@pytest.mark.parametrize(
    "allowing",
    [
        {"space": Space(choices("mode", "any"), *BLOCKS, constraints=(FITS,))},
        {"space": BLOCKS, "prune_configs_by": {"early_config_prune": _whole}},
    ],
    ids=["by the space", "by early pruning"],
)
def test_the_nearest_has_to_be_allowed_for_the_call(allowing: dict[str, Any]) -> None:
    bench = Formula(lambda named: 1 / named["BLOCK"])
    options: Any = {**allowing, "key": ["n"], "free": ["n"]}
    tuner = autotune.autotune(**options, do_bench=bench, config_hook=bench.hook)(copy())
    tuner.tune(*tensors(256), 256, grid=grid)
    for n, source, block in ((256, "exact", 256), (512, "nearest", 256), (192, "default", 16)):
        kernel = autotune.autotune(**options)(copy())
        kernel[grid](*tensors(n), n)
        (answer,) = kernel.decisions.values()
        assert (n, answer.source, kernel.best_config.kwargs["BLOCK"]) == (n, source, block)


@pytest.mark.parametrize(("trials", "tried"), [(None, 12), (11, 11)])
def test_pruning_refuses_single_configs_of_a_space_which_take_none_of_the_trials(trials: Any, tried: int) -> None:
    bench = Formula(lambda named: named["BLOCK"])
    prune = {"early_config_prune": lambda configs, named, **kwargs: [c for c in configs if c.kwargs["BLOCK"] > 50]}
    kernel = autotune.autotune(
        space=BLOCKS, key=["n"], on_miss="tune", trials=trials, prune_configs_by=prune, do_bench=bench,
        config_hook=bench.hook,
    )(copy())  # fmt: skip
    kernel[grid](*tensors(), 200)
    assert kernel.best_config.kwargs == {"BLOCK": 64} and len(bench.launched) == tried + 1
    with Store.open() as store:
        outcomes = [trial.evaluation.outcome for trial in store.trials(store.studies()[0].id)]
    assert outcomes.count(Outcome.MEASURED) == tried
    assert trials or outcomes.count(Outcome.INVALID) == 8


def test_warmup_compiles_what_a_launch_would_take() -> None:
    compiled: list[tuple[int, int]] = []

    class Compiler(KernelInterface[Any]):
        """Before a kernel that is tuned and launched as ever."""

        def __init__(self) -> None:
            self.fn = copy()
            self.arg_names = self.fn.arg_names

        def run(self, *args: Any, warmup: bool, **kwargs: Any) -> None:
            compiled.append((kwargs["BLOCK"], kwargs["num_warps"]))
            if not warmup:
                self.fn.run(*args, warmup=warmup, **kwargs)

    bench = Formula(lambda named: abs(named["BLOCK"] - 60) + named["num_warps"])
    options = {"space": BLOCKS, "key": ["n"], "config_hook": bench.hook, "on_miss": "tune", "do_bench": bench}
    kernel = autotune.autotune(**options)(Compiler())
    dtypes = (torch.float32, torch.float32)
    kernel.warmup(*dtypes, 200, grid=(1,))
    assert compiled == [(16, 1)] and not bench.launched, "it tunes nothing"
    kernel[grid](*tensors(), 200)
    assert len(bench.launched) == 20 + 1
    for each in (kernel, autotune.autotune(**options)(Compiler())):
        each.warmup(*dtypes, 200, grid=(1,))
        each.warmup(*tensors(), 200, grid=(1,))
    assert compiled[-4:] == [(64, 1)] * 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"configs": SIZES}, "list of configs"), ({"prune_configs_by": {"perf_model": print}}, "list of configs"),
        ({"on_miss": "guess"}, "on_miss"), ({"free": ["m"]}, "free"), ({"trials": 0}, "trials"),
        ({"ranks": "some"}, "ranks"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_where_it_is_written(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArguments, match=named):
        autotune.autotune(**{"space": BLOCKS, "key": ["n"], **options})(copy())


@pytest.mark.parametrize(
    "slip",
    [
        lambda: autotune.autotune(copy()),  # type: ignore[arg-type]  # without parentheses
        lambda: autotune.autotune(copy().fn),  # type: ignore[arg-type]  # without parentheses, and below @triton.jit
        lambda: autotune.autotune(configs=SIZES, key=["n"])(copy().fn),  # below @triton.jit, or without it
        lambda: autotune.autotune(configs=SIZES[0], key=["n"])(copy()),
        lambda: autotune.autotune(configs=[{"BLOCK": 16}], key=["n"])(copy()),
        lambda: autotune.autotune(configs=[autotune.Config({"BLOCK": 16})], key=["n"])(copy()),
    ],
)
def test_a_slip_of_the_decorator_is_answered_with_its_right_form(slip: Callable[[], object]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        slip()
    assert RIGHT_FORM in str(caught.value)


def test_a_bad_default_and_an_empty_space_are_told_at_the_launch() -> None:
    never = Constraint("never", ("BLOCK",), lambda s, BLOCK: False, "never")
    for options, told in (
        ({"space": BLOCKS, "default": {"BLOCK": 7, "num_warps": 4}}, "BLOCK=7"),
        ({"space": BLOCKS, "default": {"BLOCK": 16}}, "num_warps"),
        ({"space": Space(choices("mode", "any"), *BLOCKS, constraints=(never,))}, "no valid config"),
    ):
        with pytest.raises(InvalidConfig, match=told):
            autotune.autotune(key=["n"], **options)(copy())[grid](*tensors(), 200)


def test_a_list_is_searched_within_its_trials_however_sparse_it_is() -> None:
    configs = [triton.Config({"BLOCK": 16, "A": i, "B": 7 * i, "C": -i}) for i in range(9)]

    def made() -> Any:
        @triton.jit
        def sparse(out, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
            tl.store(out, A)

        return sparse

    times = iter(range(1, 9))
    kernel = autotune.autotune(configs, key=[], trials=8, do_bench=lambda call, quantiles: [float(next(times))] * 3)(
        made()
    )
    kernel[(1,)](torch.zeros(1))
    assert kernel.best_config is configs[0]
    assert len(kernel.configs_timings) == 8 and set(kernel.configs_timings) <= set(configs)
