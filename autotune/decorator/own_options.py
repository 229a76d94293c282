"""The decorator's options beyond Triton's, and their allowed values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.decorator.candidates import Default
from autotune.errors import InvalidArguments
from autotune.search_spaces import Dimension, Space

OnMiss = Literal["default", "nearest", "tune", "error"]
MISSES: tuple[OnMiss, ...] = ("default", "nearest", "tune", "error")

Ranks = Literal["all", "each"] | Callable[[], Any]
"""The ranks that choose a config together: all ranks of the default group, each for itself, or those of a group (made
late).
"""


@dataclass(frozen=True)
class Options:
    space: Space | Sequence[Dimension] | None = None
    default: Default | None = None
    config_hook: Callable[[dict[str, Any]], Any] | None = None
    free: Sequence[str] = ()
    on_miss: OnMiss | None = None
    trials: int | None = None
    ranks: Ranks = "all"
    db: str | None = None

    @property
    def what_on_miss(self) -> OnMiss:
        """The default: a list is tuned, as by Triton; a space takes the nearest."""
        return self.on_miss or ("tune" if self.space is None else "nearest")

    def check(self, key: Sequence[str], configs: Sequence[Any] | None, prune: dict[str, Any] | None) -> None:
        """Raise InvalidArguments if the options contradict Triton's arguments or each other."""
        check_names("free", self.free, "the key arguments", key)
        check_names("on_miss", [self.what_on_miss], "the words", MISSES)
        if not callable(self.ranks) and self.ranks not in ("all", "each"):
            raise InvalidArguments(f"ranks={self.ranks!r}: allowed: all, each, or a function that returns the group")
        if self.trials is not None and self.trials < 1:
            raise InvalidArguments(f"trials={self.trials}: must be at least 1, or None")
        if self.space is not None and (configs or (prune or {}).get("perf_model")):
            raise InvalidArguments(
                "a space excludes a list of configs and a perf_model that ranks one; pass one or the other"
            )


def check_names(what: str, names: Iterable[str], of: str, allowed: Sequence[str]) -> None:
    """Raise InvalidArguments for names not in ``allowed``."""
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise InvalidArguments(f"{what} names {', '.join(unknown)}; {of} are {', '.join(allowed)}")
