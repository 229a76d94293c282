"""The hash of a decorated kernel's source, by which its results are known: of helpers, constants, heuristics too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.decorator.key import source_hash

ELSEWHERE = """
import triton

@triton.jit
def by_name(x):
    return x + 20

@triton.jit
def by_module(x):
    return x + 21
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

KERNEL = """
import functools
import beside_of_a_test
import elsewhere_of_a_test
import triton
import triton.language as tl
from elsewhere_of_a_test import by_name
from kernel_of_a_test.beside import further

FACTOR, FIRST, SECOND, REST, WORD = 11, 12, 16, 17, "18"
CONSTANT = tl.constexpr(22)
ANNOTATED: tl.constexpr = 23

def even(named):
    sizes = (FACTOR, beside_of_a_test.COUNT, beside_of_a_test.other(), further(), int(WORD))
    return all(named["n"] % size == REST for size in sizes)

def pick(first, named, second):
    return first + second

of = functools.partial(pick, FIRST, second=SECOND)

@triton.jit
def inner(x):
    return x + CONSTANT + ANNOTATED

@triton.heuristics({"EVEN": lambda named: even(named) and REST > 10, "OF": of})
@triton.jit
def kernel(out, x, n, EVEN: tl.constexpr, OF: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out, inner(by_name(elsewhere_of_a_test.by_module(tl.load(x)))))
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
@pytest.mark.parametrize("number", range(10, 24))
def test_what_a_kernel_and_its_heuristics_read_and_call_is_part_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, interpret: str
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    hashes = []
    for at, changed in enumerate((number, 90, number)):
        here, texts = tmp_path / str(at), (ELSEWHERE, BESIDE, FURTHER, KERNEL)
        elsewhere, beside, further, kernel = (text.replace(str(number), str(changed)) for text in texts)
        load(tmp_path / f"{at} elsewhere", "elsewhere_of_a_test", elsewhere)
        load(here, "beside_of_a_test", beside)
        load(here / "deeper", "kernel_of_a_test.beside", further)
        hashes.append(source_hash(load(here, "kernel_of_a_test", kernel).kernel))
    assert hashes[0] == hashes[2] != hashes[1]
