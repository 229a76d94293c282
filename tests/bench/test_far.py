"""Two-level kernels are right on 2 x 2 ranks whose far puts come late and in any order; their mutants are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from far.model import lines
from ranks_of_functions import run_ranks

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


LINKS = ("load(place, rank, FAR, heap_bases)", "store(place, 0.0, rank, FAR, heap_bases)", "signal(word, FAR, peers)")
"""Accesses that do not reach a far peer."""

FAR_PEER = PUT.partition(", 1, ")[2].removesuffix(")")
ACCESSES = {each: (GATHER, (PUT, "heap." + each.replace("FAR", FAR_PEER))) for each in LINKS}

SOUND = [(kernel, seed) for kernel in (GATHER, DISPATCH) for seed in (0, 1, 2)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Each rank's findings of every kernel, and of copies with texts replaced by others."""
    folder, cases = tmp_path_factory.mktemp("kernels"), {}
    for number, (name, (kernel, *edits)) in enumerate((MUTANTS | ACCESSES).items()):
        text = (FAR / f"{kernel}.py").read_text()
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (file := folder / f"{number}" / f"{kernel}.py").parent.mkdir()
        file.write_text(text)
        cases[name] = (kernel, {"seed": 0, "file": str(file)})
    cases |= {f"{kernel} {seed}": (kernel, {"seed": seed, "file": str(FAR / f"{kernel}.py")}) for kernel, seed in SOUND}
    answers = run_ranks(ON_RANKS, "all_of", 4, folder, argument=cases)
    return {name: [answer[name] for answer in answers] for name in cases}


@pytest.mark.parametrize(("kernel", "seed"), SOUND)
def test_results_are_right_and_all_goes_once_to_a_far_host(kernel: str, seed: int, found: dict[str, list[Any]]) -> None:
    for rank in found[f"{kernel} {seed}"]:
        assert rank["wrong"] == [] and rank["sent"] == rank["once"]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_wrong(name: str, found: dict[str, list[Any]]) -> None:
    assert any(rank["wrong"] for rank in found[name])


@pytest.mark.parametrize("access", LINKS)
def test_loads_stores_and_atomics_do_not_reach_a_far_peer(access: str, found: dict[str, list[Any]]) -> None:
    assert all("on another host" in rank["error"] for rank in found[access])


def test_the_tables_in_the_docs_are_the_models() -> None:
    assert "\n".join(lines()).strip() in (FAR.parents[1] / "docs" / "decisions.md").read_text()
