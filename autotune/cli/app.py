"""The tree of commands: one per workload, loaded when it is named, and those about results and the machine."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from autotune.cli import output
from autotune.cli.commands import (
    compare,
    demo,
    entry,
    fleet,
    grid,
    health,
    listing,
    model,
    record,
    report,
    sharing,
    stored,
    taxes,
    tune,
)
from autotune.cli.entry_filter import EntryFilter
from autotune.cli.interrupts import exit_code, interruptible, requested
from autotune.cli.options import in_context, parameters, unknown, with_options_of, with_problem_options
from autotune.errors import AutotuneError, InputError
from autotune.results.figures import dashed
from autotune.workloads import is_reference, names
from autotune.workloads.descriptors import Descriptor, descriptor_of

DEFAULTS = "Dimensions left out are those of the workload's default problem on this machine."

WORKLOADS = "Workloads"


@dataclass(frozen=True)
class Verb:
    """A command that each workload has: ``tune grid WORKLOAD``."""

    function: Callable[..., None]
    title: str
    """The help of one workload's command, around its name."""
    example: str
    help: str = ""
    """Help of the command before a workload is named."""
    several: bool = False
    """True if sizes are lists and ranges."""
    filters: bool = False
    """True if it takes an ``EntryFilter``, of all workloads if none is named, not a request."""
    of_stored: Callable[..., None] | None = None
    """Takes the filter of names in the database that are no workloads here."""


TUNE = Verb(tune.tune_workload, "Tune {}.", "tune {name} --{size} 1024 --budget 60s")

VERBS = {
    "run": Verb(
        tune.tune_workload, "Tune {}.", "tune run {name} --{size} 1024 --budget 60s",
        "Tune a workload of your own: tune run FILE:CLASS, CLASS derived from autotune.workloads.Workload.",
    ),
    "grid": Verb(
        grid.tune_grid, "Tune {} for many sizes.", "tune grid {name} --{size} 256..4096 --budget 60s",
        "Tune a workload for many sizes: a list (16,64,256) or a range that doubles (1..1024).", several=True,
    ),
    "record": Verb(
        record.record_workload, "Record a search space of {}.", "tune record {name} --{size} 1024 --out table.json.gz",
        "Measure every config of a reduced space into a table that bench/search_quality.py replays without a GPU.",
    ),
    "show": Verb(
        entry.show_entry, "Show the cache entry of one problem of {}.", "tune show {name} --{size} 1024",
        "Show one cache entry in full; on a miss, the fields in which the nearest entry differs.",
        of_stored=stored.show,
    ),
    "lookup": Verb(
        entry.look_up, "Print the config a program would get for {}.", "tune lookup {name} --{size} 1024",
        "Print the config a program would get: exact, of a range, nearest or default.",
    ),
    "report": Verb(
        report.report, "Report on {}.", "tune report {name} --open",
        "Report on finished studies; on all workloads if none is named.", filters=True, of_stored=report.report,
    ),
    "taxes": Verb(
        taxes.measure_taxes, "Measure the taxes of {}.", "tune taxes {name} --{size} 64 --trace trace.json",
        "Measure the taxes of bulk-synchronous programs: kernel launch, bulk synchrony, locality.",
    ),
    "export": Verb(
        sharing.export, "Export the tuned configs of {}.", "tune export {name} -o configs.json",
        "Export tuned configs to a file for tune import; of all workloads if none is named.", filters=True,
        of_stored=sharing.export,
    ),
}  # fmt: skip

PANELS = {
    "Start here": ("demo",),
    WORKLOADS: (),
    "More ways to tune": ("run", "grid", "model", "fleet", "record"),
    "Results": ("list", "show", "lookup", "report", "compare", "taxes", "export", "import"),
    "This machine": ("doctor",),
}
"""Panels of the help page in order, with the commands in each; workloads are found when the app is built."""


class Commands(TyperGroup):
    """A group of workloads' commands: takes underscores for dashes, and names the workloads on an unknown name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Typer's own, except that an unknown name raises UnknownWorkload."""
        name = dashed(args[0])
        if name in self.commands:
            args = [name, *args[1:]]
        elif not name.startswith("-") and not ctx.resilient_parsing:
            kinds = "workload" if {*self.commands} <= {*map(dashed, names())} else "command or workload"
            more = f"; one in a file is tuned by: tune run {args[0]}" if is_reference(args[0]) else ""
            raise unknown(args[0], self.commands, kinds, more)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Typer's own, with what each workload computes, for which alone its problem is loaded."""
        for name in names():
            if (command := self.commands.get(dashed(name))) is not None:
                with suppress(AutotuneError):  # the command itself says it
                    found = descriptor_of(name)
                    command.help = escape(found.problem_type.computes or found.about) or command.help
        super().format_help(ctx, formatter)


class Main(Commands):
    """The outermost group: turns errors into a line on stderr and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Command names in the order of the panels."""
        others = [name for commands in PANELS.values() for name in commands]
        workloads = [name for name in self.commands if name not in others]
        return [name for title, commands in PANELS.items() for name in (workloads if title == WORKLOADS else commands)]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """-v, --verbose and --log-file may stand behind the command, too."""
        with _complaining():
            return super().parse_args(ctx, _general_first(args))

    def invoke(self, ctx: Any) -> Any:
        with interruptible():
            try:
                with output.logging_to_stderr(), _complaining():
                    return super().invoke(ctx)
            except KeyboardInterrupt as error:
                raise _interrupted() from error
            except Exception as error:  # passed on, unless an interrupt is its cause
                if not requested() or isinstance(error, typer.Exit):
                    raise
                raise _interrupted() from error  # an import that was interrupted may say that it failed


USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


@contextmanager
def _complaining() -> Iterator[None]:
    """An error ends in a line on stderr and its exit code, one of the command line's parser too."""
    try:
        yield
    except AutotuneError as error:
        output.complain(error)
        raise typer.Exit(error.exit_code) from error
    except USAGE_ERROR as error:
        if "NoArgsIsHelp" in type(error).__name__:  # it has printed the help
            raise
        output.complain(InputError(_in_our_words(error)))
        raise typer.Exit(InputError.exit_code) from error


def _in_our_words(error: Any) -> str:
    """``--m: '1e3' is not an integer``, ``no such option: --foo; see tune demo --help``."""
    text, option = re.subn(r"^Invalid value for '([^']*)'", r"\1", error.format_message().strip().removesuffix("."))
    text = re.sub("Input should be a valid integer,.*", "write an integer", text).replace("Input should", "must")
    words, context = ["--help"], error.ctx
    while context is not None and context.parent is not None:
        words, context = [context.info_name, *words], context.parent
    see = f"; see tune {' '.join(words)}" if error.ctx is not None and not option else ""
    return f"{text[0].lower()}{text[1:]}{see}"


def _interrupted() -> typer.Exit:
    output.say("interrupted")
    return typer.Exit(exit_code())


def _general_first(args: list[str]) -> list[str]:
    general, rest, left = [], [], list(args)
    while left:
        word = left.pop(0)
        if word in ("-v", "--verbose") or word.startswith("--log-file="):
            general.append(word)
        elif word == "--log-file":
            general += [word, *left[:1]]
            left = left[1:]
        else:
            rest.append(word)
    return [*general, *rest]


def build() -> typer.Typer:
    """The app. Loads no workload but those of the user's own files."""
    app = _group(Main)
    panel_of = {command: panel for panel, commands in PANELS.items() for command in commands}
    for name, command in (
        ("demo", demo.demo),
        ("model", with_options_of(model.ModelPlan, model.model)),
        ("fleet", fleet.fleet),
        ("list", listing.list_entries),
        ("compare", compare.compare),
        ("import", sharing.import_configs),
        ("doctor", health.doctor),
    ):
        settings = {"ignore_unknown_options": True} if name == "list" else {}  # a field's name is an option
        app.command(name, rich_help_panel=panel_of[name], context_settings=settings)(command)
    _add_workloads(app, TUNE)
    for name, verb in VERBS.items():
        group = _group(_commands_of(verb), subcommand_metavar="WORKLOAD [ARGS]...", help=verb.help)
        if verb.filters:
            group.callback(invoke_without_command=True, no_args_is_help=False)(_of_all(name, verb))
        _add_workloads(group, verb)
        app.add_typer(group, name=name, rich_help_panel=panel_of[name])
    app.callback()(_main)
    return app


def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", callback=_version)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log to stderr what tune does.")] = False,
    log_file: Annotated[
        Path | None, typer.Option("--log-file", metavar="FILE", help="Append that log to FILE, with times.")
    ] = None,
) -> None:
    """Tune fused multi-GPU kernels: compute and communication in one search space, results in a cache.

    tune WORKLOAD --help lists a workload's dimensions. Without GPUs, small problems run under Triton's interpreter.
    """
    output.log(verbose, log_file)


def _version(wanted: bool) -> None:
    if wanted:
        output.data(f"iris-autotune {importlib.metadata.version('iris-autotune')}")
        raise typer.Exit


def _group(kind: type[TyperGroup], **settings: Any) -> typer.Typer:
    return typer.Typer(cls=kind, no_args_is_help=True, pretty_exceptions_enable=False, **settings)


def _of_all(name: str, verb: Verb) -> Callable[..., None]:
    """The command of a group without a workload: of all of them."""
    defaults = {each.name: each.default for each in parameters(verb.function)}

    def command(context: typer.Context, **values: Any) -> None:
        if context.invoked_subcommand is None:
            verb.function(EntryFilter(), **values)
        elif values != defaults:
            raise InputError(f"options of tune {name} go after the workload's name")

    return in_context(command, verb.function, verb.help)


def _add_workloads(group: typer.Typer, verb: Verb) -> None:
    """Add a command per workload; it loads the workload, which its options come from, when it is called."""
    for name in names():
        help = verb.title.format(dashed(name))
        group.command(dashed(name), cls=_lazy(name, verb), help=help, rich_help_panel=WORKLOADS)(_lazily)


def _lazily() -> None:
    """Stands for a lazy command, which takes all from the real one: Typer looks at its parameters."""


def _commands_of(verb: Verb) -> type[Commands]:
    class CommandsOf(Commands):
        """Also takes FILE:CLASS, a workload in a user's own file, and with ``of_stored`` names in the database."""

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, of_stored = args[0], verb.of_stored
            if of_stored is not None and not (dashed(name) in self.commands or is_reference(name) or name[:1] == "-"):
                return name, stored.command(name, of_stored, verb.title), args[1:]
            if not is_reference(name) or ctx.resilient_parsing:
                return super().resolve_command(ctx, args)
            return name, _command(descriptor_of(name), verb), args[1:]

    return CommandsOf


def _lazy(name: str, verb: Verb) -> type[TyperCommand]:
    class Lazy(TyperCommand):
        """Stands in for a command until it is called or asked for its help."""

        def make_context(self, *args: Any, **extra: Any) -> Any:
            """Look the problem up and let the real command take over."""
            return _command(descriptor_of(name), verb).make_context(*args, **extra)

    return Lazy


def _first_size(found: Descriptor) -> str:
    """The dimension that an example names: one that varies from call to call."""
    sizes = [field.name for field in fields(found.problem_type) if field.metadata["kind"] == "size"]
    return next(name for name in (*found.problem_type.free, *sizes) if name != "world_size" or len(sizes) == 1)


def _command(found: Descriptor, verb: Verb) -> Any:
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    details = " ".join((verb.function.__doc__ or "").split())
    named = shlex.quote(found.reference) if is_reference(found.reference) else dashed(found.name)
    example = verb.example.format(name=named, size=dashed(_first_size(found)))
    text = " ".join([verb.title.format(dashed(found.name)), details, *([] if verb.filters else [DEFAULTS])])
    text += "".join(f"\n\n{escape(part)}" for part in (found.about, f"Example: {example}") if part)
    filter = EntryFilter.of if verb.filters else None
    command = with_problem_options(found, verb.function, several=verb.several, filter=filter)
    single.command(dashed(found.name), help=text)(command)
    return get_command(single)
