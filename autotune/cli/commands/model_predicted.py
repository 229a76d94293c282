"""``tune model --predict``: what rooflines say of a model on GPUs that need not be here; nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.cli import output, session
from autotune.cli.commands.model_table import CALLS_ALONE, ModelResult
from autotune.device_rates import rates_of, usual_rates
from autotune.errors import InputError
from autotune.machine import HOSTS, Machine
from autotune.outcome import DEFAULT_REGIME
from autotune.results.figures import instead_text, microseconds
from autotune.task import Task
from autotune.text import Table, did_you_mean
from autotune.workloads import workload

if TYPE_CHECKING:
    from autotune.models.forward import Call, Forward

HEADER = ("layer", "library", "perfect overlap", "vs library", "untuned mode")


def machine_named(device: str | None) -> Machine:
    """A host of such GPUs, or this one. Raises InputError where the rates of its GPUs are not known."""
    known = f"known: {', '.join(HOSTS)}"
    if device is None:
        here = session.machine()
        if rates_of(here) is None:
            raise InputError(f"--predict: the rates of {here.device} are not known: give --device, {known}")
        return here
    found = {name.lower(): host for name, host in HOSTS.items()}.get(device.lower())
    if found is None:
        raise InputError(f"--device {device}: {known}{did_you_mean(device, HOSTS)}")
    return found


@dataclass(frozen=True)
class PredictedModel:
    """The library, one operation after the other, and the longer one alone, as in perfect overlap; both by rooflines.

    Of 30 problems on 2 H100 (2026-11-26) the default or the winner measured 0.68 to 1.34 times this ratio, 0.97 in the
    median. The cost model would be wrong here: it orders configs, and had the default slower than the library in 22.
    """

    forwards: Sequence[Forward]
    machine: Machine

    def show(self) -> None:
        named = ModelResult(self.forwards, self.machine, DEFAULT_REGIME)
        for forward in self.forwards:
            each = self._forward_dict(forward)
            alone, times = each["without_communication"], instead_text(each["perfect_overlap"], each["library"])
            rest = f"; {microseconds(alone)} of each without communication" if alone else CALLS_ALONE
            told = f"perfect overlap is {each['speedup']:.2f} times as fast as the library, {times}{rest}"
            output.styled(*output.folded(f"{forward.title}: {told}", "bold"))
            rows = [[named.named(call), *self._cells(call)] for call in forward.calls]
            output.data(f"{output.columns(Table(HEADER, rows))}\n")
        output.data(f"predicted, nothing measured: rooflines of {self.machine.device}, which real times exceed")

    def as_dict(self) -> dict[str, Any]:
        forwards = [self._forward_dict(forward) for forward in self.forwards]
        return {"measured": False, "device": self.machine.device, "forwards": forwards}

    def _cells(self, call: Call) -> list[str]:
        found = self._call_dict(call)
        times = found["library"], found["perfect_overlap"]
        return [*map(microseconds, times), f"{times[0] / times[1]:.2f}x", found["untuned_mode"]]

    def _call_dict(self, call: Call) -> dict[str, Any]:
        from autotune.models.gains import estimate

        task = Task(call.problem, self.machine)
        found, default = estimate(task), workload(call.problem.workload).default_config(task)
        return {
            "layer": call.layer, "workload": call.problem.workload, "problem": call.problem.as_dict(),
            "calls": call.count, "library": found.before, "perfect_overlap": found.limit,
            "untuned_mode": str(default["mode"]),
        }  # fmt: skip

    def _forward_dict(self, forward: Forward) -> dict[str, Any]:
        from autotune.models.forward import places
        from autotune.models.gains import estimated, rest

        alone = rest(forward, usual_rates(self.machine))
        found = [estimated(place, self.machine) for place in places(forward.calls)]
        before, limit = alone + sum(each.before for each in found), alone + sum(each.limit for each in found)
        return {
            "forward": forward.title, "library": before, "perfect_overlap": limit, "speedup": before / limit,
            "without_communication": alone, "calls": [self._call_dict(call) for call in forward.calls],
        }  # fmt: skip
