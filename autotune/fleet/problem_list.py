"""The file with a fleet's problems: YAML, with the words of the command line, checked at the boundary."""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml

from autotune import schema
from autotune.errors import AutotuneError, InputError, InvalidProblem
from autotune.files import text_of
from autotune.machine import INTERPRETED
from autotune.outcome import DEFAULT_REGIME, Regime, regime_of
from autotune.problem import Problem
from autotune.schema import Within
from autotune.sizes import parse_sizes, spread
from autotune.tuning import limits_of
from autotune.workloads import Workload, is_reference, workload

T = TypeVar("T")

MOST_PROBLEMS = 100_000

MERGE = "tag:yaml.org,2002:merge"
"""The tag of ``<<``, whose mapping's names may be given again beside it."""

SHORT = reprlib.Repr()
"""Shows a value of a file, whose aliases may make it endless."""
SHORT.maxlevel = 2


@dataclass(frozen=True)
class Asked:
    """A problem of the file, for every kind of host that its ``device`` allows."""

    workload: Workload
    problem: Problem
    regime: Regime
    options: tuple[tuple[str, Any], ...] = ()
    device: str | None = None
    """A device's name as the driver gives it; None for each kind that the fleet has."""
    calls: int = field(default=1, compare=False)
    """Calls in a model's forward: ``tune model`` weighs problems by them, a fleet does not."""
    search: bool = True
    """False: only verified, with the winners of the neighbouring sizes that are searched."""
    place: str = ""
    """Problems of one place and size are alternatives in a graph: ``tune model`` counts the best, a fleet tunes all."""
    way: int = 0
    """Problems of a place that are used together have a way's number; 0: this one alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle names and values: another process has workloads of its own, and not the list's files."""
        values = (self.regime, self.options, self.device, self.calls, self.search, self.place, self.way)
        return _asked, (self.workload.name, self.problem.to_json(), *values)


def _asked(name: str, problem: str, *values: Any) -> Asked:
    found = workload(name)
    return Asked(found, found.problem_type.from_dict(json.loads(problem)), *values)


@dataclass(frozen=True)
class Entry:
    """Options of a problem in the list; its other fields are the problem's own."""

    workload: str
    device: str | None = None
    regime: str = DEFAULT_REGIME.value
    budget: str | int | float | None = None
    trials: int | None = None
    effort: str | None = None
    seed: int = 0
    calls: Annotated[int, Within(0)] = 1
    search: bool = True
    place: str = ""
    way: Annotated[int, Within(0)] = 0


OWN = {each.name for each in dataclasses.fields(Entry)}


@dataclass(frozen=True)
class File:
    problems: list[dict[str, Any]]
    defaults: dict[str, Any] = field(default_factory=dict)
    """Fields of every entry that does not have them itself."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe one, which would take the last of two values of one name without a word, and integers that Python
    cannot print.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != MERGE]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> Any:
        value = super().construct_yaml_int(node)
        if value.bit_length() > 63:
            raise yaml.constructor.ConstructorError(None, None, "an integer of more than 63 bits", node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_list(path: Path) -> list[Asked]:
    """Every problem that a file asks for. Raises InputError that names the entry and what is allowed."""
    try:
        return parse_list(text_of(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse_list(text: str) -> list[Asked]:
    try:
        written = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date that is none
        raise InputError(f"not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(written, dict):
        raise InputError("needs problems: and a list of entries, each with its workload and dimensions")
    file = _checked(File, written)
    if not file.problems:
        raise InputError(
            "problems: the list is empty. autotune.collect() writes such a one where no operator ran and no graph was "
            "compiled: call the model within it, before it is compiled or anew"
        )
    found: dict[Asked, None] = {}
    for number, entry in enumerate(file.problems, 1):
        name = f"problem {number}"
        try:
            values = {str(each): value for each, value in {**file.defaults, **entry}.items()}
            own = _checked(Entry, {each: value for each, value in values.items() if each in OWN})
            for asked in _problems(own, {each: value for each, value in values.items() if each not in OWN}):
                found[asked] = None
                if len(found) > MOST_PROBLEMS:
                    raise InputError(f"more than {MOST_PROBLEMS} problems; split the file")
        except AutotuneError as error:
            raise InputError(str(error) if str(error).startswith(name) else f"{name}: {error}") from error
    return _not_twice(found)


def each_once(asked: Iterable[Asked]) -> list[Asked]:
    """The problems, each once, whatever places of a graph they are for."""
    return _not_twice(dict.fromkeys(replace(each, place="", way=0) for each in asked))


def _not_twice(asked: Collection[Asked]) -> list[Asked]:
    """Without those to be verified that are searched as well."""
    searched = {replace(each, options=()) for each in asked if each.search}
    return [each for each in asked if each.search or replace(each, options=(), search=True) not in searched]


def _checked(kind: type[T], values: Mapping[str, Any]) -> T:
    try:
        return schema.read(kind, values)
    except schema.Mistakes as error:
        raise InputError(str(error.found[0])) from error


def _problems(entry: Entry, fields: dict[str, Any]) -> Iterator[Asked]:
    """Every combination of the sizes in the problem's ``fields``, the last one varying fastest; of a doubling range few
    are searched, and the others verified as in ``tune grid``.
    """
    if is_reference(entry.workload):
        raise InputError(
            f"workload {entry.workload}: a fleet takes workloads by name; set AUTOTUNE_WORKLOADS on every host to load "
            "the file"
        )
    found = workload(entry.workload)
    regime = regime_of(entry.regime)
    options = _options(entry)
    kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(found.problem_type)}
    for each in dataclasses.fields(found.problem_type):
        if kinds[each.name] == "written" and isinstance(fields.get(each.name), str):
            fields[each.name] = each.metadata["read"](fields[each.name])
    for name, value in fields.items():
        if isinstance(value, dict | list) and kinds.get(name, "size") != "size":
            raise InputError(f"{name}: one value is needed; only sizes are lists. Write an entry for each other value")
    sizes = {name: _sizes(name, value) for name, value in fields.items() if kinds.get(name) == "size"}
    ranges = [name for name in found.problem_type.free if name in sizes and ".." in str(fields[name])]

    def problem_of(chosen: Mapping[str, int]) -> Problem | None:
        try:
            return found.problem_type.from_dict({**fields, **chosen})
        except InvalidProblem:
            return None

    searched, verified = spread(
        sizes, ranges, ranges, max(sizes.get("world_size", [1])), lambda chosen: problem_of(chosen) is not None
    )
    if entry.way and not entry.place:
        raise InputError(f"way: {entry.way}: ways are of a place: give its name, place: NAME, in every entry of it")
    place = (entry.place, entry.way)
    for chosen in searched:
        asked = found.problem_type.from_dict({**fields, **chosen})
        yield Asked(found, asked, regime, options, entry.device, entry.calls, entry.search, *place)
    for chosen in verified:
        problem = problem_of(chosen)
        if problem is not None:
            calls = entry.calls if all(size in sizes[name] for name, size in chosen.items()) else 0
            yield Asked(found, problem, regime, (), entry.device, calls, False, *place)


def _sizes(name: str, value: Any) -> list[int]:
    """A number, a list, or the words of the command line: 16,64,256 or 1..1024."""
    values = value if isinstance(value, list) else [value]
    if not values or any(isinstance(each, bool) or not isinstance(each, int | str) for each in values):
        shown = SHORT.repr(value)
        raise InputError(f"{name}: {shown}: write a number, a list like 16,64,256, or a doubling range like 1..1024")
    return parse_sizes(",".join(map(str, values)), f"{name}:")


def _options(entry: Entry) -> tuple[tuple[str, Any], ...]:
    """The options that ``tune WORKLOAD`` gets, checked."""
    budget = entry.budget if isinstance(entry.budget, str | None) else f"{entry.budget:g}s"
    limits_of(INTERPRETED, entry.effort, entry.trials, budget, entry.seed)
    given = {"budget": budget, "trials": entry.trials, "effort": entry.effort, "seed": entry.seed or None}
    return tuple((name, value) for name, value in given.items() if value is not None)
