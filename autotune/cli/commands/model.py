"""``tune model CONFIG``: the problems of a whole model, tuned where that saves most; its forward before and after."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import output, session
from autotune.cli.commands.model_job import Job, Search
from autotune.cli.commands.model_measured import MeasuredModel
from autotune.cli.commands.model_predicted import PredictedModel, machine_named
from autotune.cli.commands.model_table import ModelResult
from autotune.cli.commands.tune import Effort, Force, Seconds, Trials, say_where
from autotune.cli.interrupts import exit_code
from autotune.cli.options import Database, Json, Output, RegimeName, database_option, one_of, refuse
from autotune.dtypes import COMBINATIONS, FP8, SCALES
from autotune.errors import InputError
from autotune.machine import HOSTS, Machine
from autotune.outcome import DEFAULT_REGIME, Regime, regime_of
from autotune.results.figures import dashed
from autotune.sizes import parse_sizes
from autotune.task import Task

if TYPE_CHECKING:
    from autotune.model_runs.measured import ModelLayers
    from autotune.models.architecture import Architecture
    from autotune.models.forward import Forward, Plan
    from autotune.models.problem_lists import ProblemList
    from autotune.problem import Problem

NEVER = "never"
TOKENS = "1..64,512..8192"
SHARDED_FROM = "128"

Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="config.json of a Llama, Mistral, Qwen, Gemma, Mixtral or DeepSeek-V3, or a list of problems as YAML.",
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option("--tp", metavar="N", help="Ranks over which a layer is sharded.", show_default="all GPUs, 2 without"),
]
Tokens = Annotated[
    str, typer.Option("--tokens", metavar="N,N|N..N", help="Tokens of a forward: lists and doubling ranges.")
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", **one_of(COMBINATIONS), help="Element type of the GEMMs.", show_default="the config's"),
]
Scales = Annotated[
    str | None, typer.Option("--scales", **one_of(SCALES), help="Scales of fp8.", show_default="row for fp8, else none")
]
Sharded = Annotated[
    str,
    typer.Option(
        "--sequence-parallel-from", metavar=f"N|{NEVER}", help="From this many tokens on, ranks share the tokens too."
    ),
]
Contexts = Annotated[
    str | None,
    typer.Option("--context", metavar="N,N|N..N", help="Tokens in a KV cache sharded by sequence: adds flash decode."),
]
Zipf = Annotated[
    float, typer.Option("--zipf", metavar="EXPONENT", min=0.0, help="Popularity of experts to tune for; 0: uniform.")
]
ByWidth = Annotated[
    bool, typer.Option("--experts-by-width", help="Ranks share the width of every expert, not whole experts.")
]
AsType = Annotated[str | None, typer.Option("--as", metavar="TYPE", help="Take the config for one of this model_type.")]
Separate = Annotated[
    bool, typer.Option("--separate", help="q, k, v, gate and up are separate layers, as in unchanged models.")
]
Measured = Annotated[
    bool, typer.Option("--measure", help="Measure forwards: plain tensor parallelism against the tuned one, compiled.")
]
Layers = Annotated[int | None, typer.Option("--layers", min=1, help="Layers that --measure builds.", show_default="4")]
OwnSeed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", help="Seed of the search and of the inputs; 0, or a list's own, if not given."),
]
Predicted = Annotated[
    bool, typer.Option("--predict", help="Print what perfect overlap could save by rooflines; needs no GPU.")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="|".join(HOSTS), help="GPUs of --predict.", show_default="this host's")
]
Listed = Annotated[bool, typer.Option("--list", help="Write the list of problems for tune fleet; tune nothing.")]


@dataclass(frozen=True)
class ModelPlan:
    """The model and the ranks' shares of it, or a list of problems: the options by their names."""

    config: Config
    tp: Ranks = None
    tokens: Tokens = TOKENS
    dtype: Dtype = None
    scales: Scales = None
    separate: Separate = False
    sequence_parallel_from: Sharded = SHARDED_FROM
    context: Contexts = None
    zipf: Zipf = 0.0
    experts_by_width: ByWidth = False
    as_type: AsType = None

    @property
    def given(self) -> dict[str, bool]:
        """By option: True if it is not at its default."""
        options = [field for field in dataclasses.fields(self) if field.name != "config"]
        return {
            f"--{dashed(each.name).removesuffix('-type')}": getattr(self, each.name) != each.default for each in options
        }

    @cached_property
    def listed(self) -> ProblemList | None:
        """The list of problems, if that is what was given."""
        from autotune.models.problem_lists import LISTS, ProblemList

        return ProblemList(self.config) if self.config.suffix in LISTS else None

    def searched(self, problems: Sequence[Problem]) -> set[Problem]:
        """The problems to search; the others are verified between them."""
        from autotune.models.spans import to_search

        return to_search(problems) if self.listed is None else self.listed.searched

    def forwards(self, machine: Machine, regime: Regime) -> list[Forward]:
        from autotune.models.forward import forwards

        if self.listed is not None:
            return [self.listed.forward(regime, machine)]
        found, plan = self.read(machine)
        _tell_left_out(found, plan)
        return forwards(found, plan, parse_sizes(self.tokens, "--tokens"))

    def layers(self, machine: Machine, layers: int | None, url: str | None, regime: Regime) -> ModelLayers:
        """The layers that ``--measure`` builds. Raises InputError for a model that it cannot build."""
        from autotune.model_runs.measured import ModelLayers

        return ModelLayers.of(*self.read(machine), tuple(parse_sizes(self.tokens, "--tokens")), layers, url, regime)

    def read(self, machine: Machine) -> tuple[Architecture, Plan]:
        """The model of a ``config.json``, and how the ranks run it."""
        from autotune.models.architecture import KINDS, read_architecture
        from autotune.models.forward import Plan

        if self.as_type is not None and self.as_type not in KINDS:
            raise InputError(f"--as {self.as_type}: allowed: {', '.join(KINDS)}")
        found = read_architecture(self.config, self.as_type)
        element, sharded = self.dtype or found.dtype or "bf16", self.sequence_parallel_from
        if element not in COMBINATIONS:
            raise InputError(f"--dtype {element}: allowed: {', '.join(COMBINATIONS)}")
        if sharded != NEVER and not re.fullmatch(r"\d{1,18}", sharded):
            raise InputError(f"--sequence-parallel-from {sharded}: write a number of tokens, or {NEVER}")
        return found, Plan(
            ranks=self.tp if self.tp is not None else session.default_ranks(machine),
            dtype=element,
            scales=self.scales or ("row" if element in FP8 else "none"),
            sequence_parallel_from=None if sharded == NEVER else int(sharded),
            separate=self.separate,
            contexts=parse_sizes(self.context, "--context") if self.context is not None else (),
            zipf=self.zipf,
            experts_by_width=self.experts_by_width,
            quantization=found.quantization if self.dtype is None else None,
        )


def model(
    plan: ModelPlan, predict: Predicted = False, device: Device = None, measure: Measured = False,
    layers: Layers = None, list_only: Listed = False, file: Output = None, budget: Seconds = None,
    trials: Trials = None, effort: Effort = None, seed: OwnSeed = None, force: Force = False,
    regime: RegimeName = DEFAULT_REGIME.value, db: Database = None, json: Json = False,
) -> None:  # fmt: skip
    """Tune what a model's forward calls: GEMMs with their collectives, flash decode, the experts of a mixture.

    Of many sizes few are searched, and the others verified with the configs of their neighbours.
    --budget covers all problems; most of it goes to the problems that can save the most time. --trials is per problem.
    Without --budget, --trials and --effort it is, on GPUs, 5 s for each problem that is searched.
    For a list, each entry may set its own budget, trials, effort and seed; options given here override them.
    The same command continues an interrupted run.
    --measure builds layers with random weights and compares outputs; a difference ends it with an error.
    --predict tells without any measurement what perfect overlap could save.

    Example: tune model config.json --tp 2 --tokens 1..64,512..8192
    """
    chosen = regime_of(regime)
    _check_together(plan, measure, layers, list_only, json)
    tuning = {"--trials": trials, "--effort": effort, "--seed": seed, "--force": force}
    if predict:
        others = {"--measure": measure, "--list": list_only, "--output": file, "--budget": budget, "--db": db}
        refuse({**tuning, **others}, "not for --predict, which tunes nothing")
        _predict(plan, device, chosen, json)
        return
    if device is not None:
        raise InputError("--device is for --predict; problems are tuned on this host's")
    if list_only:
        refuse(tuning, "for tuning, and --list tunes nothing")
        _write_list(plan, chosen, budget, file)
        return
    if file is not None:
        raise InputError("--output is for --list; results are in the database, and --json prints them")
    from autotune.models.forward import places
    from autotune.models.gains import PLENTY, expected_gains
    from autotune.tuning import limits_of

    machine = session.machine_to_measure_on()
    found = plan.forwards(machine, chosen)
    run = plan.layers(machine, layers, db, chosen) if measure else None
    problems = _checked(found, machine)
    own = plan.listed.options if plan.listed is not None else {}
    searched = plan.searched(problems)
    if not (budget or trials or effort or any(own.values()) or machine.is_interpreter):
        budget = f"{PLENTY * max(1, len(searched)):g}s"
    _, limits = limits_of(machine, effort, trials, budget, seed or 0)
    searches = _searches(problems, own, machine, budget, trials, effort, seed)
    say_where(Task(problems[0], machine))
    with session.open_store(db) as store:
        result = ModelResult(found, machine, chosen)
        every = [place for each in found for place in places(each.calls)]
        job = Job(machine, store, searches, searched, limits.seconds, every, force, chosen)
        interrupted = job.tune(problems, expected_gains(found, machine), result)
    _show(result, MeasuredModel(run, result) if run is not None and not interrupted else None, json)
    if interrupted:
        output.say("interrupted; the same command continues the run")
        raise typer.Exit(exit_code())
    output.next_step(f"tune report{database_option(db)} --all --open")
    if result.failed:
        raise typer.Exit(1)


def _predict(plan: ModelPlan, device: str | None, regime: Regime, json: bool) -> None:
    machine = machine_named(device)
    found = plan.forwards(machine, regime)
    for call in (call for forward in found for call in forward.calls):
        session.check_ranks(call.problem.world_size, machine)
    told = PredictedModel(found, machine)
    if json:
        output.data_json(told.as_dict())
    else:
        told.show()


def _tell_left_out(found: Architecture, plan: Plan) -> None:
    from autotune.models.forward import left_out

    def tell(what: str) -> None:
        output.say(f"model_type {found.kind}: {what}")

    if not found.attention:
        but = " but for its decode over a cache sharded by tokens (--context)" if found.latent else ""
        tell(f"its attention (MLA) is left out{but}, since none of our operators computes it")
    if found.window is not None and any(each > found.window.tokens for each in plan.contexts):
        tell(
            f"{found.window.layers} of its {found.layers} layers attend to the last {found.window.tokens} tokens "
            "alone: of longer contexts they are left out, as flash decode has no window"
        )
    stored = plan.quantization
    if stored is not None and stored.dtype:
        kept = f", {', '.join(sorted(stored.kept))} in {plan.dtype}" if stored.kept else ""
        output.say(f"quantization_config {stored.method}: {stored.dtype} with scales by {stored.scales}{kept}")
    if stored is not None and (parts := left_out(found, plan)):
        output.say(
            f"quantization_config {stored.method}: the {', '.join(parts)} are left out, since none of our operators "
            f"multiplies them as they are stored; --dtype {plan.dtype} takes them for {plan.dtype}"
        )


def _check_together(plan: ModelPlan, measure: bool, layers: int | None, list_only: bool, json: bool) -> None:
    """Raise InputError for options that do not go together."""
    if layers is not None and not measure:
        raise InputError("--layers is for --measure")
    if measure and session.LAUNCHED:
        raise InputError("--measure starts ranks of its own: run it without torchrun")
    if measure and list_only:
        raise InputError("--measure tunes first, and --list tunes nothing: choose one")
    if json and list_only:
        raise InputError("--json prints results, and --list, which is YAML, has none: choose one")
    if plan.listed is not None:
        if measure:
            raise InputError(f"--measure builds a model by its config.json; {plan.config.name} is a list of problems")
        refuse(plan.given, f"for a model's config.json, and {plan.config.name} is a list of problems")


def _write_list(plan: ModelPlan, regime: Regime, budget: str | None, file: Path | None) -> None:
    from autotune.models.gains import expected_gains, shares
    from autotune.models.problem_lists import LISTS, write_list
    from autotune.tuning.effort import parse_duration

    if plan.listed is not None:
        plan.listed.check_plain(budget is not None)
    output.check_ending(file, LISTS)
    machine = session.machine()
    found = plan.forwards(machine, regime)
    gains = expected_gains(found, machine)
    seconds = shares(gains, plan.searched(list(gains)), parse_duration(budget)) if budget is not None else None
    output.write(write_list([call for each in found for call in each.calls], regime, seconds), file, "the problems")


def _checked(found: Sequence[Forward], machine: Machine) -> list[Problem]:
    """The forwards' problems. Raises InputError for what does not run here."""
    problems = list(dict.fromkeys(call.problem for each in found for call in each.calls))
    for problem in problems:
        session.check_ranks(problem.world_size, machine)
        session.check_work(Task(problem, machine))
    return problems


def _show(result: ModelResult, measured: MeasuredModel | None, json: bool) -> None:
    """Print the result, then measure and print that."""
    if not json:
        for sentence, table in result.tables():
            output.styled(*output.folded(sentence, "bold"))
            output.data(f"{output.columns(table)}\n")
        for line in result.lines():
            output.styled(*output.folded(line))
    if measured is not None:
        measured.measure()
    if json:
        output.data_json({**result.as_dict(), **(measured.as_dict() if measured is not None else {})})
    elif measured is not None:
        measured.show()


def _searches(
    problems: Sequence[Problem], options: Mapping[Problem, Mapping[str, Any]], machine: Machine,
    budget: str | None, trials: int | None, effort: str | None, seed: int | None,
) -> dict[Problem, Search]:  # fmt: skip
    """The options of each problem's search: the command's, else its entry's."""
    from autotune.tuning import limits_of

    found = {}
    for problem in problems:
        own = options.get(problem, {})
        given = budget is not None or trials is not None
        tries, seconds = (trials, budget) if given else (own.get("trials"), own.get("budget"))
        start = own.get("seed", 0) if seed is None else seed
        found[problem] = Search(*limits_of(machine, effort or own.get("effort"), tries, seconds, start), start)
    return found
