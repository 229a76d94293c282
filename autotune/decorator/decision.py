"""The decision on a key's config, the same on all ranks: from the database, or by ``on_miss``."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from autotune.agreement import Agreement
from autotune.config import Config
from autotune.db import CacheKey, Entry, Provenance
from autotune.db.ranges import by_expected_loss
from autotune.decorator import keeping
from autotune.decorator.candidates import Candidates, Spaced
from autotune.decorator.key import Call, TuningKey, cache_key, call_of, origin_of, provenance_of
from autotune.decorator.own_options import Options, Ranks
from autotune.decorator.triton_tuner import Arguments, TritonTuner
from autotune.errors import MachineTooSmall, NotTuned, StoreError
from autotune.forks import FORKS_WAIT
from autotune.kernels.launching.streams import capturing
from autotune.machine import INTERPRETED, Machine, check_interpreter
from autotune.machine import machine as this_machine
from autotune.runtime.entries import Entries, forget_entries, read_entries, serve
from autotune.runtime.lookup import BY_DEFAULTS, Found
from autotune.settings import DEFAULTS, OFFLINE, PIN, default_database_url, pinned
from autotune.task import Task

LOG = logging.getLogger("autotune")

STARTS = 3
"""Winners at other keys with which a search begins: the best of three takes 1.001 times the least time."""

PRUNED = "early_config_prune refuses it for this call"


class LaunchAgreement(Agreement):
    """The ranks that launch a kernel; at the launch they wait for each other."""

    left_alone = (
        "this rank was left alone while the ranks chose a config: another one died, or did not launch the kernel "
        '(ranks="each" lets every rank choose for itself)'
    )
    disagree = 'the ranks launch different kernels, keys or configs ({seen}); where that is meant, give ranks="each"'


ALONE = LaunchAgreement()
_AGREEMENTS: dict[Any, LaunchAgreement] = {}


def agreement_of(ranks: Ranks) -> LaunchAgreement:
    """The ranks that choose a kernel's config together now. Collective on a group's first use.

    Raises InputError where this rank is not one of them.
    """
    if ranks == "each" or not dist.is_available() or not dist.is_initialized():
        return ALONE
    with FORKS_WAIT:
        from autotune.runtime.groups import process_group  # needs torch's distributed part

    group = process_group(ranks()) if callable(ranks) else None
    if dist.get_world_size(group) == 1:
        return ALONE
    whole = dist.group.WORLD if group is None else group  # another one once a program has begun anew
    if whole not in _AGREEMENTS:
        _AGREEMENTS[whole] = LaunchAgreement.among(group)
    return _AGREEMENTS[whole]


def _check_driver(kernel: str) -> None:
    """Raise MachineTooSmall where Triton has no driver, so that it is said before a study is begun."""
    try:
        driver.active.get_current_target()
    except RuntimeError as error:
        raise MachineTooSmall(
            f"{kernel}: Triton finds no GPU here; on CPUs, run the program with TRITON_INTERPRET=1 in its environment, "
            "which @triton.jit reads when the kernel is defined"
        ) from error


def _is_captured(machine: Machine) -> bool:
    """True while this thread's stream is captured into a CUDA graph."""
    return not machine.is_interpreter and capturing(torch.device("cuda", torch.cuda.current_device()))


@dataclass(frozen=True)
class Asked:
    """One rank's question, and its database's offer."""

    identity: str
    """Kernel, key arguments, sources, candidates, and ``on_miss``: the same on all ranks."""
    call: Call
    key: CacheKey
    offer: Found | None
    reason: str
    offline: bool
    captured: bool
    """True while a CUDA graph is captured: nothing can be timed."""


@dataclass(frozen=True)
class Question:
    """The question of all ranks together, and the offers of their databases."""

    agreement: Agreement
    call: Call
    key: CacheKey
    offers: list[Found]
    """Offers by rank, without the ranks that have none: a rank with an empty database takes another one's offer."""
    reason: str
    offline: bool
    """True if any rank must not tune; then none can."""
    captured: bool
    """True if any rank captures a CUDA graph."""

    @property
    def exact(self) -> Found | None:
        """The offer for this very key, if a rank has one."""
        return next((offer for offer in self.offers if offer.source == "exact"), None)


class Decider:
    """Decides on the configs of one kernel. Every method is collective: the ranks make the same calls."""

    def __init__(self, tuner: TritonTuner, candidates: Candidates, options: Options) -> None:
        self._tuner, self._candidates, self._options = tuner, candidates, options
        self.on_miss = options.what_on_miss

    @functools.cached_property
    def machine(self) -> Machine:
        """Read at the first launch: a decorator runs before a program has chosen its device.

        Raises MachineTooSmall and VersionsClash.
        """
        if not isinstance(self._tuner.jitted, JITFunction):
            check_interpreter()
            return INTERPRETED
        found = this_machine()
        if found.is_interpreter:
            _check_driver(self._tuner.kernel_name)
        return found

    @functools.cached_property
    def _provenance(self) -> Provenance:
        return provenance_of(self._tuner.fn, self._candidates.fingerprint)

    def decide(self, key: TuningKey, launch: Arguments, may_tune: bool = True) -> Found:
        """The config for a key that is new here. Raises NotTuned, and the errors of look-up and tuning."""
        agreement = agreement_of(self._options.ranks)
        with agreement.in_step():
            question = self._ask_together(agreement, launch)
            found = self._by_environment(question, launch) or question.exact
            return self._logged(question, found or self._missed(key, question, launch, may_tune))

    def tune(self, key: TuningKey, launch: Arguments) -> Found:
        """Tune now in any case. Raises NotTuned when offline."""
        agreement = agreement_of(self._options.ranks)
        with agreement.in_step():
            question = self._ask_together(agreement, launch)
            if question.offline:
                raise NotTuned(f"{self._tuner.kernel_name}: AUTOTUNE_OFFLINE forbids tuning on some rank; unset it")
            return self._logged(question, self._tuned(key, question, launch, anew=True))

    def _ask_together(self, agreement: LaunchAgreement, launch: Arguments) -> Question:
        """Raises RanksDisagree on every rank unless all ask the same."""
        asked = agreement.gather(lambda: self._ask(launch, agreement.world_size))
        agreement.check_same([each.identity for each in asked])
        first, offers = asked[0], [each.offer for each in asked if each.offer is not None]
        return Question(
            agreement, first.call, first.key, offers, first.reason, any(each.offline for each in asked),
            any(each.captured for each in asked),
        )  # fmt: skip

    def _ask(self, launch: Arguments, world_size: int) -> Asked:
        with FORKS_WAIT:
            name, provenance = self._tuner.kernel_name, self._provenance
            call = call_of(name, launch.named, self._tuner.keys)
            key = cache_key(call, world_size, self.machine)
            served = serve(self._entries(), key, provenance, self._options.free, self._refusal(call, launch))
        bench = "our bench" if self._tuner.given_bench is None else "a do_bench of its own"  # they meet unequally often
        chosen = f"{PIN.name}: {pinned(name)}, {DEFAULTS.name}: {bool(DEFAULTS.value())}"
        identity = f"{name} {call} {provenance.source_hash} {provenance.space} {self.on_miss}, {bench}, {chosen}"
        reason = keeping.failure(self._url) or served.reason
        return Asked(identity, call, key, Found.of(served), reason, bool(OFFLINE.value()), _is_captured(self.machine))

    def _entries(self) -> Entries:
        """The kernel's entries; none where the database cannot be read."""
        nothing: list[Entry] = []
        if keeping.failure(self._url) is not None:
            return Entries(nothing)
        try:
            return read_entries(self._url, self._tuner.kernel_name, self.machine.device)
        except StoreError as error:
            keeping.give_up(self._url, error)
            return Entries(nothing)

    def _refusal(self, call: Call, launch: Arguments) -> Callable[[Config], str | None]:
        """The reason why a config cannot be used for a call, by the space or the list and by early pruning."""
        tuner, candidates, machine = self._tuner, self._candidates, self.machine
        if isinstance(candidates, Spaced):

            def refusal(config: Config) -> str | None:
                violation = candidates.violation(config, Task(call, machine))
                if violation is None and not tuner.survives_pruning(candidates.form(config), launch):
                    return PRUNED
                return violation
        else:
            left = functools.cache(lambda: set(candidates.add(tuner.early_pruned(launch.kwargs))))

            def refusal(config: Config) -> str | None:
                pruned = bool(tuner.early_config_prune) and config not in left()  # which may make configs
                return candidates.violation(config, Task(call, machine)) or (PRUNED if pruned else None)

        return refusal

    def _missed(self, key: TuningKey, question: Question, launch: Arguments, may_tune: bool) -> Found:
        """The config if no database has the exact one."""
        on_miss = self.on_miss
        if on_miss == "tune" and (question.offline or not may_tune):
            on_miss = "nearest"
        if on_miss == "tune":
            return self._tuned(key, question, launch)
        if on_miss == "error":
            raise NotTuned(
                f'{self._tuner.kernel_name} {question.call}: {question.reason}; tune it: on_miss="tune", or kernel.tune'
            )
        if on_miss == "nearest" and question.offers:
            return question.offers[0]
        default = question.agreement.same(lambda: self._default(question.call, launch))
        return Found(default, "default", None, question.reason)

    def _by_environment(self, question: Question, launch: Arguments) -> Found | None:
        """The config that AUTOTUNE_PIN or AUTOTUNE_DEFAULTS asks for. Raises InvalidConfig where it cannot be used."""
        text = pinned(self._tuner.kernel_name)
        if text is None and not DEFAULTS.value():
            return None
        untuned = question.agreement.same(lambda: self._default(question.call, launch))
        if text is None:
            return Found(untuned, "default", None, BY_DEFAULTS)
        config = self._candidates.written(text, Task(question.call, self.machine), untuned)
        return Found(config, "pinned", None, f"{PIN.name} says {text}")

    def _default(self, call: Call, launch: Arguments) -> Config:
        candidates = self._candidates
        if isinstance(candidates, Spaced):
            return candidates.default(
                call, self.machine, lambda config: self._tuner.survives_pruning(candidates.form(config), launch)
            )
        return candidates.add(self._tuner.prune_configs(launch.kwargs))[0]

    def _tuned(self, key: TuningKey, question: Question, launch: Arguments, anew: bool = False) -> Found:
        with FORKS_WAIT:
            from autotune.decorator.proposals import KernelTask
            from autotune.decorator.tuning_session import Session  # Optuna takes a second to import

        task = KernelTask(
            question.call, self.machine, question.key, self._provenance, self._url, self._options.trials,
            origin_of(self._tuner.fn), anew, question.captured, self._expected(question.key),
        )  # fmt: skip
        return Session(self._tuner, self._candidates, question.agreement, task, key, launch).run()

    def _expected(self, key: CacheKey) -> list[Config]:
        """Winners at other keys, the most promising first, whatever their sizes."""
        sizes = [name for name, value in key.fields.items() if isinstance(value, int) and not isinstance(value, bool)]
        near = self._entries().near(key, self._provenance, sizes, within=math.inf)
        return list(dict.fromkeys(entry.winner.config for entry in by_expected_loss(near)))[:STARTS]

    def forget(self) -> None:
        """Read the database again for the next key, also if it could not be used."""
        keeping.try_again(self._url)
        forget_entries(self._tuner.kernel_name)

    @property
    def _url(self) -> str:
        return self._options.db or default_database_url()

    def _logged(self, question: Question, found: Found) -> Found:
        if question.agreement.rank == 0:
            expected = found.source in ("exact", "tuned", "given")
            level = logging.INFO if expected else logging.WARNING
            because = f" ({found.reason})" if found.reason else ""
            config = found.config.to_json()
            LOG.log(level, "%s %s: %s%s, %s", self._tuner.kernel_name, question.call, found.source, because, config)
        return found
