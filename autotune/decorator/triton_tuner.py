"""Triton's tuner with the newest version's behaviour, and the parts of it that a tuning session calls."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import AutotunerError
from triton.runtime.jit import JITFunction

LOG = logging.getLogger("autotune")


@dataclass(frozen=True)
class Arguments:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """``grid`` and ``warmup`` among them."""
    named: dict[str, Any]
    """The kernel's arguments, by name."""


class TritonTuner(Autotuner):  # type: ignore[misc]  # Triton ships no types
    """Arguments that are None are neither reset nor restored; a fractional ``top_k`` counts after early pruning."""

    nargs: Any
    """Positional arguments of the launch at hand by name, for hooks and pruning; None between launches."""
    do_bench: Any
    bench_time: float
    configs_timings: dict[Any, Any]
    _signatures: dict[Any, Any]
    """The configs of calls that were made before."""
    _said_to_be_captured = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.given_bench = self._do_bench
        self.restore_copies: dict[str, Any] = {}
        if (self.reset_to_zero or self.restore_value) and not self.user_defined_pre_hook:
            self.pre_hook = self._reset
        if self.restore_value and not self.user_defined_post_hook:
            self.post_hook = self._restore

    @property
    def configs(self) -> Sequence[Any]:
        """The list, which a program may replace later, as in Triton. torch.compile tunes it by itself."""
        if not self._said_to_be_captured and _is_compiling():
            self._said_to_be_captured = True
            LOG.warning(
                "%s: torch.compile has captured this kernel, chooses from its list by itself and asks no database; for "
                "the tuned config launch it in a torch.library.custom_op or under torch.compiler.disable",
                self.kernel_name,
            )
        return self._configs

    @configs.setter
    def configs(self, configs: Sequence[Any]) -> None:
        self._configs, self._signatures = configs, {}

    @property
    def kernel_name(self) -> str:
        return str(self.base_fn.__name__)

    @property
    def jitted(self) -> Any:
        """The jitted function, or its stand-in under the interpreter."""
        kernel = self.fn
        while not isinstance(kernel, JITFunction) and not inspect.isfunction(kernel.fn):
            kernel = kernel.fn
        return kernel

    @contextmanager
    def launched_with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Arguments]:
        """While it lasts, the launch's arguments are kept where hooks and pruning look for them."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        named = {name: value for name, value in {**self.nargs, **kwargs}.items() if name in self.arg_names}
        try:
            yield Arguments(args, kwargs, named)
        finally:
            self.nargs = None

    def early_pruned(self, kwargs: dict[str, Any]) -> list[Any]:
        """The configs that early pruning leaves for this call."""
        left = list(self.configs)
        if self.early_config_prune:
            left = self.early_config_prune(self.configs, self.nargs, **kwargs)
            if not left:
                raise AutotunerError("early_config_prune left no config; it must return at least one")
        return left

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
        """The configs to time for this call; the most promising first if a model ranks them."""
        left = self.early_pruned(kwargs)
        if not self.perf_model:
            return left
        count = _count(self.configs_top_k, len(left))
        if count >= len(left):
            return left
        expected = [self.perf_model(**self.nargs, **kwargs, **config.all_kwargs()) for config in left]
        ranked = sorted(range(len(left)), key=lambda index: expected[index])
        return [left[index] for index in ranked[:count]]

    def survives_pruning(self, config: Any, launch: Arguments) -> bool:
        """True unless early pruning refuses this ``triton.Config``."""
        return not self.early_config_prune or bool(self.early_config_prune([config], self.nargs, **launch.kwargs))

    def compile_config(self, config: Any, launch: Arguments) -> None:
        """Compile and load a ``triton.Config``; loading shows if the device lacks the resources."""
        options = {**launch.kwargs, **config.all_kwargs(), "warmup": True}
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **options})  # shapes of tensor descriptors, say
        kernel = self.fn.run(*launch.args, **options)
        if hasattr(kernel, "_init_handles"):
            kernel._init_handles()

    def time_config(self, config: Any, launch: Arguments, bench: Callable[..., Any]) -> Any:
        """Time a ``triton.Config`` with all hooks around each call: the result of ``bench``, infinite on a failure."""
        self.do_bench = bench
        return self._bench(*launch.args, config=config, **launch.kwargs)

    def reset_tensors(self, config: Any, launch: Arguments) -> None:
        """Leave the tensors as the launch after the timing has to find them."""
        self.pre_hook({**self.nargs, **launch.kwargs, **config.all_kwargs()}, reset_only=True)

    def announce_best(self, key: tuple[Any, ...], best: Any) -> None:
        """Notify the listeners of Triton's tuner, in Triton's form."""
        if knobs.autotuning.print:
            print(
                f"Triton autotuning for function {self.kernel_name},\nwith key as {key},\n"
                f"finished after {self.bench_time:.2f}s,\nbest config selected: {best};"
            )
        listener = getattr(knobs.autotuning, "listener", None)  # since Triton 3.8
        if listener is not None:
            listener(
                fn=self.jitted, key=key, best_config=best, configs_timings=self.configs_timings,
                duration=self.bench_time, cache_hit=False,
            )  # fmt: skip

    def _reset(self, named: Mapping[str, Any], reset_only: bool = False) -> None:
        for tensor in _given(self.reset_to_zero, named).values():
            tensor.zero_()
        if not reset_only:
            self.restore_copies = {name: x.clone() for name, x in _given(self.restore_value, named).items()}

    def _restore(self, named: Mapping[str, Any], exception: Exception | None) -> None:
        for name, copy in self.restore_copies.items():
            named[name].copy_(copy)
        self.restore_copies = {}


def _given(names: Sequence[str], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are present and not None."""
    return {name: named[name] for name in names if named.get(name) is not None}


def _count(top_k: Any, left: int) -> int:
    """The number of remaining configs that ``top_k`` keeps: a share, at least one, or a number."""
    if isinstance(top_k, float) and top_k <= 1.0:
        return max(1, int(left * top_k))
    if isinstance(top_k, int):
        return top_k
    raise TypeError(f"top_k={top_k!r}: must be a share up to 1.0, or a number of configs")


def _is_compiling() -> bool:
    """True while torch.compile traces or generates code."""
    guards = sys.modules.get("torch._guards")
    return guards is not None and guards.TracingContext.try_get() is not None
