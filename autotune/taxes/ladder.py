"""The ladder from a bulk-synchronous program to perfect overlap: its rungs, and the name of each step down."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

RUNGS = {
    "E0": "BSP eager, GPU idle",
    "E1": "BSP eager, host ahead",
    "G": "BSP as a CUDA graph",
    "B": "ours, a launch per phase",
    "D": "flags, not barriers",
    "F": "nothing via memory",
    "W": "the winner",
    "L": "slowest part alone",
}
"""Letters of the rungs from the top down, and what each is."""

CAUSES = {
    "E1": ("host",),
    "G": ("gaps",),
    "B": ("library",),
    "D": ("boundary", "synchrony"),
    "F": ("locality",),
    "W": ("other knobs",),
    "L": ("fusion",),
}
"""The causes of the step down to each rung."""

PHASED = "B"
"""The rung whose launches end where its phases do: a dose of empty launches between them tells the boundary apart."""

MEANINGS = {
    "host": "the host's time until the device begins, and its wait for the end",
    "gaps": "pauses of the device between eager launches",
    "library": "how much longer the library's kernels take than ours; shorter where it is negative",
    "boundary": "the end of one launch and the start of the next, as a dose of empty launches tells it",
    "synchrony": "nobody computes while data travels, and all wait for the slowest",
    "locality": "data goes through memory between producer and consumer",
    "other knobs": "the winner's mode and knobs against this ladder's",
    "fusion": "what sharing a GPU costs, against each part alone at its best",
}

TAXES = {
    "kernel launch": ("host", "gaps", "boundary"),
    "bulk synchrony": ("synchrony",),
    "locality": ("locality",),
}
"""The paper's three taxes, and the causes that make each."""


@dataclass(frozen=True)
class Step:
    """The way down from one rung to the next that exists."""

    above: str
    below: str
    causes: tuple[str, ...]
    """Several where they cannot be told apart: a rung between is missing, or there was no dose."""
    boundaries: int = 0
    """1: not the whole way but what the dose tells of it; -1: the rest of such a way."""

    @property
    def name(self) -> str:
        return " + ".join(self.causes)


def steps(present: Collection[str], winner_apart: bool = False, dosed: bool = False) -> list[Step]:
    """The steps between the rungs that are present, from the top down; together they lead from the first to the last.

    ``winner_apart``: the winner is a rung of its own; otherwise it is one of the others, and there is no such cause.
    ``dosed``: a dose tells the boundaries of the step down from B.
    """
    order = [letter for letter in RUNGS if letter != "W" or winner_apart]
    there = [letter for letter in order if letter in present]
    found = []
    for above, below in zip(there, there[1:], strict=False):
        between = order[order.index(above) + 1 : order.index(below) + 1]
        causes = tuple(cause for letter in between for cause in CAUSES[letter])
        if dosed and above == PHASED:
            found += [Step(above, below, causes[:1], 1), Step(above, below, causes[1:], -1)]
        else:
            found.append(Step(above, below, causes))
    return found


def tax_of(tax: str, among: Sequence[Step]) -> list[Step] | None:
    """The steps whose sum is a tax: those that have its causes and no others; None unless they have all of them."""
    wanted = set(TAXES[tax])
    own = [step for step in among if set(step.causes) <= wanted]
    covered = {cause for step in own for cause in step.causes}
    return own if covered == wanted else None
