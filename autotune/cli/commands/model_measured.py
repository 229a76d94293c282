"""``tune model --measure``: whole forwards, plain tensor parallelism against the tuned one, beside their prediction."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from autotune.cli import output
from autotune.cli.commands.model_table import ModelResult
from autotune.results.figures import Ratio, instead_text
from autotune.text import counted

if TYPE_CHECKING:
    from autotune.model_runs.measured import ModelLayers
    from autotune.models.forward import Forward


class MeasuredModel:
    """The rows of some layers, beside what the tuning of the same operators predicts for as many layers, called as the
    fastest plain forward calls them: in a graph where it was captured.
    """

    def __init__(self, run: ModelLayers, result: ModelResult) -> None:
        self.run, self.result = run, result
        self._rows: dict[int, dict[str, Any]] = {}

    def measure(self) -> None:
        """Raises WrongResult where outputs differ, GangError where a rank fails."""
        from autotune.model_runs.ranks import rows_of

        layers = counted(self.run.model.layers, "layer")
        output.say(f"measuring {layers}: plain tensor parallelism and ours, compiled")
        for row in rows_of(self.run, self.result.machine):
            self._rows[row["tokens"]] = row
            output.say(f"measured {counted(row['tokens'], 'token')}")

    def show(self) -> None:
        """A sentence for each forward with what it is of, then what was measured."""
        for found in self._forward_dicts():
            times, ratio = instead_text(found["ours"], found["plain"]), Ratio(**found["speedup"])
            told = times if self.result.machine.is_interpreter else f"{ratio.against('plain torch')}: {times}"
            output.styled(*output.folded(f"{found['forward']}: measured {told}", "bold"))
            output.data(f"{output.named(self._lines(found))}\n")
        run = self.run
        experts = ", experts as in Mixtral" if run.model.mixture is not None else ""
        told = (
            f"measured: {run.model.layers} of {run.of_layers} layers with random weights, without embedding and "
            f"head, norms and attention as in Llama{experts}; wall clock of the slowest rank; outputs compared with "
            "plain's"
        )
        output.styled(*output.folded(told))
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

    def _lines(self, found: dict[str, Any]) -> list[tuple[str, str]]:
        from autotune.models.promise import Promise

        told, promise = found["predicted"], Promise(**found["promise"])
        saved = found["plain"] - found["ours"]
        shares = {"the tuned configs promise": promise.gain, "perfect overlap would": promise.most}
        of = ", ".join(f"{saved / gain:.2f} of what {name}" for name, gain in shares.items() if gain > 0)
        return [
            ("called", found["way"]),
            ("predicted", instead_text(told["after"], told["before"])),
            *([("saved", of)] if of and not self.result.machine.is_interpreter else []),
            ("difference", f"{found['difference']:.0e} from plain torch's outputs"),
        ]
