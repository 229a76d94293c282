"""The question of a launch: what ranks tell each other on the way to one config of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist

from autotune.db import CacheKey
from autotune.decorator.key import Call
from autotune.ranks.agreement import Agreement
from autotune.runtime.lookup import Found

Ranks = Literal["all", "each"] | Callable[[], Any]
"""Who chooses a config together: all ranks of the default group, each for itself, or those of a group (made late)."""

PATIENCE = timedelta(minutes=10)
"""How long ranks wait for one that has not come to launch the kernel."""


class LaunchAgreement(Agreement):
    """The ranks that launch a kernel, which is where they wait for each other."""

    left_alone = (
        "this rank was left alone while the ranks chose a config: another one died, or did not launch the kernel "
        '(ranks="each" lets every rank choose for itself)'
    )
    disagree = 'the ranks launch different kernels, keys or configs ({seen}); where that is meant, give ranks="each"'


ALONE = LaunchAgreement()


def agreement_of(ranks: Ranks) -> Agreement:
    """The ranks that choose a kernel's config together, as of now. Collective the first time that a group comes."""
    if ranks == "each" or not dist.is_available() or not dist.is_initialized():
        return ALONE
    group = ranks() if callable(ranks) else dist.group.WORLD
    if dist.get_world_size(group) == 1:
        return ALONE
    if group not in _AGREEMENTS:
        _AGREEMENTS[group] = LaunchAgreement.among(group, PATIENCE)
    return _AGREEMENTS[group]


_AGREEMENTS: dict[Any, Agreement] = {}


@dataclass(frozen=True)
class Asked:
    """What one rank asks for, and what its database offers."""

    identity: str
    """Kernel, key arguments, sources, candidates, and what to do on a miss: the same on all ranks."""
    call: Call
    key: CacheKey
    offer: Found | None
    reason: str
    offline: bool


@dataclass(frozen=True)
class Question:
    """What all ranks ask for together."""

    agreement: Agreement
    call: Call
    key: CacheKey
    offers: list[Found]
    """By rank, of those that have one: a rank whose database is empty takes another one's."""
    reason: str
    offline: bool
    """Where one rank must not tune, none can."""


def agreed(agreement: Agreement, asked: Sequence[Asked]) -> Question:
    """The question that they all ask; raises RanksDisagree, on every rank, where they do not."""
    agreement.check_same([each.identity for each in asked])
    first, offers = asked[0], [each.offer for each in asked if each.offer is not None]
    return Question(agreement, first.call, first.key, offers, first.reason, any(each.offline for each in asked))
