"""Triton's tuner: where its versions differ, as the newest has it; and the parts of it that a tuning session calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import AutotunerError
from triton.runtime.jit import JITFunction


@dataclass(frozen=True)
class Arguments:
    """The arguments of one launch."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """``grid`` and ``warmup`` among them."""
    named: dict[str, Any]
    """Those of the kernel, by name."""


class TritonTuner(Autotuner):  # type: ignore[misc]  # Triton ships no types
    """Arguments that are None are neither reset nor restored; a fractional ``top_k`` is of what early pruning left."""

    nargs: Any
    """Positional arguments of the launch at hand by name, for hooks and pruning; None between launches."""
    do_bench: Any
    bench_time: float
    configs_timings: dict[Any, Any]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As Triton's."""
        super().__init__(*arguments, **named)
        self.given_bench = self._do_bench
        self.restore_copies: dict[str, Any] = {}
        if (self.reset_to_zero or self.restore_value) and not self.user_defined_pre_hook:
            self.pre_hook = self._reset
        if self.restore_value and not self.user_defined_post_hook:
            self.post_hook = self._restore

    @property
    def kernel_name(self) -> str:
        """The kernel's."""
        return str(self.base_fn.__name__)

    @property
    def jitted(self) -> Any:
        """The jitted function itself, or what stands for it under the interpreter."""
        kernel = self.fn
        while not isinstance(kernel, JITFunction) and not inspect.isfunction(kernel.fn):
            kernel = kernel.fn
        return kernel

    @contextmanager
    def launched_with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Arguments]:
        """While a launch is prepared: its arguments, kept where hooks and pruning look for them."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        named = {name: value for name, value in {**self.nargs, **kwargs}.items() if name in self.arg_names}
        try:
            yield Arguments(args, kwargs, named)
        finally:
            self.nargs = None

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
        """The configs that are to be timed for this call, the most promising first where a model ranks them."""
        left: list[Any] = self.configs
        if self.early_config_prune:
            left = self.early_config_prune(self.configs, self.nargs, **kwargs)
            if not left:
                raise AutotunerError("early_config_prune left no config; it should return at least one")
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
        """Compile a ``triton.Config`` and load it: here it shows if the device lacks the resources."""
        options = {**launch.kwargs, **config.all_kwargs(), "warmup": True}
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **options})  # shapes of tensor descriptors, say
        kernel = self.fn.run(*launch.args, **options)
        if hasattr(kernel, "_init_handles"):
            kernel._init_handles()

    def time_config(self, config: Any, launch: Arguments, bench: Callable[..., Any]) -> Any:
        """Time a ``triton.Config`` with all hooks around each call: what ``bench`` gives, infinite where it fails."""
        self.do_bench = bench
        return self._bench(*launch.args, config=config, **launch.kwargs)

    def reset_tensors(self, config: Any, launch: Arguments) -> None:
        """Leave tensors as the launch that comes after the timing has to find them."""
        self.pre_hook({**self.nargs, **launch.kwargs, **config.all_kwargs()}, reset_only=True)

    def announce_best(self, key: tuple[Any, ...], best: Any) -> None:
        """Tell who listens to Triton's tuner, in Triton's words."""
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
    """Those of the arguments that are there and not None."""
    return {name: named[name] for name in names if named.get(name) is not None}


def _count(top_k: Any, left: int) -> int:
    """How many of the configs that are left ``top_k`` keeps: a share, of which one is the least, or a number."""
    if isinstance(top_k, float) and top_k <= 1.0:
        return max(1, int(left * top_k))
    if isinstance(top_k, int):
        return top_k
    raise TypeError(f"top_k={top_k!r}: a share up to 1.0, or a number of configs, is needed")
