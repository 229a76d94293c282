"""A decorated kernel's hot path: every launch but the first with its arguments is a dictionary look-up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triton.runtime.jit import MockTensor

from autotune.decorator.candidates import Candidates, Listed, Spaced
from autotune.decorator.decision import Decider
from autotune.decorator.key import Reader, TuningKey, key_reader, tuning_key
from autotune.decorator.own_options import Options, check_names
from autotune.decorator.triton_tuner import TritonTuner
from autotune.errors import InvalidArguments
from autotune.forks import FORKS_WAIT, Lock
from autotune.runtime.lookup import Found


class Chosen:
    """A config in the form for a launch."""

    __slots__ = ("config", "options", "pre_hook")

    def __init__(self, config: Any) -> None:
        """``config`` is a ``triton.Config``."""
        self.config, self.options, self.pre_hook = config, config.all_kwargs(), config.pre_hook


class Signature:
    """Calls that pass the same arguments in the same way: the reader of their keys, and the config per key."""

    __slots__ = ("chosen", "read_key")

    def __init__(self, read_key: Reader) -> None:
        self.read_key = read_key
        self.chosen: dict[TuningKey, Chosen] = {}


class TunedKernel(TritonTuner):
    """A kernel decorated with ``autotune``. Safe to launch from many threads.

    ``decisions`` holds the source of each config in use, by Triton's tuning key: ``found.source``, ``found.reason``.
    """

    _signatures: dict[Any, Signature]

    def __init__(
        self, fn: Any, arg_names: Sequence[str], configs: Sequence[Any] | None, key: Sequence[str],
        reset_to_zero: Sequence[str] | None, restore_value: Sequence[str] | None, *,
        options: Options, **named: Any,
    ) -> None:  # fmt: skip
        """Arguments as in Triton; raises InvalidArguments."""
        for what, names in (("key", key), ("reset_to_zero", reset_to_zero), ("restore_value", restore_value)):
            check_names(what, names or (), "the kernel's arguments", arg_names)
        options.check(key, configs, named.get("prune_configs_by"))
        super().__init__(fn, arg_names, configs, key, reset_to_zero, restore_value, **named)
        self._options = options
        self._candidates: Candidates = Listed(self.configs)
        if options.space is not None:
            self._candidates = Spaced(options.space, options.default, self.arg_names, options.config_hook)
        self._decider = Decider(self, self._candidates, options)
        self.decisions: dict[TuningKey, Found] = {}
        self._lock = Lock()

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """``kernel[grid](…)`` launches, with one frame less than in Triton."""
        return functools.partial(self.run, grid=grid)

    def __deepcopy__(self, memo: object) -> TunedKernel:
        """Itself, as of any function: a copy of a module that has it launches the same kernel."""
        return self

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch with the config for these arguments."""
        signature = self._signatures.get((len(args), *kwargs) if kwargs else len(args))
        chosen = None
        if signature is not None:
            chosen = signature.chosen.get(signature.read_key((*args, *kwargs.values()) if kwargs else args))
        run = self.fn.run
        if chosen is None:
            chosen = self._choose(args, {"grid": grid, "warmup": warmup, **kwargs})
            run = self._first_run
        self.best_config = chosen.config
        if chosen.pre_hook is not None:
            given = {**kwargs, "grid": grid, "warmup": warmup}
            chosen.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **given, **chosen.options})
        return run(*args, grid=grid, warmup=warmup, **kwargs, **chosen.options)

    def _first_run(self, *args: Any, **kwargs: Any) -> Any:
        with FORKS_WAIT:  # Triton imports more modules when it compiles and interprets
            return self.fn.run(*args, **kwargs)

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        """Compile without launching: all configs of a list; of a space the one that a launch would take."""
        if isinstance(self._candidates, Listed):
            return super().warmup(*args, **kwargs)
        tensors = tuple(MockTensor.wrap_dtype(arg) for arg in args)  # a dtype may stand for a tensor
        with self._lock.held, self.launched_with(tensors, kwargs) as launch:
            key = tuning_key(launch.named, self.keys)
            best = self.cache.get(key)  # not kept: a launch may tune
            if best is None:
                best = self._candidates.form(self._decider.decide(key, launch, may_tune=False).config)
        return [self.fn.warmup(*args, **kwargs, **best.all_kwargs())]

    def tune(self, *args: Any, grid: Any, **kwargs: Any) -> Found:
        """Tune for these arguments now in any case. Collective. Raises NotTuned when offline."""
        kwargs = {"grid": grid, "warmup": False, **kwargs}
        with self._lock.held, self.launched_with(args, kwargs) as launch:
            self._follow_configs()
            key = tuning_key(launch.named, self.keys)
            self._keep(key, self._decider.tune(key, launch))
            self._signatures.clear()
            return self.decisions[key]

    def forget(self) -> None:
        """Look every key up again in a freshly read database; every participating rank calls it."""
        with self._lock.held:
            self._signatures.clear()
            self.cache.clear()
            self.decisions.clear()
            self._decider.forget()

    def _choose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Chosen:
        """The config for arguments new to this signature."""
        with self._lock.held, self.launched_with(args, kwargs) as launch:
            self._follow_configs()
            passed = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
            signature = self._signature(args, passed)
            if isinstance(self._candidates, Listed) and len(self.configs) == 1:
                signature.read_key = lambda values: ()
                return signature.chosen.setdefault((), Chosen(self.configs[0]))
            key = tuning_key(launch.named, self.keys)
            if key not in self.cache:
                self._keep(key, self._decider.decide(key, launch))
            chosen = Chosen(self.cache[key])
            _refuse_conflicts(chosen.options, kwargs)
            signature.chosen[signature.read_key((*args, *passed.values()))] = chosen
            return chosen

    def _follow_configs(self) -> None:
        """Results of another list than the one that now applies are neither served nor stored under its name."""
        if isinstance(self._candidates, Listed) and self._candidates.given != list(self.configs):
            self._candidates = Listed(self.configs)
            self._decider = Decider(self, self._candidates, self._options)

    def _signature(self, args: tuple[Any, ...], passed: Mapping[str, Any]) -> Signature:
        names, values = [*self.arg_names[: len(args)], *passed], [*args, *passed.values()]
        way = (len(args), *passed) if passed else len(args)
        if way not in self._signatures:
            self._signatures[way] = Signature(key_reader(names, values, self.keys))
        return self._signatures[way]

    def _keep(self, key: TuningKey, found: Found) -> None:
        self.cache[key] = self.best_config = best = self._candidates.form(found.config)
        self.decisions[key] = found
        if found.source == "exact" and found.entry is not None:  # what Triton's own cache on disk would give
            self.configs_timings = {best: found.entry.winner.latency.milliseconds}


def _refuse_conflicts(options: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
    conflicts = sorted(set(options) & set(kwargs))
    if conflicts:
        raise InvalidArguments(
            f"Conflicting meta-parameters: {', '.join(conflicts)}. The tuner chooses them; do not pass them."
        )
