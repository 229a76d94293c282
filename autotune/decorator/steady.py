"""Triton's tuner, where its versions differ: as the newest has it, on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import AutotunerError


class SteadyAutotuner(Autotuner):  # type: ignore[misc]  # Triton ships no types
    """Arguments that are None are neither reset nor restored; a fractional ``top_k`` is of what early pruning left."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As Triton's."""
        super().__init__(*arguments, **named)
        self.restore_copies: dict[str, Any] = {}
        if (self.reset_to_zero or self.restore_value) and not self.user_defined_pre_hook:
            self.pre_hook = self._reset
        if self.restore_value and not self.user_defined_post_hook:
            self.post_hook = self._restore

    def _reset(self, named: Mapping[str, Any], reset_only: bool = False) -> None:
        for tensor in _given(self.reset_to_zero, named).values():
            tensor.zero_()
        if not reset_only:
            self.restore_copies = {name: x.clone() for name, x in _given(self.restore_value, named).items()}

    def _restore(self, named: Mapping[str, Any], exception: Exception | None) -> None:
        for name, copy in self.restore_copies.items():
            named[name].copy_(copy)
        self.restore_copies = {}

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
