"""Builds a workload's command line from its problem's fields; the problem itself checks their values."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.markup import escape

from autotune.cli import output, session
from autotune.errors import InputError, InvalidProblem, UnknownWorkload
from autotune.machine import Machine
from autotune.outcome import Regime
from autotune.problem import Problem
from autotune.results.figures import dashed, options_text, plain
from autotune.task import Task
from autotune.text import did_you_mean
from autotune.workloads import Workload, is_reference, reference_of
from autotune.workloads.descriptors import Descriptor

MORE = "More options"
"""Panel of the options that are not fields of the problem."""


def one_of(words: Iterable[str]) -> Any:
    """Arguments of an option that takes one of a few words: its metavar, and its completion.

    Whoever uses the value checks it: a mistake gets a message that knows more than "not one of".
    """
    known = list(words)
    return {"metavar": "|".join(known), "autocompletion": completing(lambda: known)}


def completing(known: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """The completion of a word; ``known`` is asked when a user presses Tab."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in known() if word.startswith(incomplete)]

    return complete


Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="Database: a path or a URL.",
        show_default="AUTOTUNE_DB, else a file in your data folder",
    ),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of stdout.")]
RegimeName = Annotated[
    str,
    typer.Option(
        "--regime",
        **one_of(Regime),
        help="How calls are made: replayed in a CUDA graph, eagerly back to back (pipelined), or one at a time.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


@dataclass(frozen=True)
class Request:
    """A workload and the problem fields that the user gave."""

    workload: Workload
    given: Mapping[str, Any]

    def world_size(self, machine: Machine) -> int:
        """The given one, else all GPUs, else two ranks."""
        given: int | None = self.given.get("world_size")
        return given if given is not None else session.default_ranks(machine)

    def problem(self, machine: Machine) -> Problem:
        """The workload's default problem on the machine, with the user's fields in place of its own."""
        ranks = self.world_size(machine)
        try:
            default = self.workload.default_problem(machine, ranks)
        except InvalidProblem:
            # The default's sizes do not suit that many ranks; those that the user gives may.
            default = self.workload.default_problem(machine, 1)
        kind = self.workload.problem_type
        problem = kind.from_dict(kind.completed({**self.given, "world_size": ranks}, default.as_dict()))
        self.workload.space.check_problem(Task(problem, machine))
        return problem

    def command(self, verb: str = "", db: str | None = None) -> str:
        """The command line for the same problem, for hints."""
        if self.is_of_a_file:
            verb = verb or "run"
        words = ["tune", verb, self.word, options_text(self.given)]
        return " ".join(word for word in words if word) + database_option(db)

    @property
    def is_of_a_file(self) -> bool:
        """True for a workload that was named as FILE:CLASS."""
        return is_reference(reference_of(self.workload))

    @property
    def word(self) -> str:
        """The workload's name for a command line in this folder."""
        reference = reference_of(self.workload)
        return os.path.relpath(reference) if self.is_of_a_file else dashed(reference)


def masked(db: str) -> str:
    """A database for messages: a URL's password is not shown."""
    if "://" not in db:
        return db
    from autotune.db.engines import database_url, has_secret, place_of

    return place_of(database_url(db)) if has_secret(db) else db


def database_option(db: str | None) -> str:
    """The end of a hint's command line: `` --db …`` where one was given."""
    return f" --db {masked(db)}" if db else ""


def unknown(name: str, known: Iterable[str], kinds: str = "workload", more: str = "") -> UnknownWorkload:
    """The error for a name that nothing has: with the one that was meant, else with all that are known."""
    names = [*known]
    near = did_you_mean(dashed(name), names)
    return UnknownWorkload(f"no {kinds} named {name!r}" + (near or f"; known: {', '.join(names)}{more}"))


def refuse(ignored: Mapping[str, object], why: str) -> None:
    """Raise InputError where one of these options is given: it would be ignored."""
    given = [option for option, value in ignored.items() if value]
    if given:
        raise InputError(f"{', '.join(given)}: {why}: choose one")


def parameters(function: Callable[..., Any], after: int = 1) -> list[inspect.Parameter]:
    """The options of a command's function, or of a dataclass: its parameters ``after`` the first ones, by keyword."""
    found = list(inspect.signature(function, eval_str=True).parameters.values())[after:]
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in found]


def signed(command: Callable[..., None], options: Sequence[inspect.Parameter], doc: str | None) -> Callable[..., None]:
    """A command with these options, which Typer reads off its signature."""
    command.__doc__ = doc
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in options}
    return command


def with_options_of(kind: type[Any], function: Callable[..., None]) -> Callable[..., None]:
    """Turn ``function(made, …)`` into a command whose first options are the fields of ``kind``, a dataclass."""
    fields, own = parameters(kind, after=0), parameters(function)

    def command(**values: Any) -> None:
        made = kind(**{each.name: values.pop(each.name) for each in fields})
        function(made, **values)

    return signed(command, [*fields, *own], function.__doc__)


def in_context(
    command: Callable[..., None], function: Callable[..., None], doc: str | None = None
) -> Callable[..., None]:
    """``command(context, …)`` with Typer's context, and with the options that ``function`` has after its first one."""
    first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    return signed(command, [first, *parameters(function)], doc)


def with_problem_options(
    descriptor: Descriptor, function: Callable[..., None], *, several: bool = False,
    filter: Callable[[Request], object] | None = None,
) -> Callable[..., None]:  # fmt: skip
    """Turn ``function(request, …)`` into a command whose options are the problem's fields and its own other parameters.
    The workload itself is loaded when the command runs, not for its help.

    With ``several``, dimensions are text (lists and ranges), and the function makes the problems. With ``filter``, it
    gets what that makes of the request, and fields that are not given mean any value, not their default.
    """
    own, fields = parameters(function), descriptor.problem_type.in_order()
    names = [field.name for field in fields]
    taken = sorted({parameter.name for parameter in own} & set(names))
    if taken:
        raise InputError(
            f"workload {descriptor.name}: field {taken[0]} clashes with an option of the command line; rename it"
        )
    with output.prints_apart():
        defaults = {} if filter is not None else descriptor.defaults(session.machine, session.default_ranks)
    options = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(f, several, defaults)
        )
        for f in fields
    ]

    def command(**values: Any) -> None:
        given = {name: value for name in names if (value := values.pop(name)) is not None}
        check_ranges(given)
        with output.waiting("loading kernels"):  # and torch
            loaded = descriptor.load()
        with output.prints_apart():
            request = Request(loaded, given)
            function(request if filter is None else filter(request), **values)

    further = [each.replace(annotation=_in_panel(each.annotation)) for each in own]
    return signed(command, [*options, *further], function.__doc__)


def check_ranges(given: Mapping[str, Any]) -> None:
    """Raise InputError for a range of sizes that is not for one invariant config."""
    for name, value in given.items():
        if isinstance(value, UpTo) and not given.get("invariant"):
            raise InputError(
                f"--{dashed(name)} 1..{value}: one config for all of these sizes takes --invariant; a config for each "
                "is tuned by: tune grid WORKLOAD"
            )


def _in_panel(annotation: Any) -> Any:
    """An option of the command itself: below those of the problem."""
    kind, info = get_args(annotation)
    info = copy.copy(info)
    info.rich_help_panel = info.rich_help_panel or MORE
    return Annotated[kind, info]


def _annotation(field: dataclasses.Field[Any], several: bool, defaults: Mapping[str, Any]) -> Any:
    """The option of one field. The problem checks words, and names those that are allowed."""
    option = f"--{dashed(field.name)}"
    text = escape(field.metadata.get("help", ""))  # "[gate, up]" is no markup
    default = defaults.get(field.name)
    shown: Any = {"show_default": plain(default)} if isinstance(default, str | float) or default is True else {}
    match field.metadata["kind"]:
        case "size" if several and field.name != "world_size":
            return Annotated[str | None, typer.Option(option, help=text, metavar="N,N|N..N")]
        case "size":
            return Annotated[int | None, typer.Option(option, help=text, metavar="N", parser=_integer)]
        case "number":
            return Annotated[float | None, typer.Option(option, help=text, metavar="X", **shown)]
        case "written":
            read = _reader(field.metadata["read"])
            return Annotated[
                str | None,
                typer.Option(
                    option, help=text, metavar=field.metadata["metavar"], parser=read, **shown if default else {}
                ),
            ]
        case "choice":
            words = one_of(field.metadata["allowed"])
            return Annotated[str | None, typer.Option(option, help=text, **words, **shown)]
        case _:
            both = f"{option}/--no-{dashed(field.name)}"
            return Annotated[bool | None, typer.Option(both, help=text, **shown)]


def _reader(read: Callable[[str], str]) -> Callable[[str], str]:
    """An option's parser: a file that cannot be read is a mistake in the option."""

    def parse(text: str) -> str:
        try:
            return read(text)
        except InputError as error:
            raise typer.BadParameter(str(error)) from error

    return parse


class UpTo(int):
    """The largest of all sizes, written as a range from 1: 1..8192."""


def _integer(text: str) -> int:
    try:
        return UpTo(text[3:]) if text.startswith("1..") else int(text)
    except ValueError:
        several = "; several sizes are tuned by: tune grid WORKLOAD" if "," in text or ".." in text else ""
        several += ", with one config for all: --invariant, which takes 1..N" if ".." in text else ""
        raise typer.BadParameter(f"{text!r} is not an integer{several}") from None
