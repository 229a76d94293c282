"""The pass's findings as text."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.problem import Problem
from autotune.results.figures import dashed, problem_text


@dataclass(frozen=True)
class Line:
    collective: str
    operator: str
    """The operator's name, or that of the collective where no operator fits."""
    problem: Problem | None
    replaced: bool
    reason: str

    def __str__(self) -> str:
        what = f"{dashed(self.operator)} {problem_text(self.problem.as_dict())}" if self.problem else self.operator
        return f"{self.collective}: {what}: {'replaced' if self.replaced else 'left'}: {self.reason}"


@dataclass(frozen=True)
class Explanation:
    """Every collective that could be part of an operator, for each of its GEMMs."""

    lines: tuple[Line, ...]

    def __str__(self) -> str:
        replaced = sum(line.replaced for line in self.lines)
        head = f"{len(self.lines)} found, {replaced} replaced"
        return "\n".join([head, *(f"  {line}" for line in self.lines)])
