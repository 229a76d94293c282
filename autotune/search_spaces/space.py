"""A search space: dimensions and named constraints, from which everything else about it is derived."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import linecache
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.config import Config, Value
from autotune.errors import InputError, InvalidConfig, InvalidProblem
from autotune.problem import Problem
from autotune.search_spaces import counting
from autotune.search_spaces.dimension import Dimension
from autotune.task import Task

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Constraint:
    """A named predicate over some dimensions, with the reason why the configs that it forbids cannot work.

    It applies to the configs that have all of ``uses``; ``allows(task, **values)`` gets their values by name.
    """

    name: str
    uses: tuple[str, ...]
    allows: Callable[..., bool]
    reason: str
    modes: tuple[str, ...] = ()


class Memoized:
    """The first constraint that a config breaks; one that has seen its values is not called for them again."""

    def __init__(self, of_mode: Mapping[str, Sequence[Constraint]], task: Task[Any]) -> None:
        self._task = task
        self._of_mode: dict[str, list[tuple[Constraint, dict[tuple[Value, ...], bool]]]] = {
            mode: [(constraint, {}) for constraint in constraints] for mode, constraints in of_mode.items()
        }

    def __call__(self, config: Mapping[str, Value]) -> Constraint | None:
        """The first broken constraint, as ``Space.broken``."""
        for constraint, known in self._of_mode[str(config["mode"])]:
            values = tuple([config[name] for name in constraint.uses])
            if values not in known:
                known[values] = constraint.allows(self._task, **dict(zip(constraint.uses, values, strict=True)))
            if not known[values]:
                return constraint
        return None


class Space:
    """A workload's joint search space. The dimension ``mode`` says which of the others a config carries.

    Validity is stated here once: ``violation`` serves the sampler, the command line, the store and the launcher.
    """

    def __init__(
        self, *dimensions: Dimension, constraints: tuple[Constraint, ...] = (), known_modes: tuple[str, ...] = ()
    ) -> None:
        """Dimensions in the order in which they are searched and shown; one must be named ``mode``.

        Dimensions and constraints name modes that ``mode`` has; a part of a space names those of the whole,
        ``known_modes``, too.
        """
        self.dimensions = {dimension.name: dimension for dimension in dimensions}
        self.constraints = constraints
        _check_names(dimensions)
        self._known_modes = known_modes or self.modes
        self._check_modes()
        unknown = {name for constraint in constraints for name in constraint.uses} - set(self.dimensions)
        if unknown:
            raise ValueError(f"constraints use unknown dimensions {sorted(unknown)}")
        self._of_mode = {mode: {d.name: d for d in self.dimensions_of(mode)} for mode in self.modes}
        self._constraints_of = {
            mode: [c for c in constraints if (not c.modes or mode in c.modes) and its.keys() >= set(c.uses)]
            for mode, its in self._of_mode.items()
        }

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(str(value) for value in self.dimensions["mode"].values)

    def dimensions_of(self, mode: str) -> list[Dimension]:
        """The dimensions that configs of a mode carry, ``mode`` first."""
        return [d for d in self.dimensions.values() if d.belongs_to(mode)]

    def ordered(self, config: Config) -> Config:
        """The config with its dimensions in the space's order; what the space does not have comes last."""
        return Config({name: config[name] for name in [*self.dimensions, *config] if name in config})

    def violation(self, config: Config, task: Task[Problem]) -> str | None:
        """The reason why the config is invalid for the problem on the machine, in one line; None if it is valid."""
        strange = self._strange(config)
        if strange is not None:
            return strange
        broken = self.broken(config, task)
        if broken is None:
            return None
        got = ", ".join(f"{name}={config[name]}" for name in broken.uses)
        return f"{broken.name} ({got}): {broken.reason}"

    def holds(self, config: Config) -> bool:
        """True if the config's dimensions are those of its mode and its values theirs; it may break a constraint."""
        return self._strange(config) is None

    def _strange(self, config: Config) -> str | None:
        """The reason why the config is none of the space, whatever the problem; None if it is one."""
        mode = config.get("mode")
        if not self.dimensions["mode"].holds(mode):
            return f"mode={mode!r}: allowed: {', '.join(self.modes)}"
        wanted = self._of_mode[str(mode)]
        if set(config) != wanted.keys():
            extra, missing = sorted(set(config) - set(wanted)), sorted(set(wanted) - set(config))
            parts = [f"has no {', '.join(extra)}"] * bool(extra) + [f"needs {', '.join(missing)}"] * bool(missing)
            return f"mode {mode} {' and '.join(parts)}"
        for name, dimension in wanted.items():
            if not dimension.holds(config[name]):
                return f"{name}={config[name]!r}: allowed: {', '.join(map(str, dimension.values))}"
        return None

    def broken(self, config: Mapping[str, Value], task: Task[Problem]) -> Constraint | None:
        """The first constraint that the config breaks; its dimensions and values are those of its mode."""
        for constraint in self._constraints_of[str(config["mode"])]:
            if not constraint.allows(task, **{name: config[name] for name in constraint.uses}):
                return constraint
        return None

    def memoized(self, task: Task[Problem]) -> Memoized:
        """``broken`` for one problem on one machine, for who asks again and again."""
        return Memoized(self._constraints_of, task)

    def check(self, config: Config, task: Task[Problem]) -> None:
        """Raise InvalidConfig if there is a violation."""
        violation = self.violation(config, task)
        if violation is not None:
            raise InvalidConfig(f"config not valid for {task.problem.workload} {task.problem}: {violation}")

    def check_problem(self, task: Task[Problem]) -> None:
        """Raise InvalidProblem where the machine can run the problem in no mode, whatever the config."""
        broken = [
            next((c for c in self._constraints_of[mode] if c.uses == ("mode",) and not c.allows(task, mode=mode)), None)
            for mode in self.modes
        ]
        if broken[0] is not None and None not in broken:
            raise InvalidProblem(f"{task.problem.workload} {task.problem} on {task.machine.arch}: {broken[0].reason}")

    def suggest(self, trial: optuna.trial.BaseTrial) -> Config:
        """Let Optuna choose a config, valid or not: the mode first, then the dimensions that it has."""
        mode = str(self.dimensions["mode"].suggest(trial))
        return Config({"mode": mode} | {d.name: d.suggest(trial) for d in self.dimensions_of(mode) if d.name != "mode"})

    def parameters(self, config: Config) -> dict[str, int]:
        """The config as Optuna's parameters: the index of each value."""
        return {name: self.dimensions[name].index(value) for name, value in config.items()}

    def of_parameters(self, parameters: Mapping[str, int]) -> Config | None:
        """The config of Optuna's parameters; None where they are not those of a config, valid or not."""
        try:
            config = Config({name: self.dimensions[name].values[at] for name, at in parameters.items()})
        except (KeyError, IndexError):
            return None
        return config if self.holds(config) else None

    def distributions(self, config: Config) -> dict[str, optuna.distributions.BaseDistribution]:
        """Optuna's distributions for ``parameters``."""
        return {name: self.dimensions[name].distribution() for name in config}

    def enumerate(self, task: Task[Problem], mode: str | None = None) -> Iterator[Config]:
        """Every valid config, in a fixed order; of one mode where one is given."""
        for each in (mode,) if mode else self.modes:
            for values in self._walk(each, task, self._ordered(each)):
                yield Config({d.name: values[d.name] for d in self.dimensions_of(each)})

    def size(self, task: Task[Problem]) -> int:
        """The exact number of valid configs, without walking through them."""
        return sum(count for counts in _counts(self, task).values() for count in counts["mode"])

    def valid(self, configs: Iterable[Config], task: Task[Problem]) -> Iterator[Config]:
        """Valid configs among these, in their order, each once."""
        return (config for config in dict.fromkeys(configs) if self.violation(config, task) is None)

    def first_valid(self, configs: Iterable[Config], task: Task[Problem]) -> Config | None:
        """The first of some configs that is valid; None if none is. It looks at no more of them."""
        return next((config for config in configs if self.violation(config, task) is None), None)

    def neighbours(self, config: Config, task: Task[Problem]) -> Iterator[Config]:
        """Valid configs that differ in one dimension by one step, within the mode."""
        for dimension in self.dimensions_of(str(config["mode"])):
            if dimension.name == "mode":
                continue
            for value in dimension.neighbours(config[dimension.name]):
                # Plain values, for to make a config takes longer than to see that they break a constraint.
                other = {**config, dimension.name: value}
                if self.broken(other, task) is None:
                    yield Config(other)

    def narrowed(self, task: Task[Problem]) -> Space:
        """The space without values that no valid config has, so that a sampler proposes fewer invalid configs.

        Raises InvalidProblem where that is none at all, see ``check_problem``.
        """
        self.check_problem(task)
        living: dict[str, set[Value]] = {name: set() for name in self.dimensions}
        for mode, counts in _counts(self, task).items():
            for name, its in counts.items():
                values = (mode,) if name == "mode" else self.dimensions[name].values
                living[name].update(value for value, count in zip(values, its, strict=True) if count)
        kept = [d.only(living[d.name]) for d in self.dimensions.values() if living[d.name]]
        names = {dimension.name for dimension in kept}
        constraints = tuple(c for c in self.constraints if names.issuperset(c.uses))
        return Space(*kept, constraints=constraints, known_modes=self._known_modes)

    def restricted(self, allowed: Mapping[str, Sequence[Value]], lifted: Sequence[str] = ()) -> Space:
        """The space with only ``allowed`` values of some dimensions, and without the constraints ``lifted``.

        The values keep the order of this space, whatever order they are given in. Raises InputError for a dimension, a
        value or a constraint that the space does not have.
        """
        named = {constraint.name for constraint in self.constraints}
        if unknown := sorted(set(lifted) - named):
            raise InputError(f"the space has no constraint {', '.join(unknown)}; it has {', '.join(sorted(named))}")
        for name, values in allowed.items():
            if name not in self.dimensions:
                raise InputError(f"the space has no dimension {name}; it has {', '.join(self.dimensions)}")
            own = self.dimensions[name]
            strange = [value for value in values if not own.holds(value)]
            if strange or not values:
                got = ", ".join(map(str, strange)) or "no value"
                raise InputError(f"dimension {name}: {got}; allowed: {', '.join(map(str, own.values))}")
        kept = [d.only(allowed[d.name]) if d.name in allowed else d for d in self.dimensions.values()]
        constraints = tuple(c for c in self.constraints if c.name not in lifted)
        return Space(*kept, constraints=constraints, known_modes=self._known_modes)

    def fingerprint(self) -> str:
        """A hash of dimensions and constraints: part of what makes a cached result stale."""
        parts = [repr((d.name, d.values, d.modes, d.ordinal)) for d in self.dimensions.values()]
        parts += sorted(f"{(c.name, c.uses, c.modes)}\n{_source_of(c.allows)}" for c in self.constraints)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def factors(self, mode: str, task: Task[Any]) -> tuple[dict[str, int], list[counting.Factor]]:
        """The input of ``counting``: how many values each of the mode's dimensions has, and each constraint as a table
        of allowed combinations.
        """
        values = {d.name: d.values if d.name != "mode" else (mode,) for d in self.dimensions_of(mode)}
        factors = []
        for constraint in self._constraints_of[mode]:
            every = itertools.product(*(values[name] for name in constraint.uses))
            allowed = [constraint.allows(task, **dict(zip(constraint.uses, each, strict=True))) for each in every]
            factors.append((constraint.uses, np.array(allowed).reshape([len(values[n]) for n in constraint.uses])))
        return {name: len(each) for name, each in values.items()}, factors

    def _check_modes(self) -> None:
        """Raise ValueError for what would never be part of a config, or never checked, because of a misspelt mode."""
        named = [(f"dimension {d.name}", d.modes) for d in self.dimensions.values()]
        named += [(f"constraint {c.name}", c.modes) for c in self.constraints]
        for what, modes in named:
            for mode in modes:
                if mode not in self._known_modes:
                    raise ValueError(f"{what}: no mode {mode!r}; dimension mode has {', '.join(self._known_modes)}")

    def _ordered(self, mode: str) -> list[Dimension]:
        """The mode's dimensions, those that complete a constraint soonest first, so that a walk is cut early."""
        ordered = [self.dimensions["mode"]]
        for constraint in sorted(self._constraints_of[mode], key=lambda c: len(c.uses)):
            ordered += [self.dimensions[name] for name in constraint.uses if self.dimensions[name] not in ordered]
        return ordered + [d for d in self.dimensions_of(mode) if d not in ordered]

    def _walk(self, mode: str, task: Task[Any], ordered: list[Dimension]) -> Iterator[dict[str, Value]]:
        """Assign the dimensions one by one; leave a branch as soon as a constraint on what is assigned fails."""
        position = {dimension.name: i for i, dimension in enumerate(ordered)}
        due: list[list[Constraint]] = [[] for _ in ordered]
        for constraint in self._constraints_of[mode]:
            due[max(position[name] for name in constraint.uses)].append(constraint)

        def walk(at: int, values: dict[str, Value]) -> Iterator[dict[str, Value]]:
            if at == len(ordered):
                yield dict(values)
                return
            dimension = ordered[at]
            for value in (mode,) if dimension.name == "mode" else dimension.values:
                values[dimension.name] = value
                if all(c.allows(task, **{name: values[name] for name in c.uses}) for c in due[at]):
                    yield from walk(at + 1, values)

        return walk(0, {})


def _check_names(dimensions: Sequence[Dimension]) -> None:
    names = [dimension.name for dimension in dimensions]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"dimension {name}: defined {names.count(name)} times; each dimension needs its own name")
    if "mode" not in names:
        raise ValueError(f"no dimension named mode among {', '.join(names)}; a space needs one, if only of one value")


@functools.lru_cache(maxsize=256)  # for a run asks for the size, too, and the next is often of the same problem
def _counts(space: Space, task: Task[Any]) -> dict[str, dict[str, list[int]]]:
    """The number of valid configs with each value, by mode and dimension."""
    return {mode: counting.by_value(*space.factors(mode, task)) for mode in space.modes}


def _source_of(function: Callable[..., bool]) -> str:
    """A function's lines. ``inspect.getsource`` reads tokens to find its end, which takes 5 ms for a space."""
    code: types.CodeType | None = getattr(function, "__code__", None)
    lines = linecache.getlines(code.co_filename) if code is not None else []
    if code is None or not lines:
        return inspect.getsource(function)
    return "".join(lines[code.co_firstlineno - 1 : max(_ends(code))])


def _ends(code: types.CodeType) -> Iterator[int]:
    """The last line of every expression, those of functions within among them."""
    yield from (end for _, end, _, _ in code.co_positions() if end is not None)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _ends(constant)
