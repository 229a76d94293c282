"""The tuner: Triton's Autotuner, with configs that persist and that ranks agree upon, and cheap launches."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from triton import knobs
from triton.runtime.jit import JITFunction

from autotune.config import Config
from autotune.db import Provenance
from autotune.decorator.bench import FAILED, Bench, evaluation_of
from autotune.decorator.candidates import Candidates, Default, Listed, Spaced
from autotune.decorator.key import Call, Reader, TuningKey, cache_key, call_of, key_reader, provenance_of, tuning_key
from autotune.decorator.steady import SteadyAutotuner
from autotune.decorator.votes import Asked, Question, Ranks, agreed, votes_of
from autotune.errors import InvalidArguments, NotTuned
from autotune.machine import INTERPRETED, Machine
from autotune.machine import machine as this_machine
from autotune.ranks.agreement import Votes
from autotune.runtime.entries import forget_entries, read_entries, serve
from autotune.runtime.lookup import Found
from autotune.search_spaces import Dimension, Space
from autotune.settings import default_database_url, offline

if TYPE_CHECKING:
    from autotune.decorator.proposals import Proposals

LOG = logging.getLogger("autotune")

OnMiss = Literal["default", "nearest", "tune", "error"]
MISSES: tuple[OnMiss, ...] = ("default", "nearest", "tune", "error")


@dataclass(frozen=True)
class Extension:
    """What the decorator takes beyond Triton's; see ``autotune``."""

    space: Space | Sequence[Dimension] | None = None
    default: Default | None = None
    config_hook: Callable[[dict[str, Any]], Any] | None = None
    free: Sequence[str] = ()
    on_miss: OnMiss | None = None
    trials: int | None = None
    ranks: Ranks = "all"
    db: str | None = None


class Launch:
    """A config as a launch needs it."""

    __slots__ = ("config", "options", "pre_hook")

    def __init__(self, config: Any) -> None:
        """``config`` is a ``triton.Config``."""
        self.config, self.options, self.pre_hook = config, config.all_kwargs(), config.pre_hook


class Form:
    """Calls that pass the same arguments in the same way: how to read their keys, and what they launch."""

    __slots__ = ("launches", "reader")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.launches: dict[TuningKey, Launch] = {}


class Tuner(SteadyAutotuner):
    """A kernel decorated with ``autotune``. Safe to launch from many threads.

    ``decisions`` holds, by Triton's tuning key, where each config in use came from: ``found.source``, ``found.reason``.
    """

    nargs: Any
    do_bench: Any

    def __init__(
        self, fn: Any, arg_names: Sequence[str], configs: Sequence[Any] | None, key: Sequence[str],
        reset_to_zero: Sequence[str] | None, restore_value: Sequence[str] | None, *,
        extension: Extension | None = None, **named: Any,
    ) -> None:  # fmt: skip
        """Arguments as Triton's; raises InvalidArguments."""
        for what, names in (("key", key), ("reset_to_zero", reset_to_zero), ("restore_value", restore_value)):
            _demand(what, names or (), "the kernel's arguments", arg_names)
        self._extension = extension = extension or Extension()
        _demand("free", extension.free, "the key arguments", key)
        self._on_miss = extension.on_miss or ("tune" if extension.space is None else "nearest")
        _demand("on_miss", [self._on_miss], "the words", MISSES)
        if extension.trials is not None and extension.trials < 1:
            raise InvalidArguments(f"trials={extension.trials}: at least 1, or None")
        if extension.space is not None and (configs or (named.get("prune_configs_by") or {}).get("perf_model")):
            raise InvalidArguments("a list of configs, or a perf_model that ranks one, does not go with a space")
        super().__init__(fn, arg_names, configs, key, reset_to_zero, restore_value, **named)
        self._given_bench = self._do_bench
        self._candidates: Candidates = Listed(self.configs)
        if extension.space is not None:
            self._candidates = Spaced(extension.space, extension.default, self.arg_names, extension.config_hook)
        self.decisions: dict[TuningKey, Found] = {}
        self._forms: dict[Any, Form] = {}
        self._lock = threading.RLock()

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """``kernel[grid](…)`` launches; a frame less than Triton's."""
        return functools.partial(self.run, grid=grid)

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch with the config for these arguments: a dictionary look-up but for the first time."""
        form = self._forms.get((len(args), *kwargs) if kwargs else len(args))
        launch = None
        if form is not None:
            launch = form.launches.get(form.reader((*args, *kwargs.values()) if kwargs else args))
        if launch is None:
            launch = self._first(args, {"grid": grid, "warmup": warmup, **kwargs})
        self.best_config = launch.config
        if launch.pre_hook is not None:
            given = {**kwargs, "grid": grid, "warmup": warmup}
            launch.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **given, **launch.options})
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **launch.options)

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        """Compile without launching: all configs of a list, of a space the one that a launch would take."""
        if isinstance(self._candidates, Listed):
            return super().warmup(*args, **kwargs)
        launch = self._first(args, kwargs)
        return [self.fn.warmup(*args, **kwargs, **launch.options)]

    def tune(self, *args: Any, grid: Any, **kwargs: Any) -> Found:
        """Tune for these arguments now, whatever is known already. Collective. Raises NotTuned when offline."""
        kwargs = {"grid": grid, "warmup": False, **kwargs}
        with self._lock:
            named = self._begin(args, kwargs)
            try:
                key = tuning_key(named, self.keys)
                question = self._question(named)
                if question.offline:
                    raise NotTuned(f"{self._name}: AUTOTUNE_OFFLINE, set on some rank, forbids tuning; unset it")
                self._settle(key, question, self._tuned(key, question, args, kwargs, anew=True))
            finally:
                self.nargs = None
            self._forms.clear()
            return self.decisions[key]

    def forget(self) -> None:
        """Look every key up again, in a database that is read again; to be called on every rank that takes part."""
        with self._lock:
            self._forms.clear()
            self.cache.clear()
            self.decisions.clear()
            forget_entries(self._name)

    @property
    def _name(self) -> str:
        return str(self.base_fn.__name__)

    @property
    def _kernel(self) -> Any:
        """The jitted function itself, or what stands for it under the interpreter."""
        kernel = self.fn
        while not isinstance(kernel, JITFunction) and not inspect.isfunction(kernel.fn):
            kernel = kernel.fn
        return kernel

    @functools.cached_property
    def _machine(self) -> Machine:
        return this_machine() if isinstance(self._kernel, JITFunction) else INTERPRETED

    @functools.cached_property
    def _provenance(self) -> Provenance:
        return provenance_of(self.fn, self._candidates.fingerprint)

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The kernel's arguments by name; kept as Triton does, for hooks and pruning."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        return {name: value for name, value in {**self.nargs, **kwargs}.items() if name in self.arg_names}

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
        """The config for arguments that no launch in this way has had before."""
        with self._lock:
            named = self._begin(args, kwargs)
            try:
                form = self._form(args, kwargs)
                if isinstance(self._candidates, Listed) and len(self.configs) == 1:
                    form.reader = lambda values: ()
                    return form.launches.setdefault((), Launch(self.configs[0]))
                key = tuning_key(named, self.keys)
                if key not in self.cache:
                    self._decide(key, named, args, kwargs)
                launch = Launch(self.cache[key])
            finally:
                self.nargs = None
            self._refuse_conflicts(launch.options, kwargs)
            values = (*args, *(value for name, value in kwargs.items() if name not in ("grid", "warmup")))
            form.launches[form.reader(values)] = launch
            return launch

    def _form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Form:
        passed = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        names, values = [*self.arg_names[: len(args)], *passed], [*args, *passed.values()]
        way = (len(args), *passed) if passed else len(args)
        if way not in self._forms:
            self._forms[way] = Form(key_reader(names, values, self.keys))
        return self._forms[way]

    def _decide(self, key: TuningKey, named: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What to use for a key that is new here: the cache's entry, or what ``on_miss`` says. Collective."""
        question = self._question(named)
        miss = "nearest" if question.offline and self._on_miss == "tune" else self._on_miss
        offers = question.offers
        exact = next((offer for offer in offers if offer.source == "exact"), None)
        if exact is not None:
            found = exact
        elif miss == "tune":
            found = self._tuned(key, question, args, kwargs)
        elif miss == "error":
            raise NotTuned(f'{self._name} {question.call}: {question.reason}; tune it: on_miss="tune", or kernel.tune')
        elif miss == "nearest" and offers:
            found = offers[0]
        else:
            default = question.votes.same(lambda: self._default(question, kwargs))
            found = Found(default, "default", None, question.reason)
        self._settle(key, question, found)

    def _question(self, named: Mapping[str, Any]) -> Question:
        """What all ranks ask for, and what their databases offer. Collective."""
        votes = votes_of(self._extension.ranks)
        return agreed(votes, votes.each(lambda: self._ask(named, votes)))

    def _ask(self, named: Mapping[str, Any], votes: Votes) -> Asked:
        call = call_of(self._name, named, self.keys)
        key = cache_key(call, votes.world_size, self._machine)
        entries = read_entries(self._url, self._name, self._machine.device)
        served = serve(entries, key, self._provenance, self._extension.free, lambda c: self._violation(c, call))
        offer = None
        if served.entry is not None:
            source: Literal["exact", "nearest"] = "nearest" if served.reason else "exact"
            offer = Found(served.entry.winner.config, source, served.entry, served.reason)
        identity = f"{self._name} {call} {self._provenance.source_hash} {self._provenance.space} {self._on_miss}"
        return Asked(identity, call, key, offer, served.reason, offline())

    def _violation(self, config: Config, call: Call) -> str | None:
        return self._candidates.violation(config, call, self._machine)

    @property
    def _url(self) -> str:
        return self._extension.db or default_database_url()

    def _settle(self, key: TuningKey, question: Question, found: Found) -> None:
        self.cache[key] = self.best_config = self._candidates.form(found.config)
        self.decisions[key] = found
        if question.votes.rank == 0:
            expected = found.source in ("exact", "tuned", "given")
            level = logging.INFO if expected else logging.WARNING
            because = f" ({found.reason})" if found.reason else ""
            LOG.log(level, "%s %s: %s%s, %s", self._name, question.call, found.source, because, found.config.to_json())

    def _default(self, question: Question, kwargs: dict[str, Any]) -> Config:
        if isinstance(self._candidates, Spaced):
            return self._candidates.default(question.call, self._machine)
        return self._listed(kwargs)[0]

    def _listed(self, kwargs: dict[str, Any]) -> list[Config]:
        return self._add(self.prune_configs(kwargs))

    def _add(self, forms: Iterable[Any]) -> list[Config]:
        return cast(Listed, self._candidates).add(forms)

    def _tuned(
        self, key: TuningKey, question: Question, args: tuple[Any, ...], kwargs: dict[str, Any], anew: bool = False
    ) -> Found:
        """Tune, all ranks in step: rank 0 says which config, all time it, rank 0 takes down what the slowest took."""
        votes = question.votes
        listed = votes.same(lambda: self._listed(kwargs)) if isinstance(self._candidates, Listed) else []
        if len(listed) == 1:
            return Found(listed[0], "given", None, "pruning left one config")
        proposals: Any = None  # rank 0's; the others never look at it

        def begin() -> Config | None:
            nonlocal proposals
            proposals = opened = self._proposals(question, listed, kwargs, anew)
            return opened.finished()

        try:
            finished = votes.leader(begin)
            if finished is not None and self._violation(finished, question.call) is None:
                return Found(finished, "exact", None, "")
            ran = self._measure(key, votes, proposals, listed, args, kwargs)
            config, evaluation = votes.leader(lambda: proposals.finish())
        finally:
            if proposals is not None:
                proposals.close()
        forget_entries(self._name)
        best = self._candidates.form(config)
        if ran:
            votes.each(lambda: self.pre_hook({**self.nargs, **kwargs, **best.all_kwargs()}, reset_only=True))
        if evaluation.latency is None:
            return Found(config, "default", None, f"no config could be timed; the first: {evaluation.reason}")
        self._report(key, best)
        return Found(config, "tuned", None, "")

    def _measure(
        self, key: TuningKey, votes: Votes, proposals: Any, listed: list[Config], args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:  # fmt: skip
        """Time what is proposed, on every rank; whether anything ran. Sets ``configs_timings`` and ``bench_time``."""
        begin = time.perf_counter()
        self.do_bench = bench = Bench(votes, self._given_bench, self._machine)
        self.configs_timings: dict[Any, Any] = {}

        def search() -> None:
            config = votes.leader(lambda: proposals.next())
            while config is not None:
                form = self._candidates.form(config)
                self.configs_timings[form] = self._time(bench, form, votes, args, kwargs)
                config = votes.leader(lambda: proposals.next(bench.evaluation))

        known = False
        if self.cache_results and listed and votes.world_size == 1:
            known = self.check_disk_cache(key, [self._candidates.form(config) for config in listed], search)
        else:
            search()
        self.bench_time = time.perf_counter() - begin
        if known:
            for config, timing in zip(self._add(self.configs_timings), self.configs_timings.values(), strict=True):
                proposals.adopt(config, evaluation_of(timing))
        return bool(self.configs_timings) and not known

    def _time(self, bench: Bench, form: Any, votes: Votes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if votes.world_size > 1 and not bench.compile(lambda: self._compile(form, args, kwargs)):
            return list(FAILED)
        return self._bench(*args, config=form, **kwargs)

    def _compile(self, form: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        options = {**kwargs, **form.all_kwargs(), "warmup": True}
        if form.pre_hook is not None:
            form.pre_hook({**self.nargs, **options})  # shapes of tensor descriptors, say
        kernel = self.fn.run(*args, **options)
        if hasattr(kernel, "_init_handles"):
            kernel._init_handles()  # load it: here it shows if the device lacks the resources

    def _report(self, key: TuningKey, best: Any) -> None:
        """Tell who listens to Triton's tuner, in Triton's words."""
        if knobs.autotuning.print:
            print(
                f"Triton autotuning for function {self._name},\nwith key as {key},\n"
                f"finished after {self.bench_time:.2f}s,\nbest config selected: {best};"
            )
        listener = getattr(knobs.autotuning, "listener", None)  # since Triton 3.8
        if listener is not None:
            listener(
                fn=self._kernel, key=key, best_config=best, configs_timings=self.configs_timings,
                duration=self.bench_time, cache_hit=False,
            )  # fmt: skip

    def _proposals(self, question: Question, listed: list[Config], kwargs: dict[str, Any], anew: bool) -> Proposals:
        from autotune.decorator.proposals import Proposals, Task  # Optuna takes a second to import

        trials = self._extension.trials
        task = Task(question.call, self._machine, question.key, self._provenance, self._url, trials, anew)
        if isinstance(self._candidates, Spaced):
            return Proposals.of_space(task, self._candidates, lambda config: self._survives(config, kwargs))
        return Proposals.of_list(task, listed)

    def _survives(self, config: Config, kwargs: dict[str, Any]) -> bool:
        form = self._candidates.form(config)
        return not self.early_config_prune or bool(self.early_config_prune([form], self.nargs, **kwargs))

    def _refuse_conflicts(self, options: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        conflicts = sorted(set(options) & set(kwargs))
        if conflicts:
            raise InvalidArguments(
                f"Conflicting meta-parameters: {', '.join(conflicts)}. The tuner chooses them: do not pass them."
            )


def _demand(what: str, names: Iterable[str], of: str, allowed: Sequence[str]) -> None:
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise InvalidArguments(f"{what} names {', '.join(unknown)}; {of} are {', '.join(allowed)}")
