"""The hash of a decorated kernel's source, by which its results are known: of helpers, constants, heuristics too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.decorator.key import source_hash

HELPERS = """
import triton

@triton.jit
def helper(x):
    return x + AMOUNT
"""

CALLER = """
import helpers_of_a_test
import triton
import triton.language as tl
from helpers_of_a_test import helper

@triton.jit
def by_name(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, helper(tl.load(x + at, mask=at < n)), mask=at < n)

@triton.jit
def by_module(out, x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, helpers_of_a_test.helper(tl.load(x + at, mask=at < n)), mask=at < n)
"""


def load(folder: Path, name: str, text: str) -> Any:
    """A module of this text, in place of one of the same name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("interpret", ["1", "0"])
@pytest.mark.parametrize("name", ["by_name", "by_module"])
def test_helpers_are_part_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, interpret: str
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    hashes = []
    for number, amount in enumerate(("1", "2", "1")):
        load(tmp_path / f"{number} helpers", "helpers_of_a_test", HELPERS.replace("AMOUNT", amount))
        hashes.append(source_hash(getattr(load(tmp_path / str(number), "caller_of_a_test", CALLER), name)))
    assert hashes[0] == hashes[2] != hashes[1]


CONSTANT = """
import triton
import triton.language as tl

AMOUNT

@triton.jit
def inner(x):
    return x + FACTOR

@triton.jit
def kernel(out, x, n, BLOCK: tl.constexpr):
    tl.store(out, inner(tl.load(x)))
"""


@pytest.mark.parametrize("interpret", ["1", "0"])
@pytest.mark.parametrize("amount", ["FACTOR = tl.constexpr({})", "FACTOR: tl.constexpr = {}"])
def test_constants_are_part_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: str, interpret: str
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    hashes = []
    for number, value in enumerate((2, 3, 2)):
        text = CONSTANT.replace("AMOUNT", amount.format(value))
        hashes.append(source_hash(load(tmp_path / str(number), "constant_of_a_test", text).kernel))
    assert hashes[0] == hashes[2] != hashes[1]


HEURISTIC = """
import functools
import helpers_of_a_test
import triton
import triton.language as tl
from heuristic_of_a_test.beside import further

FACTOR, FIRST, SECOND, REST, WORD = 11, 12, 16, 17, "18"

def even(named):
    sizes = (FACTOR, helpers_of_a_test.COUNT, helpers_of_a_test.other(), further(), int(WORD))
    return all(named["n"] % size == REST for size in sizes)

def pick(first, named, second):
    return first + second

of = functools.partial(pick, FIRST, second=SECOND)

@triton.heuristics({"EVEN": lambda named: even(named) and REST > 10, "OF": of})
@triton.jit
def kernel(out, x, n, EVEN: tl.constexpr, OF: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out, tl.load(x))
"""

BESIDE = """
COUNT, SIZE = 13, 14
def other():
    return SIZE + 15
"""

FURTHER = """
def further():
    return 19
"""
"""In another folder of the heuristic's own package."""


@pytest.mark.parametrize("number", ["10", "11", "12", "13", "14", "15", "16", "17", "18", "19"])
def test_what_heuristics_read_and_call_is_part_of_the_source(tmp_path: Path, number: str) -> None:
    hashes = []
    for at, changed in enumerate((number, "20", number)):
        load(tmp_path / str(at), "helpers_of_a_test", BESIDE.replace(number, changed))
        load(tmp_path / str(at) / "deeper", "heuristic_of_a_test.beside", FURTHER.replace(number, changed))
        caller = load(tmp_path / str(at), "heuristic_of_a_test", HEURISTIC.replace(number, changed))
        hashes.append(source_hash(caller.kernel))
    assert hashes[0] == hashes[2] != hashes[1]
