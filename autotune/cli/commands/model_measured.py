"""``tune model --measure``: whole forwards, plain tensor parallelism against the tuned one, beside their prediction."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from autotune.cli import output, session
from autotune.cli.commands.model_table import ModelResult
from autotune.results.figures import microseconds
from autotune.text import Table, counted

if TYPE_CHECKING:
    from autotune.model_runs.dense import DenseLayers
    from autotune.models.forward import Forward

HEADER = (
    "measured", "plain", "ours", "times as fast", "way", "predicted before", "after", "times as fast",
    "saved of winners'", "of limits'", "difference",
)  # fmt: skip


class MeasuredModel:
    """The rows of some layers, beside what the tuning of the same operators predicts for as many layers, called as the
    fastest plain forward calls them: in a graph where it was captured.
    """

    def __init__(self, run: DenseLayers, result: ModelResult) -> None:
        self.run, self.result = run, result
        self._rows: dict[int, dict[str, Any]] = {}

    def measure(self) -> None:
        """Raises WrongResult where outputs differ, GangError where a rank fails."""
        layers = counted(self.run.model.layers, "layer")
        output.say(f"measuring {layers}: plain tensor parallelism and ours, compiled")
        for row in session.measured_rows(self.run, self.result.machine):
            self._rows[row["tokens"]] = row
            output.say(f"measured {counted(row['tokens'], 'token')}")

    def show(self) -> None:
        """The table, then what was measured."""
        output.data(output.columns(Table(HEADER, [self._cells(each) for each in self._forward_dicts()]), names=True))
        run = self.run
        output.data(
            f"measured: {run.model.layers} of {run.of_layers} layers with random weights, without embedding and "
            "head, norms and attention as in Llama; wall clock of the slowest rank; outputs compared with plain's"
        )
        if self.result.machine.is_interpreter:
            output.data("times of Triton's interpreter say nothing about GPUs")

    def as_dict(self) -> dict[str, Any]:
        return {"measured": list(self._forward_dicts())}

    def _forward_dicts(self) -> list[dict[str, Any]]:
        by_tokens = zip(self.run.tokens, self.run.forwards, strict=True)
        return [self._forward_dict(tokens, forward) for tokens, forward in by_tokens]

    def _forward_dict(self, tokens: int, forward: Forward) -> dict[str, Any]:
        from autotune.model_runs.comparison import PLAIN, best, called_in

        row = self._rows[tokens]
        way, ratio = best(row)
        regime = called_in(row, self.result.regime)
        return {
            "forward": forward.title,
            "layers": self.run.model.layers,
            "of_layers": self.run.of_layers,
            "plain": row["us"][row["fastest"][PLAIN]],
            "ours": row["us"][row["fastest"][way]],
            "speedup": dataclasses.asdict(ratio),
            "way": row["fastest"][way],
            "difference": row["error"],
            "each_way": row["us"],
            "not_captured": row["not_captured"],
            "predicted": self.result.predicted(forward, regime).as_dict(),
            "promise": dataclasses.asdict(self.result.measured(regime).promised(forward.calls)),
        }

    def _cells(self, found: dict[str, Any]) -> list[str]:
        from autotune.models.promise import Promise

        told, promise = found["predicted"], Promise(**found["promise"])
        ratio, saved = found["speedup"], found["plain"] - found["ours"]
        return [
            found["forward"], microseconds(found["plain"]), microseconds(found["ours"]),
            f"{ratio['value']:.3f} ± {ratio['error']:.3f}", found["way"],
            microseconds(told["before"]), microseconds(told["after"]),
            f"{told['before'] / told['after']:.2f}" if told["after"] else "",
            _share(saved, promise.gain), _share(saved, promise.most), f"{found['difference']:.0e}",
        ]  # fmt: skip


def _share(saved: float, promised: float) -> str:
    """Saved time as a share of the promised time; empty if nothing is promised."""
    return f"{saved / promised:.2f}" if promised > 0 else ""
