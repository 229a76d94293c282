"""Draws what transformer_block.py measured: a layer's time in a decode step, and a prompt token's. Needs matplotlib.

torchrun --nproc-per-node 4 docs/examples/transformer_block.py --json block.json
python docs/examples/transformer_block_picture.py block.json docs/transformer-block.svg

Of each way, plain torch with NCCL and our operators, the faster of eager and graph; above, how much faster ours is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

WIDTH = 0.4
COLOURS = {"plain": "#9aa5b1", "ours": "#d1495b"}
PANELS = {"decode": ("decode: µs of a layer", "sequences"), "prefill": ("prefill: µs of a layer and token", "tokens")}


def faster(row: dict[str, Any], way: str, layers: int) -> float:
    """Microseconds of one layer; of one token, too, in prefill."""
    whole = min(each for name, each in row["us"].items() if name.startswith(way))
    return float(whole) / layers / (row["tokens"] if row["phase"] == "prefill" else 1)


def draw(found: dict[str, Any], file: Path) -> None:
    """A panel for each phase, a pair of bars for each size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, 2, width_ratios=(7, 4))
    for axes, (phase, (title, label)) in zip(panels, PANELS.items(), strict=True):
        rows = [row for row in found["rows"] if row["phase"] == phase]
        heights = {way: [faster(row, way, found["layers"]) for row in rows] for way in COLOURS}
        for side, (way, colour) in zip((-0.5, 0.5), COLOURS.items(), strict=True):
            axes.bar([at + side * WIDTH for at in range(len(rows))], heights[way], WIDTH, color=colour, label=way)
        for at, (row, *pair) in enumerate(zip(rows, *heights.values(), strict=True)):
            axes.text(at, max(pair), f"{row['speedup']:.2f}×", ha="center", va="bottom", fontsize=9)
        axes.set_xticks(range(len(rows)), [str(row["tokens"]) for row in rows])
        axes.set(title=title, xlabel=label)
        axes.margins(y=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="upper left", ncols=2, frameon=False)
    machine = f"{found['world_size']} × {found['device']}"
    figure.suptitle(f"Llama-70B, attention output and MLP, {machine}, bf16", fontsize=10)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="of transformer_block.py --json")
    parser.add_argument("picture", type=Path, help="an image file")
    given = parser.parse_args()
    draw(json.loads(given.json.read_text()), given.picture)


if __name__ == "__main__":
    main()
