"""Names that dimensions and their values had in earlier versions: how old configs, recordings and files are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.config import Value


@dataclass(frozen=True)
class Renamed:
    """Old names with today's. What was once a name is never given to something else, so that nothing is misread."""

    dimensions: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[Value, Value]] = field(default_factory=dict)
    """By the dimension's name of today."""

    def name(self, dimension: str) -> str:
        """A dimension's name of today."""
        return self.dimensions.get(dimension, dimension)

    def value(self, dimension: str, value: Value) -> Value:
        """Today's word for a value of a dimension, which is given by its name of today."""
        return self.values.get(dimension, {}).get(value, value)

    def config(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """A config's values in today's words."""
        today = self.dimensions.keys().isdisjoint(values)
        if today and not any(values.get(name) in words for name, words in self.values.items()):
            return dict(values)
        return {(now := self.name(name)): self.value(now, value) for name, value in values.items()}


ALL_GATHER_GEMM = Renamed({"unit_rows": "transfer_rows"})
GEMM_REDUCE_SCATTER = Renamed({"unit_rows": "transfer_rows", "unit_tiles": "transfer_tiles"})
GEMM_ALL_REDUCE = Renamed({"residents": "programs_per_unit"}, {"protocol": {"flag": "signal", "packed": "ll"}})
FLASH_DECODE = Renamed(
    {"flag_heads": "transfer_heads", "combiner": "exchange"},
    {"protocol": {"flags": "signal", "words": "ll"}, "exchange": {"every_rank": "one_shot", "owner": "two_shot"}},
)
