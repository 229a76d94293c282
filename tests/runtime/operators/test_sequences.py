"""Sequences of public calls, drawn at random and made by two ranks in lockstep: every result is right, nobody hangs.

What once failed is kept: by Hypothesis, in ``.hypothesis``, and below as an example. Longer: ``-m slow``.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ranks_of_functions import start_rank
from two_ranks import EVERYWHERE

from autotune.processes.python import Process, kill_all

DEADLINE = 1200.0
"""Seconds; only a real hang takes as long. A rank that dies is seen at once."""

Sequence = list[dict[str, Any]]


class Pair:
    """Two ranks that play sequences; those that failed or hang are ended, and others are started in their place."""

    def __init__(self, folder: Path, gpu: str) -> None:
        self._folder, self._gpu, self._starts = folder, gpu, 0
        self._ranks: list[tuple[Process, Connection]] = []

    def play(self, sequence: Sequence) -> None:
        if not self._ranks:
            self._start()
        for _, connection in self._ranks:
            connection.send(sequence)
        wrong = [self._answer(connection) for _, connection in self._ranks]
        assert not any(wrong), "; ".join(f"rank {number}: {words}" for number, words in enumerate(wrong) if words)

    def _start(self) -> None:
        self._starts += 1
        here = self._folder / str(self._starts)
        here.mkdir()
        for number in range(2):
            self._ranks.append(start_rank("sequences_on_ranks", here / f"log{number}", self._gpu))
            self._ranks[-1][1].send((number, 2, str(here)))
        assert [self._answer(connection) for _, connection in self._ranks] == ["ready", "ready"]

    def _answer(self, rank: Connection) -> str:
        try:
            if rank.poll(DEADLINE):
                answer: str = rank.recv()
                return answer
        except (EOFError, OSError):
            pass
        logs = "\n".join((self._folder / str(self._starts) / f"log{number}").read_text()[-2000:] for number in range(2))
        self.end()
        raise AssertionError(f"a rank died, or has not answered within {DEADLINE:.0f} s:\n{logs}")

    def end(self) -> None:
        kill_all([process for process, _ in self._ranks])
        for _, connection in self._ranks:
            connection.close()
        self._ranks.clear()


@pytest.fixture(scope="module", params=EVERYWHERE)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    started = Pair(tmp_path_factory.mktemp("pair"), request.param)
    yield started
    started.end()


CALL = st.fixed_dictionaries({
    "do": st.just("call"),
    "problem": st.integers(0, 5),
    "config": st.integers(0, 9),
    "times": st.integers(1, 4),
    "seed": st.integers(0, 3),
    "same": st.booleans(),
    "out": st.booleans(),
    "in_place": st.booleans(),
    "stream": st.integers(0, 2),
    "context": st.integers(0, 1),
    "late": st.integers(0, 2),
})  # fmt: skip
OTHER = st.fixed_dictionaries({
    "do": st.sampled_from(["release", "close", "check"]), "context": st.integers(0, 1), "late": st.integers(0, 2)
})  # fmt: skip
SEQUENCES = st.lists(st.one_of(CALL, CALL, OTHER), min_size=1, max_size=10)

RELEASE = {"do": "release", "context": 0, "late": 2}


def a_call(problem: int, config: int, **more: Any) -> dict[str, Any]:
    usual = {"times": 1, "seed": 0, "stream": 0, "context": 0, "late": 1}
    flags = dict.fromkeys(("same", "out", "in_place"), False)
    return {"do": "call", "problem": problem, "config": config, **usual, **flags, **more}


QUICK = settings(
    max_examples=4, deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip


@QUICK
@example([a_call(2, 2), RELEASE, a_call(2, 2, seed=1), RELEASE, a_call(2, 2, seed=2)])  # words of calls before
@example([a_call(1, 5, times=3), a_call(0, 4, context=1, times=3, in_place=True), a_call(1, 5, seed=3, same=True)])
@given(SEQUENCES)
def test_any_sequence_of_calls_is_right(pair: Pair, sequence: Sequence) -> None:
    pair.play(sequence)


@pytest.mark.slow
@settings(QUICK, max_examples=150)
@given(SEQUENCES)
def test_many_sequences_of_calls_are_right(pair: Pair, sequence: Sequence) -> None:
    pair.play(sequence)
