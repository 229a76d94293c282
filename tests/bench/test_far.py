"""Two-level kernels are right on 2 x 2 ranks whose far puts come late and in any order; their mutants are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from far.model import lines
from ranks_of_functions import RankDied, run_ranks

FAR = Path(__file__).parents[2] / "bench" / "far"
ON_RANKS = str(Path(__file__).with_name("far_on_ranks.py"))

GATHER, DISPATCH = "all_gather_gemm", "dispatch"
PUT = "put_signal(place, a + chunk * PART, size, word, 1, (rank + (pid + 1) * LOCAL) % WORLD)"

MUTANTS = {
    "a tile does not wait": (GATHER, (" + wait_in_slot(near + source * CHUNKS + chunk, epoch, 1, peers)", "")),
    "one slot": (GATHER, ("inbox += (epoch & 1) * (WORLD * M * K)", "inbox += 0")),
    "a source is not waited for": (
        DISPATCH, ("late = wait_in_slot(near + source, epoch, 1 + CHUNKS, peers)", "late = 0"),
    ),
    "packed tokens are overwritten on their way": (DISPATCH, ("        quiet()\n", "        pass\n")),
}  # fmt: skip
"""Of those that a kernel may have; the heap is one that shows them."""


def launched(name: str, seed: int, folder: Path, *edits: tuple[str, str]) -> list[Any]:
    """What each rank found of a kernel, or of a copy with these texts replaced by others."""
    text = (FAR / f"{name}.py").read_text()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(text)
    return run_ranks(ON_RANKS, name, 4, folder, argument={"seed": seed, "file": str(file)}, seconds=60)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kernel", [GATHER, DISPATCH])
def test_results_are_right_and_all_goes_once_to_a_far_host(kernel: str, seed: int, tmp_path: Path) -> None:
    for rank in launched(kernel, seed, tmp_path):
        assert rank["wrong"] == [] and rank["sent"] == rank["once"]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_wrong(name: str, tmp_path: Path) -> None:
    kernel, *edits = MUTANTS[name]
    assert any(rank["wrong"] for rank in launched(kernel, 0, tmp_path, *edits))


@pytest.mark.parametrize(
    "access",
    ["store(place, 0.0, rank, FAR, heap_bases)", "load(place, rank, FAR, heap_bases)", "signal(word, FAR, peers)"],
)
def test_loads_stores_and_atomics_do_not_reach_a_far_peer(access: str, tmp_path: Path) -> None:
    far = PUT.partition(", 1, ")[2].removesuffix(")")
    with pytest.raises(RankDied, match="on another host"):
        launched(GATHER, 0, tmp_path, (PUT, "heap." + access.replace("FAR", far)))


def test_the_tables_in_the_docs_are_the_models() -> None:
    assert "\n".join(lines()).strip() in (FAR.parents[1] / "docs" / "decisions.md").read_text()
