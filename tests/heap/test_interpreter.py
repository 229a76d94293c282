"""Triton's interpreter as the heap on CPUs mends it: looks through the language, and programs that are held."""

from __future__ import annotations

from pathlib import Path

from ranks_of_functions import run_ranks

ON_RANKS = str(Path(__file__).with_name("interpreter_on_ranks.py"))


def test_only_the_first_launch_looks_through_the_language(tmp_path: Path) -> None:
    (found,) = run_ranks(ON_RANKS, "device_functions", 1, tmp_path)
    assert found["results"] == [True] * 3
    assert found["untouched"] == [True] * 4
    first, *later = found["looks"]
    assert first > 0 and later == [0, 0]


def test_operators_compute_what_triton_s_do(tmp_path: Path) -> None:
    (found,) = run_ranks(ON_RANKS, "operators_of_tensors", 1, tmp_path)
    assert found["others"] == 0 and found["refused"] > 500 and found["the same"] > 5_000, found


def test_loads_are_triton_s(tmp_path: Path) -> None:
    (found,) = run_ranks(ON_RANKS, "loads", 1, tmp_path)
    assert found["others"] == 0 and found["refused"] > 20 and found["the same"] > 100, found


def test_arguments_are_taken_as_triton_takes_them(tmp_path: Path) -> None:
    (found,) = run_ranks(ON_RANKS, "arguments", 1, tmp_path)
    assert len(found) == 2 * 18 and all(found)


def test_a_program_is_held_between_what_it_has_sent_and_its_first_poll(tmp_path: Path) -> None:
    (found,) = run_ranks(ON_RANKS, "held_polls", 1, tmp_path)
    # Each launch sends its number, doubled and one more; a peer that writes while it is held answers with that.
    assert found["before"] == [0, 0]
    assert found["held"] == [7, 7, 31, 31]
    assert found["after"] == [31, 31]
    assert found["seconds"] == [0.25, 1.25]


def test_a_poll_sees_no_half_of_a_word(tmp_path: Path) -> None:
    reader, _ = run_ranks(ON_RANKS, "words_polled", 2, tmp_path, argument=1000)
    assert reader == [0, 7, 0x1234]
