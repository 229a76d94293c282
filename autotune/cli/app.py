"""The tree of commands: one for each workload, loaded when it is named, and those that look at the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from autotune.cli import output
from autotune.cli.commands import health
from autotune.cli.commands.cache import entries, report, sharing
from autotune.cli.commands.tuning import grid, record, tune
from autotune.cli.interrupts import exit_code, interruptible, requested
from autotune.cli.options import with_problem_options
from autotune.errors import AutotuneError, UnknownWorkload
from autotune.report.figures import dashed
from autotune.suggestion import did_you_mean
from autotune.workloads import Workload, is_reference, names, workload

DEFAULTS = "Dimensions that are not given are those of the workload's default problem on this machine."


class Commands(TyperGroup):
    """A group whose commands are workloads, underscores or dashes, and who says which there are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As Typer does it, but an unknown name is an error that names what is known."""
        name = dashed(args[0])
        if name in self.commands:
            args = [name, *args[1:]]
        elif not name.startswith("-") and not ctx.resilient_parsing:
            workloads = [dashed(each) for each in names()]
            others = [each for each in self.commands if each not in workloads]
            commands = f"; other commands: {', '.join(others)}" if others else ""
            if is_reference(args[0]):
                commands += f"; one in a file is tuned by: tune run {args[0]}"
            commands += did_you_mean(name, self.commands)
            raise UnknownWorkload(f"no workload named {args[0]!r}; there are: {', '.join(workloads)}{commands}")
        return super().resolve_command(ctx, args)


class Main(Commands):
    """The outermost group: here errors become a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        with interruptible():
            try:
                with output.telling_warnings():
                    return super().invoke(ctx)
            except AutotuneError as error:
                output.complain(error)
                raise typer.Exit(error.exit_code) from error
            except KeyboardInterrupt as error:
                raise _interrupted() from error
            except Exception as error:
                if not requested() or isinstance(error, typer.Exit):
                    raise
                raise _interrupted() from error  # an import that was interrupted may say that it failed


def _interrupted() -> typer.Exit:
    output.say("interrupted")
    return typer.Exit(exit_code())


def build() -> typer.Typer:
    """The app. Loads no workload but those of the user's own files."""
    app = _group(Main)
    app.command("list")(entries.list_entries)
    app.command("import")(sharing.import_configs)
    app.command("doctor")(health.doctor)
    _add_workloads(app, tune.tune_workload, "Tune {}.", panel="Workloads")
    alone = ("report", "export")  # without a workload: of all
    for name, function, title, callback in (
        ("run", tune.tune_workload, "Tune {}.", tune.run),
        ("grid", grid.tune_grid, "Tune {} for many sizes.", grid.grid),
        ("record", record.record_workload, "Record a search space of {}.", record.record),
        ("show", entries.show_entry, "Show what is stored of {}.", entries.show),
        ("lookup", entries.look_up, "Look {} up as a program would.", entries.lookup),
        ("report", report.report_workload, "Report what was found for {}.", report.report),
        ("export", sharing.export_workload, "Export what is stored of {}.", sharing.export),
    ):
        group = _group(_commands_of(function, title))
        group.callback(invoke_without_command=name in alone, no_args_is_help=name not in alone)(callback)
        _add_workloads(group, function, title)
        app.add_typer(group, name=name)
    app.callback()(_main)
    return app


def _main() -> None:
    """Tune fused multi-GPU kernels: compute and communication as one space, the best kept in a cache.

    tune WORKLOAD --help shows a workload's dimensions. Without GPUs, small problems run under Triton's interpreter.
    """


def _group(kind: type[TyperGroup]) -> typer.Typer:
    return typer.Typer(cls=kind, no_args_is_help=True, pretty_exceptions_enable=False)


def _add_workloads(group: typer.Typer, function: Callable[..., None], title: str, panel: str | None = None) -> None:
    """A command for every workload: a name until it is called, for its options need the workload loaded."""
    for name in names():
        help = title.format(dashed(name))
        group.command(dashed(name), cls=_lazy(name, function, help), help=help, rich_help_panel=panel)(_main)


def _commands_of(function: Callable[..., None], title: str) -> type[Commands]:
    class CommandsOf(Commands):
        """Takes a workload in a user's own file too, as FILE:CLASS."""

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """Load the file that is named."""
            if not is_reference(args[0]) or ctx.resilient_parsing:
                return super().resolve_command(ctx, args)
            found = workload(args[0])
            return args[0], _command(found, function, title.format(dashed(found.name))), args[1:]

    return CommandsOf


def _lazy(name: str, function: Callable[..., None], help: str) -> type[TyperCommand]:
    class Lazy(TyperCommand):
        """Stands for a command until it is called or asked for its help."""

        def make_context(self, *args: Any, **extra: Any) -> Any:
            """Load the workload and let the real command take over."""
            return _command(workload(name), function, help).make_context(*args, **extra)

    return Lazy


def _command(found: Workload, function: Callable[..., None], help: str) -> Any:
    """The command of a workload that is loaded."""
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    about = " ".join((found.problem_type.__doc__ or "").split("\n\n")[0].split())
    text = f"{help} {DEFAULTS}\n\n{escape(about)}"
    several = function is grid.tune_grid
    single.command(dashed(found.name), help=text)(with_problem_options(found, function, several))
    return get_command(single)
