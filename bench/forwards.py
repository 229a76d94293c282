"""Whole forwards of served models, predicted from their tuned calls and measured: twelve of them, step by step.

    python bench/forwards.py --folder forwards                 every model on all GPUs of this machine
    python bench/forwards.py --folder forwards --only Mixtral  models whose name begins so
    python bench/forwards.py --folder forwards --table         the table, as Markdown, of what has been measured

Each model is tuned and measured by ``tune model --measure``, four of its layers with random weights, in CUDA graphs:
a decode step of 8 sequences, prefills of 512 and 2048 tokens. *Predicted* is the sum of what its calls save.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from steps import FOLDER, Folder, Step, here, new_step_parser, run_and_print, run_to_end
from tables import table

from autotune.model_runs.clock import Ratio

CONFIGS = Path(__file__).parents[1] / "tests" / "models" / "configs.json"

MODELS = ("Llama-3.3-70B", "Phi-4", "Mixtral-8x7B", "Qwen3-235B-A22B-FP8")

TOY = {
    "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
    "vocab_size": 128,
}  # fmt: skip


def steps(ranks: int, only: tuple[str, ...], budget: str, toy: bool) -> list[Step]:
    sizes = ("--tokens", "4,8") if toy else ("--tokens", "8,512,2048", "--regime", "graph", "--budget", budget)
    words = ("--tp", str(ranks), "--dtype", "bf16", *sizes, "--measure", "--json")
    names = ["toy"] if toy else [name for name in MODELS if name.startswith(only)]
    return [Step(name, ("-m", "autotune.cli", "model", f"{FOLDER}/{name}.config.json", *words)) for name in names]


def write_configs(folder: Path) -> None:
    known = {**json.loads(CONFIGS.read_text()), "toy": TOY}
    for name in (*MODELS, "toy"):
        (folder / f"{name}.config.json").write_text(json.dumps(known[name]))


def rows(name: str, found: dict[str, object]) -> Iterator[list[str]]:
    for each in found["measured"]:  # type: ignore[attr-defined]
        measured, told = Ratio(**each["speedup"]), each["predicted"]
        predicted = told["before"] / told["after"]
        times = [f"{each[way] / 1e3:.3f}" for way in ("plain", "ours")]
        yield [name, each["forward"], *times, str(measured), f"{predicted:.3f}", f"{measured.value / predicted:.3f}"]


def measured_table(folder: Folder, wanted: Sequence[Step]) -> str:
    found = [(step.name, stored) for step in wanted if (stored := folder.found(step)) is not None]
    head = ["model", "forward", "plain, ms", "ours, ms", "times as fast", "predicted", "measured over predicted"]
    return table(head, [row for name, stored in found for row in rows(name, json.loads(stored["found"]))], "lll") + "\n"


def main(words: Sequence[str] | None = None) -> int:
    parser = new_step_parser(__doc__, "forwards", "model", "60s")
    given = parser.parse_args(words)
    place = here()
    toy = place["machine"]["kind"] == "interpreter"
    wanted = steps(given.world_size or place["machine"]["gpus"] or 2, tuple(given.only or ("",)), given.budget, toy)
    if not wanted:
        parser.error(f"--only {', '.join(given.only)}: no model's name begins so; there are {', '.join(MODELS)}")
    folder = Folder(given.folder, place)
    if not given.table:
        write_configs(folder.path)
    return run_and_print(given, folder, wanted, lambda: measured_table(folder, wanted))


if __name__ == "__main__":
    run_to_end(lambda: sys.exit(main()))
