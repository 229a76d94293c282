"""Held-out sizes of a grid: what each loses with the config that a look-up from the other sizes serves."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.config import Config
from autotune.db import Entry
from autotune.outcome import Regime
from autotune.results.figures import NOT_TOLD_APART, Ratio, ratio

if TYPE_CHECKING:
    from autotune.db import Store
    from autotune.runtime.lookup import Found


@dataclass(frozen=True)
class HeldOut:
    """A size tuned to know its optimum, and the config it would get untuned."""

    dimension: str
    size: int
    lent: Found
    """The result of a look-up from the other sizes: a neighbour's config, else the default."""
    times_as_long: Ratio | None
    """Latency of the lent config over the size's own winner, in the same finals; None if it was not in them or failed
    there.
    """

    def line(self) -> str:
        """``held-out m=96: neighbour's config (m=128) takes 1.03 ± 0.01 times the optimum``."""
        what = "no neighbour within a factor of two; the default"
        if self.neighbour is not None:
            what = f"neighbour's config ({self.dimension}={self.neighbour})"
        if self.times_as_long is None:
            how = "was not measured in its finals, or failed there; --force tunes anew"
        elif self.times_as_long.is_told:
            how = f"takes {self.times_as_long} times the optimum"
        else:
            how = f"is {NOT_TOLD_APART} from the optimum"
        return f"held-out {self.dimension}={self.size}: {what} {how}"

    @property
    def neighbour(self) -> int | None:
        """The tuned size that lends its config."""
        if self.lent.entry is None:
            return None
        found: int = json.loads(self.lent.entry.key.problem)[self.dimension]
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "source": self.lent.source,
            "neighbour": self.neighbour,
            "config": dict(self.lent.config),
            "times_as_long": dataclasses.asdict(self.times_as_long) if self.times_as_long else None,
        }


def compared(entry: Entry, config: Config, store: Store) -> Ratio | None:
    """Latency of a config over an entry's winner, by the rounds of its finals; None if it was not in them or failed
    there.
    """
    from autotune.tuning.finals import in_finals

    latency = in_finals(store.trials(entry.study_id)).get(config)
    return None if latency is None else ratio(latency, entry.winner.latency.bound, Regime(entry.key.regime))
