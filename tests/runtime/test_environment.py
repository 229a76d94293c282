"""AUTOTUNE_PIN and AUTOTUNE_DEFAULTS: two runs of a program that differ in one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import EIGHT_GPUS, begun, latency_of
from small_kernels import SIZES, Clock, copy, grid, tensors

import autotune
from autotune.db import Store, Winner
from autotune.errors import InputError, InvalidConfig
from autotune.results.figures import config_text
from autotune.runtime.entries import forget_entries
from autotune.runtime.lookup import Found, forget_lookups, lookup
from autotune.search_spaces import numbers
from autotune.task import Task
from autotune.workloads import names, workload


def task_of(name: str) -> Task[Any]:
    return Task(workload(name).default_problem(EIGHT_GPUS, 8), EIGHT_GPUS)


def looked_up(name: str, **options: Any) -> Found:
    return lookup(name, task_of(name).problem, machine=EIGHT_GPUS, **options)


@pytest.mark.parametrize("name", names())
def test_a_pin_is_filled_up_with_an_untuned_config_of_its_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, task = workload(name), task_of(name)
    for config in found.first_configs(task):
        for text in (f"mode={config['mode']}", config.to_json(), config_text(config)):
            forget_lookups()
            monkeypatch.setenv("AUTOTUNE_PIN", f"other: BLOCK=1; {name.replace('_', '-')}: {text};")
            pinned = looked_up(name)
            assert pinned.source == "pinned" and pinned.entry is None
            assert found.space.violation(pinned.config, task) is None
            assert pinned.config["mode"] == config["mode"] if text.startswith("mode=") else pinned.config == config


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((f"all-gather-gemm: {text}", InvalidConfig) for text in ("mode=none_such", "block_m=77", "none_such=1")),
        *((text, InputError) for text in ("mode=push", "all-gather-gemm:", ": mode=push")),
    ],
)
def test_a_pin_that_cannot_be_is_an_error_of_the_call(
    text: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_PIN", text)
    with pytest.raises(error):
        looked_up("all_gather_gemm")


def test_untuned_whatever_the_database_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, task, url = workload("all_gather_gemm"), task_of("all_gather_gemm"), str(tmp_path / "cache.db")
    other = found.first_configs(task)[-1]
    with Store.open(url) as store:
        store.finish(begun(store, found, task).id, Winner(other, latency_of(1.0)))
    assert looked_up(found.name, url=url).config == other != found.default_config(task)
    forget_lookups()
    monkeypatch.setenv("AUTOTUNE_DEFAULTS", "1")
    untuned = looked_up(found.name, url=url)
    assert (untuned.source, untuned.config) == ("default", found.default_config(task)) and untuned.by_environment


BLOCKS = [numbers("BLOCK", 16, 32, 64), numbers("num_warps", 1, 2, 4)]


@pytest.mark.parametrize("options", [{"configs": SIZES}, {"space": BLOCKS, "default": {"BLOCK": 16, "num_warps": 4}}])
def test_a_decorated_kernel(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def decided(variable: str, text: str) -> Found:
        forget_entries()
        with monkeypatch.context() as patched:
            patched.setenv(variable, text)
            kernel = autotune.autotune(key=["n"], do_bench=Clock(), on_miss="tune", **options)(copy())
            out, x = tensors(200)
            kernel[grid](out, x, 200)
            assert (out == x).all()
            (found,) = kernel.decisions.values()
        return found

    name = copy().fn.__name__
    pinned = decided("AUTOTUNE_PIN", f"{name}: BLOCK=32")
    assert (pinned.source, pinned.config["BLOCK"]) == ("pinned", 32)
    assert decided("AUTOTUNE_DEFAULTS", "1").source == "default"
    with pytest.raises(InvalidConfig, match="BLOCK"):
        decided("AUTOTUNE_PIN", f"{name}: BLOCK=33")


def test_it_is_said_once_an_operator(
    alone: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AUTOTUNE_PIN", "gemm-all-reduce: mode=one_shot")
    problems = [autotune.GemmAllReduce(m=m, n=32, k=32, dtype="fp32", world_size=1) for m in (16, 32)]
    with autotune.Context(1 << 20, url="sqlite:///there/is/none.db") as context:
        assert {context.choose(problem).source for problem in problems} == {"pinned"}
    assert len([message for message in caplog.messages if "AUTOTUNE_PIN" in message]) == 1
