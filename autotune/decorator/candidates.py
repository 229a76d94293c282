"""Candidates: the configs of a kernel, from a list of ``triton.Config`` or a joint space, in our form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import triton

from autotune.config import Config, Value
from autotune.decorator.key import Call
from autotune.errors import InvalidArguments, InvalidConfig
from autotune.machine import Machine
from autotune.search_spaces import COMPILER_OPTIONS, Constraint, Dimension, Space, choices
from autotune.search_spaces.written import completed, is_written, values_of
from autotune.task import Task

NO_MODES = choices("mode", "kernel")
"""The mode of configs without one."""

NEXT_TO = 8
"""Number of configs of a list that count as a config's neighbours."""

Default = Mapping[str, Value] | Callable[[Any], Mapping[str, Value]]
"""A space's config without a tuned one, or a function of the call that makes it."""


class Listed:
    def __init__(self, configs: Sequence[Any]) -> None:
        """``configs`` are ``triton.Config``."""
        self.given = list(configs)
        described = [_description(config) for config in configs]
        self._names = dict.fromkeys(name for values in described for name in values)
        self._forms: dict[Config, Any] = {}
        self._by_form: dict[Any, Config] = {}
        self._hooks: dict[Config, list[Any]] = {}
        """Hooks of configs that are otherwise alike."""
        self.fingerprint = hashlib.sha256("\n".join(c.to_json() for c in self.add(configs)).encode()).hexdigest()[:16]

    def add(self, configs: Iterable[Any]) -> list[Config]:
        """The configs in our form, in order; pruning may have made configs that are not in the list."""
        found = []
        for form in configs:
            config = self._by_form.get(form)
            if config is None:
                values = {**dict.fromkeys(self._names, "none"), **_description(form)}
                config = Config({**values, "mode": str(values.get("mode", "kernel"))})
                others = self._hooks.setdefault(config, [])
                if form.pre_hook not in others:
                    others.append(form.pre_hook)
                if number := others.index(form.pre_hook):  # closures and partials have one name, not one effect
                    config = config.replace(pre_hook=f"{config['pre_hook']} {number + 1}")
                self._forms.setdefault(config, form)
                self._by_form[form] = config
            found.append(config)
        return list(dict.fromkeys(found))

    def form(self, config: Config) -> Any:
        """The ``triton.Config`` of the list."""
        return self._forms[config]

    def violation(self, config: Config, task: Task[Call]) -> str | None:
        """The reason why the config cannot be used: it is neither in the list nor made by pruning. None if it can."""
        return None if config in self._forms else "it is not in the list of configs"

    def written(self, text: str, task: Task[Call], untuned: Config) -> Config:
        """The first config of the list with the values of a text. Raises InvalidConfig."""
        values = values_of(text)
        for config in self._forms:
            if all(name in config and is_written(config[name], value) for name, value in values.items()):
                return config
        raise InvalidConfig(f"{task.problem.workload}: no config of the list has {text}")


class Spaced:
    def __init__(
        self, space: Space | Sequence[Dimension], default: Default | None, arg_names: Sequence[str], hook: Any
    ) -> None:
        """``hook`` becomes every ``triton.Config``'s pre_hook."""
        if not isinstance(space, Space):
            dimensions = tuple(space)
            modes = () if any(dimension.name == "mode" for dimension in dimensions) else (NO_MODES,)
            space = Space(*modes, *dimensions)
        self.space = space
        self.fingerprint = space.fingerprint()
        self._default, self._hook = default, hook
        self._pass_mode = "mode" in arg_names

    def form(self, config: Config) -> Any:
        """Options go to the compiler, all else to the kernel; ``mode`` only if the kernel has such an argument."""
        options = {name: config[name] for name in COMPILER_OPTIONS if name in config}
        values = {name: value for name, value in config.items() if name not in COMPILER_OPTIONS}
        if not self._pass_mode:
            del values["mode"]
        return triton.Config(values, **options, pre_hook=self._hook)

    def violation(self, config: Config, task: Task[Call]) -> str | None:
        """The reason why the config cannot be used for the call, in one line; None if it can."""
        problem: Any = task
        return self.space.violation(config, problem)

    def written(self, text: str, task: Task[Call], untuned: Config) -> Config:
        """The config of a text; what it leaves out is as it is ``untuned``. Raises InvalidConfig."""
        return completed(values_of(text, self.space), self.space, task, [untuned])

    def default(self, call: Call, machine: Machine, survives: Callable[[Config], bool] = lambda config: True) -> Config:
        """The user's config for this call, else the space's first valid one that ``survives`` pruning; raises
        InvalidConfig.
        """
        problem: Any = call
        if self._default is None:
            first = next(filter(survives, self.space.enumerate(Task(problem, machine))), None)
            if first is None:
                raise InvalidConfig(f"{call.workload}: the space has no valid config for {call}; widen it")
            return first
        values = self._default(call) if callable(self._default) else self._default
        config = Config({"mode": self.space.modes[0], **values})
        violation = self.violation(config, Task(call, machine))
        if violation is not None:
            raise InvalidConfig(f"{call.workload}: the default is not valid for {call}: {violation}")
        return config


Candidates = Listed | Spaced
"""The candidates of one kernel: their forms (``triton.Config``), and those that a call allows.

Their ``fingerprint`` is part of an entry's provenance.
"""


class ListedSpace(Space):
    """A list of configs as a space: the values and combinations that occur in it."""

    def __init__(self, configs: Sequence[Config]) -> None:
        """Raises InvalidArguments unless all configs name the same parameters."""
        names = list(configs[0])
        if any(set(config) != set(names) for config in configs):
            raise InvalidArguments("configs with different parameters cannot be searched; give trials=None")
        self._configs = list(configs)
        listed = frozenset(configs)
        super().__init__(
            *(_dimension(name, [config[name] for config in configs]) for name in names),
            constraints=(
                Constraint("listed", tuple(names), lambda s, **values: Config(values) in listed, "not in the list"),
            ),
        )

    def narrowed(self, task: Task[Any]) -> Space:
        """The space itself, as each value occurs."""
        return self

    def neighbours(self, config: Config, task: Task[Any]) -> Iterator[Config]:
        """The configs that differ in the fewest values: a single step might lead out of the list."""
        others = (other for other in self._configs if other != config)
        yield from sorted(others, key=lambda other: sum(other[name] != config[name] for name in config))[:NEXT_TO]


def _dimension(name: str, values: Iterable[Value]) -> Dimension:
    distinct = list({repr(value): value for value in values}.values())
    numbers = [value for value in distinct if isinstance(value, int) and not isinstance(value, bool)]
    if len(numbers) == len(distinct):
        return Dimension(name, tuple(sorted(numbers)))
    return Dimension(name, tuple(distinct), ordinal=False)


def _description(form: Any) -> dict[str, Value]:
    """A ``triton.Config`` as JSON-able values."""
    hook = form.pre_hook
    values = {**form.all_kwargs(), **({"pre_hook": getattr(hook, "__qualname__", "given")} if hook else {})}
    return {name: value if isinstance(value, str | int) else str(value) for name, value in values.items()}
