"""The tuning session of one key: rank 0 proposes configs, all ranks time each of them, rank 0 stores the results."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, closing, nullcontext
from typing import Any

from autotune.agreement import Agreement
from autotune.config import Config
from autotune.decorator.bench import FAILED, Bench, evaluation_of
from autotune.decorator.candidates import Candidates, Listed, Spaced
from autotune.decorator.key import TuningKey
from autotune.decorator.proposals import KernelTask, Proposals
from autotune.decorator.triton_tuner import Arguments, TritonTuner
from autotune.errors import NotTuned
from autotune.forks import FORKS_WAIT
from autotune.runtime.entries import forget_entries
from autotune.runtime.lookup import Found
from autotune.tuning import Progress

LOG = logging.getLogger("autotune")


Begun = tuple[Config | None, dict[Config, list[float]]]
"""The winner of a finished study, and what earlier runs timed."""


class Session:
    """Keeps the ranks in step: each makes the same calls of the agreement, whatever a config does to one of them."""

    _proposals: Proposals
    """Set on rank 0 only."""

    def __init__(
        self, tuner: TritonTuner, candidates: Candidates, agreement: Agreement, task: KernelTask, key: TuningKey,
        launch: Arguments,
    ) -> None:  # fmt: skip
        """``key`` is Triton's key of ``task``; ``launch`` the arguments for timing."""
        self._tuner, self._candidates, self._agreement = tuner, candidates, agreement
        self._task, self._key, self._launch = task, key, launch
        self._bench = Bench(agreement, tuner.given_bench, task.machine)
        self._said: set[str] = set()

    def run(self) -> Found:
        """The winner on every rank; without times if only one config is left, or none can be timed. Collective."""
        listed = self._agreement.same(self._listed)
        if len(listed) == 1:
            return Found(listed[0], "given", None, "pruning left one config")
        if self._task.captured:
            raise NotTuned(
                f"{self._tuner.kernel_name} {self._task.call}: nothing is tuned for it here, and while a CUDA graph is "
                "captured nothing can be timed; launch the kernel once with such arguments before the capture, or give "
                'on_miss="nearest" or "default"'
            )
        with ExitStack() as stack:
            begun = None
            while begun is None:  # rank 0 says so while another process tunes this
                begun = self._agreement.broadcast(lambda: self._begin(listed, stack))
            finished, earlier = begun
            # Those of an interrupted run too: Triton's cache on disk keeps them, and its best is the best of them all.
            self._tuner.configs_timings = {self._candidates.form(config): earlier[config] for config in earlier}
            if finished is not None and self._candidates.violation(finished, self._task.as_task) is None:
                return Found(finished, "exact", None, "")
            ran = self._measure(listed)
            config, evaluation = self._agreement.broadcast(lambda: self._proposals.finish())
        forget_entries(self._tuner.kernel_name)
        best = self._candidates.form(config)
        if ran:
            self._agreement.gather(lambda: self._tuner.reset_tensors(best, self._launch))
        if evaluation.latency is None:
            return Found(config, "default", None, f"no config could be timed; the first: {evaluation.reason}")
        self._tuner.announce_best(self._key, best)
        return Found(config, "tuned", None, "")

    def _listed(self) -> list[Config]:
        """The list after pruning; empty for a space."""
        if isinstance(self._candidates, Spaced):
            return []
        return self._candidates.add(self._tuner.prune_configs(self._launch.kwargs))

    def _begin(self, listed: list[Config], stack: ExitStack) -> Begun | None:
        """Open the proposals on rank 0; returns the study's winner if it is finished, and what earlier runs timed."""
        if isinstance(self._candidates, Spaced):
            proposals = Proposals.of_space(self._task, self._candidates, self._survives, self._wait)
        else:
            proposals = Proposals.of_list(self._task, listed, self._wait)
        self._proposals = stack.enter_context(closing(proposals))
        return proposals.finished(), proposals.timings

    def _wait(self, progress: Progress) -> None:
        """Wait on rank 0 while another process tunes this: the other ranks wait as long as it takes."""
        if progress.phase not in self._said:
            self._said.add(progress.phase)
            LOG.warning("%s %s: %s", self._tuner.kernel_name, self._task.call, progress.phase)
        self._agreement.broadcast(lambda: None)

    def _measure(self, listed: list[Config]) -> bool:
        """Time the proposed configs; True if anything ran."""
        begin, before = time.perf_counter(), len(self._tuner.configs_timings)
        known = False
        if isinstance(self._candidates, Listed) and self._tuner.cache_results and self._agreement.world_size == 1:
            known = self._search_unless_cached(self._candidates, listed)
        else:
            self._search()
        self._tuner.bench_time = time.perf_counter() - begin
        return len(self._tuner.configs_timings) > before and not known

    def _search_unless_cached(self, candidates: Listed, listed: list[Config]) -> bool:
        """Adopt the result of Triton's own cache on disk if there is one, else search."""
        forms = [candidates.form(config) for config in listed]
        known: bool = self._tuner.check_disk_cache(self._key, forms, self._search)
        if known:
            for form, timing in self._tuner.configs_timings.items():
                (config,) = candidates.add([form])
                self._proposals.adopt(config, evaluation_of(timing))
        return known

    def _search(self) -> None:
        """Ask rank 0, time on all ranks, tell rank 0, until rank 0 ends it."""
        config = self._agreement.broadcast(lambda: self._proposals.next())
        while config is not None:
            form = self._candidates.form(config)
            self._tuner.configs_timings[form] = self._time(form)
            config = self._agreement.broadcast(lambda: self._proposals.next(self._bench.evaluation))

    def _time(self, form: Any) -> Any:
        alone = self._agreement.world_size == 1
        with nullcontext() if self._tuner.configs_timings else FORKS_WAIT:  # at the first one Triton imports more
            if alone or self._bench.compile(lambda: self._tuner.compile_config(form, self._launch)):
                return self._tuner.time_config(form, self._launch, self._bench)
        return list(FAILED)

    def _survives(self, config: Config) -> bool:
        return self._tuner.survives_pruning(self._candidates.form(config), self._launch)
