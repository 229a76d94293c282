"""The tuning loop: ask, evaluate, tell, save."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autotune.config import Config
from autotune.db import CacheKey, Entry, Lease, Provenance, Routed, Store, StudyRecord, TrialRecord, Winner
from autotune.db.rated import rated
from autotune.errors import StoreError
from autotune.outcome import DEFAULT_REGIME, Evaluation, Latency, Outcome, Regime
from autotune.problem import Problem
from autotune.ranks.evaluation import LONG_CALL, MeasurePlan, kind_of, warm_from
from autotune.task import Task
from autotune.timeline import as_json
from autotune.tuning.cached import answers
from autotune.tuning.claim import claimed
from autotune.tuning.effort import MOST_TRIALS, Budget, Effort
from autotune.tuning.evaluator import Evaluator
from autotune.tuning.finals import (
    BASELINE,
    CLOSE,
    FINAL,
    PROOF,
    contested,
    disqualified,
    finals_plan,
    merge,
    merge_parts,
    next_session,
    run_finals,
    winner,
)
from autotune.tuning.invariant import baselines, over_sizes
from autotune.tuning.live import LiveStorage
from autotune.tuning.progress import Progress
from autotune.tuning.routings import WAYS, under_other_routings
from autotune.tuning.screening import Ahead, Screen
from autotune.tuning.search import Candidate, Search
from autotune.tuning.tracing import Calls, Tracer, compared
from autotune.tuning.warm_start import beginning, neighbours, previous_winner
from autotune.workloads import Workload, origin_of, provenance_of
from autotune.workloads.roofline import roofline

LOG = logging.getLogger("autotune")

ISOLATED_TRIAL = 15
"""Isolated calls per trial if that is the regime tuned for."""

OTHER_FINALISTS = 4
"""Expected beside the fastest and the baselines: the default, the previous winner, modes that come close."""


@dataclass(frozen=True)
class Result:
    """The result of a run; ``entry`` is None if it was cut off before the finals, or no config could be measured."""

    study: StudyRecord
    progress: Progress
    entry: Entry | None
    from_cache: bool = False
    interrupted: bool = False


def tune(
    workload: Workload, task: Task[Problem], store: Store, gang: Evaluator, screen: Screen,
    *, budget: Budget, effort: Effort, seed: int = 0, force: bool = False, extra_finalists: Sequence[Config] = (),
    watch: Callable[[Progress], None] = lambda progress: None, regime: Regime = DEFAULT_REGIME,
    live: LiveStorage | None = None, provenance: Provenance | None = None, search: bool = True,
    trace: bool = True,
) -> Result:  # fmt: skip
    """Tune one problem, or answer from the cache. ``gang`` is started only if there is something to measure, and stays
    running: the caller closes it. ``extra_finalists`` are measured in the finals in any case. The winner is the fastest
    in the ``regime``. ``live`` gets the run as it goes. ``provenance`` is that of the measurements, if not today's.
    Without ``search`` the finals alone are run, and no limits measured: of the library's way, the default, the winners
    of neighbouring sizes and the ``extra_finalists``. With ``trace``, a search ends with traced calls, see ``Tracer``.

    An unfinished study is continued: the search measures nothing again, the finals start over. While another process
    tunes the same problem this one waits, then answers from the cache, or with ``force`` tunes again. Ctrl-C ends the
    run with its results so far; while waiting it raises KeyboardInterrupt. Raises GangError; StoreError,
    also where another process took the study over because this one's heartbeat had stopped: its result counts.
    """
    task = rated(task, lambda: store.entries(workload.name, task.machine.device))
    key, provenance = CacheKey.of(task, regime), provenance or provenance_of(workload)
    size = workload.space.size(task)
    gang = over_sizes(gang, workload, task)
    begin = partial(store.study, key, provenance, seed=seed, space_size=size, origin=origin_of(workload))
    with claimed(store, begin, watch, answers(workload, task, regime, search=search), anew=force) as (study, lease):
        if study.state == "finished":
            return Result(study, Progress("answered from the cache"), store.entry(key, provenance), from_cache=True)
        brief = budget.is_brief or not search
        run = _Run(workload, task, store, gang, screen, budget, effort, study, lease, watch, regime, live, brief=brief)
        run.tracer.is_on &= search and trace
        try:
            if search:
                run.search_space()
            else:
                run.start(baselines=False)
            finished = run.finish(extra_finalists, verified=not search)
            interrupted = finished and run.trace()
        except KeyboardInterrupt:
            gang.close()  # in the middle of a request: what it answers now would be taken for the answer to another one
            return Result(study, run.progress, None, interrupted=True)
        found = store.entry(key, provenance) if finished else None  # not an earlier study's
        return Result(study, run.progress, found, interrupted=interrupted)


class _Run:
    """One run of the loop: its parts, and the clock."""

    def __init__(
        self, workload: Workload, task: Task[Problem], store: Store, gang: Evaluator, screen: Screen, budget: Budget,
        effort: Effort, study: StudyRecord, lease: Lease, watch: Callable[[Progress], None], regime: Regime,
        live: LiveStorage | None, *, brief: bool,
    ) -> None:  # fmt: skip
        self._task, self._workload = task, workload
        self._store, self._gang, self._screen = store, gang, screen
        self._budget, self._effort, self._watch = budget, effort, watch
        self._study, self._lease = study, lease
        self._opened = time.monotonic()
        self._begin: float | None = None
        """The start of the budget: when ranks and baselines are there, however long a cold machine takes for them."""
        self._regime = regime
        self._finals_plan = finals_plan(effort.iterations * 2, kind_of(task.machine), regime, brief=brief)
        self._other_routings = len(task.problem.other_routings()) if effort.routings else 0
        self.progress = Progress(regime=regime)
        self._baselines = baselines(workload, task)
        known = store.trials(study.id, workload.space.holds)
        self._history = [replace(each, config=workload.space.ordered(each.config)) for each in known]
        self._live = live.study(study, workload.space, self._history) if live is not None else None
        first = beginning(workload, task, store, regime)
        self._search = Search(
            workload.space, task, study.seed, first, self._baselines.values(),
            lambda config, refused: self._save(config, refused, "sampler"), self._predicted, regime,
        )  # fmt: skip
        self._disqualified = disqualified(self._history)
        for record in self._history:
            if record.source != FINAL:
                self._remember(record.config, self._disqualified.get(record.config, record.evaluation))
                self._count(record.config, record.evaluation, record.source)
        self.progress.resumed = self.progress.trials
        if budget.trials < MOST_TRIALS:
            self.progress.trials_planned = budget.trials
        self.tracer = Tracer(workload, task, gang, screen)
        self._to_trace: Calls = {}
        self._whole: list[float] = []
        """Seconds of the trials of this run that were measured to the end."""
        self._finals_began = 0.0
        self._incumbent: tuple[float, ...] = ()
        """Times of the fastest config of this run; of earlier runs only medians are stored."""

    def start(self, *, baselines: bool) -> float:
        """Start the ranks; the budget begins when they are there, and the baselines: at the time that this returns."""
        self._show("starting the ranks")
        self._gang.start()
        if baselines:
            self._measure_baselines()
        self._begin = time.monotonic()
        return self._begin

    def search_space(self) -> None:
        """Baselines first; then ask, screen ahead, evaluate, tell, save, until the budget is used up."""
        ahead = Ahead(self._screen)
        ahead.fill(self._ask)  # compiles while the ranks start
        begin, spent = self.start(baselines=True), self.progress.spent
        while self._used() < 1:
            ahead.fill(self._ask)
            if not ahead:
                self.progress.exhausted = True
                self.progress.settled = self._search.is_settled
                break
            asked = time.monotonic()
            candidate, refused = ahead.take()
            taken = time.monotonic()
            evaluation = refused or self._evaluate(candidate.config)
            spent.compilers += taken - asked
            spent.evaluating += time.monotonic() - taken
            spent.measuring += evaluation.seconds.get("measure", 0.0)
            self._search.tell(candidate, evaluation)
            self._save(candidate.config, evaluation, candidate.source)
            spent.trials += 1
            spent.total = time.monotonic() - begin
            self._show("searching")

    def finish(self, extra_finalists: Sequence[Config] = (), *, verified: bool = False) -> bool:
        """Run the finals, measure the limits, store the winner; False if no config was measured and proved right."""
        self._show("finals")
        for config in self._search.best(1):
            self.tracer.compile(config)
        baselines, regime = list(self._baselines.values()), self._regime
        incumbents = previous_winner(self._workload, self._task, self._store, regime)
        incumbents.append(self._workload.default_config(self._task))
        near = neighbours(self._store, self._study.key, self._study.provenance, self._task.problem.free)
        tried = [*incumbents, *extra_finalists, *near, *self._fastest_found()]
        # A reduced space may not have the default.
        wanted = dict.fromkeys([*baselines, *self._workload.space.valid(tried, self._task)])
        finalists = [config for config in wanted if config not in self._disqualified]
        refused = self._refused(finalists)
        first, count = next_session(self._history), self._effort.rounds
        self.progress.finals, self._finals_began = (0, count * len(finalists)), self._elapsed()
        parts: list[dict[str, Latency]] = []

        def evaluate(config: Config, number: int) -> Evaluation:
            number += first
            evaluation = refused.get(config) or self._evaluate_final(config, number)
            self._record(TrialRecord(config, evaluation, source=FINAL, number=number))
            done, planned = self.progress.finals
            self.progress.finals = (done + 1, planned)
            self._show("finals")
            return evaluation

        def undecided(measured: Mapping[Config, Sequence[Latency]]) -> list[Config]:
            found = contested(self._eligible(measured), baselines, incumbents, regime)
            done, _ = self.progress.finals
            self.progress.finals = (done, done + count * len(found))
            return found

        def measure_parts() -> None:
            parts.append(self._gang.measure_parts(self._finals_plan))

        beside = (lambda: None) if verified else measure_parts
        rounds = run_finals(finalists, count, evaluate, no_time=self._no_time_for, undecided=undecided, beside=beside)
        proven = self._proven_winner(rounds, baselines, incumbents)
        self.progress.finals = (0, 0)
        if proven is None:
            self._show("no config passed")
            return False
        best, routings = proven
        measured = {config: merge(latencies) for config, latencies in rounds.items()}
        found = self._claimed(best, measured, routings, parts, verified=verified)
        self._store.finish(self._study.id, found, self._lease)
        self._to_trace = compared(self._baselines, best, measured)
        if self._live is not None:
            self._live.finish(found)
        self.progress.best, self.progress.baselines = (best, found.latency), found.baselines
        self._show("done")
        return True

    def _claimed(
        self, best: Config, measured: Mapping[Config, Latency], routings: Mapping[str, Routed],
        parts: Sequence[Mapping[str, Latency]], *, verified: bool,
    ) -> Winner:  # fmt: skip
        """The winner with all that stands beside it; measures the host's overhead and the device's rates."""
        problem, overhead = self._task.problem, self._gang.measure_overhead()  # the same for all: it changes no order
        return Winner(
            config=best,
            latency=measured[best].through(overhead),
            baselines={name: measured[config] for name, config in self._baselines.items() if config in measured},
            limits=merge_parts(parts),
            roofline=roofline(problem, self._gang.measure_rates(problem.dtype)),
            routings={name: replace(each, latency=each.latency.through(overhead)) for name, each in routings.items()},
            beside={each.to_json(): took.of(self._regime) for each, took in measured.items() if each != best},
            verified=verified,
        )

    def trace(self) -> bool:
        """One call of the library's way and of the winner, whose result is stored; True if the user interrupted it."""
        try:
            if found := self.tracer.timeline(self._to_trace):
                self._store.attach(self._study.id, "timeline", as_json(found))
        except StoreError as error:
            LOG.warning("the timeline is not stored: %s", error)
        except KeyboardInterrupt:
            self._gang.close()
            return True
        return False

    def _refused(self, finalists: Sequence[Config]) -> dict[Config, Evaluation]:
        """The screen's verdicts on finalists that must not run; the search may not have come to them."""
        unseen = [config for config in finalists if math.isinf(self._search.latency(config))]
        futures = {each: self._screen.submit(each) for each in unseen if each not in self._baselines.values()}
        verdicts = {config: self._screen.verdict(config, future) for config, future in futures.items()}
        return {config: verdict for config, verdict in verdicts.items() if verdict is not None}

    def _no_time_for(self, measurements: int) -> bool:
        """True if so many, each as long as those of the finals so far, and the proof would outlast the budget."""
        done, _ = self.progress.finals
        each = (self._elapsed() - self._finals_began) / done
        return self._elapsed() + measurements * each + self._final_seconds() > self._budget.seconds

    def _final_seconds(self) -> float:
        """Expected of one measurement in the finals, or of the proof: twice a trial that is measured to the end."""
        return 2 * statistics.median(self._whole) if self._whole else 0.0

    def _fastest_found(self) -> list[Config]:
        """The best of the search; if calls are long enough for power to matter, also those close to the fastest, up to
        twice as many.
        """
        count = self._effort.finalists
        found = self._search.best(2 * count)
        limit = CLOSE * self._search.latency(found[0]) if found else 0.0
        close = [config for config in found[count:] if LONG_CALL <= self._search.latency(config) < limit]
        return [*found[:count], *self._search.best_of_modes(), *close]

    def _proven_winner(
        self, rounds: dict[Config, list[Latency]], baselines: Sequence[Config], incumbents: Sequence[Config]
    ) -> tuple[Config, dict[str, Routed]] | None:
        """The winner, once it gets every result right in many calls back to back, and under other routings; a config
        that does not is removed from ``rounds``.
        """
        while eligible := self._eligible(rounds):
            best = winner(eligible, baselines, incumbents, self._regime)
            self.tracer.compile(best)
            self._show(PROOF)
            failed = self._gang.prove(best, self._seed(self.progress.trials), merge(rounds[best]).median)
            if failed is None:
                routings = self._under_other_routings(best, rounds)
                if not isinstance(routings, Evaluation):
                    return best, routings
                failed = routings
            self._save(best, failed, PROOF)
            del rounds[best]
        return None

    def _under_other_routings(
        self, best: Config, rounds: Mapping[Config, Sequence[Latency]]
    ) -> dict[str, Routed] | Evaluation:
        """Latencies of the winner and its fastest baseline under other routings, as far as the budget lasts; or the
        evaluation in which the winner failed.
        """
        if not self._other_routings:
            return {}
        self._show("other inputs")
        seconds, regime = WAYS * self._effort.routings * self._final_seconds(), self._regime
        known = {name: merge(rounds[each]).of(regime) for name, each in self._baselines.items() if each in rounds}
        fastest = {name: self._baselines[name] for name in [min(known, key=known.__getitem__)]} if known else {}
        return under_other_routings(
            self._gang, self._workload, self._task.problem, best, fastest, self._effort.routings, self._evaluate_final,
            no_time=lambda: self._elapsed() + seconds > self._budget.seconds,
        )  # fmt: skip

    def _ask(self) -> Candidate | None:
        """The search's next config that may win."""
        while (candidate := self._search.ask()) is not None:
            reason = self._unlike_measured(candidate.config)
            if reason is None:
                return candidate
            refused = Evaluation(Outcome.INVALID, reason)
            self._search.tell(candidate, refused)
            self._save(candidate.config, refused, candidate.source)
        return None

    def _unlike_measured(self, config: Config) -> str | None:
        reason = self._workload.unlike_measured(config, self._regime)
        if reason is None and self._task.problem.is_invariant and config in self._baselines.values():
            reason = self._workload.space.violation(config, self._task)
        return reason

    def _eligible(self, measured: Mapping[Config, Sequence[Latency]]) -> dict[Config, Sequence[Latency]]:
        """Configs whose measured latency a caller in the regime gets; the others are baselines alone."""
        return {config: found for config, found in measured.items() if self._unlike_measured(config) is None}

    def _remember(self, config: Config, evaluation: Evaluation) -> None:
        if self._unlike_measured(config) is None:
            self._search.remember(config, evaluation)

    def _count(self, config: Config, evaluation: Evaluation, source: str) -> None:
        may_win = self._unlike_measured(config) is None and config not in self._disqualified
        self.progress.count(config, evaluation, may_win=may_win, searched=source != PROOF)

    def _measure_baselines(self) -> None:
        measured = {r.config: r.evaluation for r in self._history if r.source != FINAL}
        for name, config in self._baselines.items():
            evaluation = measured.get(config)
            if evaluation is None:
                evaluation = self._evaluate(config)
                self._remember(config, evaluation)
                self._save(config, evaluation, BASELINE)
            if evaluation.latency is not None:
                self.progress.baselines[name] = evaluation.latency
            self._show("baselines")

    def _evaluate(self, config: Config) -> Evaluation:
        plan = MeasurePlan(
            2, self._effort.screen, self._effort.iterations, self._incumbent,
            warm_from=warm_from(self._task.machine),
            isolated=ISOLATED_TRIAL if self._regime is Regime.ISOLATED else 0, regime=self._regime,
        )  # fmt: skip
        evaluation = self._gang.evaluate(config, self._seed(self.progress.trials), plan)
        if self._unlike_measured(config) is None:
            self._incumbent = min(self._incumbent, evaluation.times, key=_median)
        if evaluation.latency is not None and evaluation.latency.iterations >= self._effort.iterations:
            self._whole.append(evaluation.seconds.get("total", 0.0))
        return evaluation

    def _evaluate_final(self, config: Config, number: int) -> Evaluation:
        return self._gang.evaluate(config, self._seed(number), self._finals_plan)

    def _save(self, config: Config, evaluation: Evaluation, source: str) -> None:
        number = self.progress.trials
        record = TrialRecord(config, evaluation, source, number, self._predicted(config))
        self._record(record)
        self._disqualified |= disqualified([record])
        if self._live is not None:
            self._live.add(record)
        self._count(config, evaluation, source)
        latency, reason = evaluation.latency, evaluation.reason
        told = f"{latency.of(self._regime):.2f} µs" if latency is not None else f"{evaluation.outcome} {reason}".strip()
        LOG.info("trial %d (%s): %s, %s", number, source, told, config)

    def _record(self, record: TrialRecord) -> None:
        self._store.record(self._study.id, record, self._lease)

    def _predicted(self, config: Config) -> float | None:
        return self._workload.predict(self._task, config)

    def _seed(self, number: int) -> int:
        return self._study.seed * 10_000 + number

    def _elapsed(self) -> float:
        """Seconds of the budget that are used."""
        return 0.0 if self._begin is None else time.monotonic() - self._begin

    def _used(self) -> float:
        expected = self._effort.finalists + len(self._baselines) + OTHER_FINALISTS + 1  # and the proof
        expected += WAYS * self._effort.routings * self._other_routings
        return self._budget.used(self.progress.trials, self._elapsed(), expected * self._final_seconds())

    def _show(self, phase: str) -> None:
        progress = self.progress
        if phase != progress.phase:
            LOG.info("%s, study %d", phase, self._study.id)
        progress.phase, progress.seconds = phase, time.monotonic() - self._opened
        progress.used = 1.0 if progress.exhausted else self._used()
        progress.restarts = self._gang.restarts
        if math.isfinite(self._budget.seconds):
            progress.seconds_left = max(0.0, self._budget.seconds - self._elapsed())
        done, planned = progress.finals
        if done:
            left = (self._elapsed() - self._finals_began) / done * (planned - done)
            progress.seconds_left = min(left, progress.seconds_left if progress.seconds_left is not None else left)
        self._watch(progress)


def _median(times: Sequence[float]) -> float:
    return statistics.median(times) if times else math.inf
