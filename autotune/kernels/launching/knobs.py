"""Knobs: a config with a type for each dimension, as launchers and cost models read it."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from autotune.config import Config
from autotune.errors import InvalidConfig

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Base of a workload's knobs: one field for each dimension of its space, under the same name.

    A config carries only the dimensions of its mode. The others have a default here, one that has no effect.
    """

    mode: str

    @classmethod
    def of(cls, config: Config) -> Self:
        """Read a config. Raises InvalidConfig for an unknown knob or a value of another type."""
        kinds = _kinds(cls)  # type: ignore[arg-type]  # a class is hashable
        for name, value in config.items():
            if name not in kinds:
                raise InvalidConfig(f"{name}={value!r}: {cls.__name__} has no such knob; it has {', '.join(kinds)}")
            if type(value) is not kinds[name]:
                raise InvalidConfig(f"{name}={value!r}: must be of type {kinds[name].__name__}")
        if "mode" not in config:
            raise InvalidConfig(f"{config}: the mode is missing")
        required = {each.name for each in dataclasses.fields(cls) if each.default is dataclasses.MISSING}
        if missing := sorted(required - set(config)):
            raise InvalidConfig(f"{config}: {cls.__name__} needs {', '.join(missing)}")
        values: dict[str, Any] = dict(config)
        return cls(**values)


REGISTERS, MEMORY = "registers", "memory"
"""Values of ``handover`` below."""


@dataclass(frozen=True, kw_only=True)
class LadderKnobs(Knobs):
    """Knobs that are not in the space: the rungs between a bulk-synchronous program and ours, for ``tune taxes``."""

    phased: bool = False
    """Communication and computation in launches of their own: no rank computes while data travels."""
    handover: str = REGISTERS
    """``memory``: what the producing loop could hand on in registers goes through memory, too."""
    empty_launches: int = 0
    """Empty kernels between the phases where these are launches: the dose whose response is a launch's cost."""

    trace: bool = False
    """A traced twin: kernels leave stamps of time behind, see ``primitives/trace.py``."""

    def trace_of(self, programs: int, like: torch.Tensor) -> torch.Tensor | None:
        """The place for the stamps of the twin's programs, on the device of ``like``; None in what is not traced."""
        if not self.trace:
            return None
        import torch

        from autotune.kernels.primitives.trace import KINDS, MOST_EVENTS

        return like.new_zeros((programs, KINDS.value, MOST_EVENTS.value, 3), dtype=torch.int64)


@functools.cache
def _kinds(kind: Any) -> Mapping[str, type]:
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}
