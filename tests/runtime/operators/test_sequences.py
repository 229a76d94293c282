"""Sequences of public calls, drawn at random and made by two ranks in lockstep: every result is right, nobody hangs.

What once failed is kept: by Hypothesis, in ``.hypothesis``, and below as an example. Longer: ``-m slow``.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from two_ranks import EVERYWHERE

FILE = str(Path(__file__).with_name("sequences_on_ranks.py"))
DEADLINE = 300.0

Sequence = list[dict[str, Any]]


class Pair:
    """Two ranks that play sequences; those that failed or hang are ended, and others are started in their place."""

    def __init__(self, folder: Path, gpu: str) -> None:
        self._folder, self._gpu, self._starts = folder, gpu, 0
        self._ranks: list[subprocess.Popen[bytes]] = []

    def play(self, sequence: Sequence) -> None:
        """Raises AssertionError that says what was wrong."""
        if not self._ranks:
            self._start()
        line = json.dumps(sequence).encode() + b"\n"
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(line)
            rank.stdin.flush()
        for number, rank in enumerate(self._ranks):
            wrong = json.loads(self._line(rank))
            assert not wrong, f"rank {number}: {wrong}"

    def _start(self) -> None:
        self._starts += 1
        here = self._folder / str(self._starts)
        here.mkdir()
        without_gpus = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        choice = {"": without_gpus, "one": {"CUDA_VISIBLE_DEVICES": "0"}, "each": {}}[self._gpu]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **choice}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(FILE).parent), *filter(None, sys.path)])
        for rank in range(2):
            command = [sys.executable, FILE, str(rank), "2", str(here)]
            with open(here / f"log{rank}", "wb") as log:
                self._ranks.append(
                    subprocess.Popen(
                        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0
                    )
                )
        for process in self._ranks:
            assert self._line(process) == b"ready\n"

    def _line(self, rank: subprocess.Popen[bytes]) -> bytes:
        """The next line that a rank says."""
        assert rank.stdout is not None
        if select.select([rank.stdout], [], [], DEADLINE)[0]:
            line: bytes = rank.stdout.readline()
            if line:
                return line
        logs = "\n".join((self._folder / str(self._starts) / f"log{number}").read_text()[-2000:] for number in range(2))
        self.end()
        raise AssertionError(f"a rank died, or has not answered within {DEADLINE:.0f} s:\n{logs}")

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.communicate()
        self._ranks.clear()


@pytest.fixture(scope="module", params=EVERYWHERE)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Shared by all sequences: to start ranks takes longer than to play one."""
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
    usual = {
        "times": 1,
        "seed": 0,
        "same": False,
        "out": False,
        "in_place": False,
        "stream": 0,
        "context": 0,
        "late": 1,
    }
    return {"do": "call", "problem": problem, "config": config, **usual, **more}


QUICK = settings(
    max_examples=8, deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip


@QUICK
@example([a_call(2, 2), RELEASE, a_call(2, 2, seed=1), RELEASE, a_call(2, 2, seed=2)])  # words of calls before
@example([a_call(1, 5, times=3), a_call(0, 4, context=1, times=3, in_place=True), a_call(1, 5, seed=3, same=True)])
@given(SEQUENCES)
def test_any_sequence_of_calls_is_right(pair: Pair, sequence: Sequence) -> None:
    pair.play(sequence)


@pytest.mark.slow
@settings(QUICK, max_examples=300)
@given(SEQUENCES)
def test_many_sequences_of_calls_are_right(pair: Pair, sequence: Sequence) -> None:
    pair.play(sequence)
