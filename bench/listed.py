"""The problems of docs/results.md, which ``outside.py`` measures from outside, and ``versions.py`` by two versions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """A workload, the sizes that vary, and what all of them share. Sizes are totals over the ranks, tokens of one."""

    name: str
    workload: str
    fixed: Mapping[str, Any]
    varied: Mapping[str, tuple[int, ...]]

    def shared(self, toy: bool = False) -> dict[str, Any]:
        """The fields that all share; of a toy the interpreter runs a call in a second or so."""
        if not toy:
            return dict(self.fixed)
        dtype = self.fixed["dtype"].replace("bf16", "fp32")
        return {**{name: TOY.get(name, value) for name, value in self.fixed.items()}, "dtype": dtype}

    def sizes(self, toy: bool = False) -> list[dict[str, int]]:
        varied = {name: (TOY[name],) for name in self.varied} if toy else self.varied
        return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]

    def command(self, fields: Mapping[str, Any]) -> list[str]:
        return [self.workload.replace("_", "-"), *options(fields)]

    def problems(self, world_size: int, toy: bool = False) -> Iterator[dict[str, Any]]:
        """All fields of every problem, but for those that keep their defaults."""
        for sizes in self.sizes(toy):
            yield {**self.shared(toy), **sizes, "world_size": world_size}


def options(fields: Mapping[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]


AG, RS, AR, FD = "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce", "flash_decode"
ARN, GARN = "all_reduce_norm", "gemm_all_reduce_norm"
DISPATCH, COMBINE = "moe_dispatch_gemm", "moe_gemm_combine"
HEADS = {"q_heads": 96, "kv_heads": 12, "head_dim": 128, "dtype": "fp16"}
TOY: Mapping[str, int] = {
    "m": 8, "n": 64, "k": 32, "batch": 1, "q_heads": 4, "kv_heads": 2, "head_dim": 64, "kv_len": 16,
    "tokens": 4, "hidden": 32, "experts": 4, "top_k": 2, "width": 32,
}  # fmt: skip

FP8 = {"dtype": "fp8", "scales": "row", "b_order": "nk"}
EXPERTS = {"hidden": 7168, "experts": 64, "top_k": 8, "width": 2048, "dtype": "bf16"}
UP, DOWN = {"n": 28672, "k": 8192}, {"n": 8192, "k": 28672}
ROWS, BF16 = {"layout": "rows"}, {"dtype": "bf16"}
TOKENS = {"tokens": (1, 16, 128, 1024, 4096)}

LIST = (
    Sizes("ag-rows", AG, {**UP, **ROWS, **BF16}, {"m": (16, 64, 256, 1024, 4096, 8192)}),
    Sizes("ag-fp8", AG, {**UP, **ROWS, **FP8}, {"m": (16, 256, 1024, 4096, 8192)}),
    Sizes("ag-fp8-7168", AG, {**UP, "n": 7168, **ROWS, **FP8}, {"m": (4096,)}),
    Sizes("ag-swiglu", AG, {**UP, **ROWS, **BF16, "epilogue": "swiglu"}, {"m": (1024, 8192)}),
    Sizes("ag-k", AG, {**UP, "n": 14336, "layout": "k", "dtype": "fp16"}, {"m": (1, 32, 1024)}),
    Sizes("rs", RS, {**DOWN, **BF16}, {"m": (512, 2048, 4096, 8192)}),
    Sizes("rs-fp8", RS, {**DOWN, **FP8}, {"m": (512, 2048, 8192)}),
    Sizes("ar-28672", AR, {**DOWN, **BF16}, {"m": (1, 8, 64, 128, 512, 2048, 8192)}),
    Sizes("ar-8192", AR, {**DOWN, "k": 8192, **BF16}, {"m": (1, 64)}),
    Sizes("arn", ARN, {"n": 8192, **BF16}, {"m": (16, 1024)}),
    Sizes("garn-28672", GARN, {**DOWN, **BF16}, {"m": (1, 16, 64)}),
    Sizes("fd", FD, {**HEADS, "page_size": 1, "lengths": "even"}, {"batch": (1, 8), "kv_len": (8192, 65536)}),
    Sizes("moe-dispatch", DISPATCH, EXPERTS, TOKENS),
    Sizes("moe-combine", COMBINE, EXPERTS, TOKENS),
)

REPEATED = (
    Sizes("rs-512", RS, {**DOWN, **BF16}, {"m": (512,)}),
    Sizes("ag-64", AG, {**UP, **BF16}, {"m": (64,)}),
)
"""Problems whose search is repeated with other seeds."""


def entry(name: str) -> Sizes:
    return {each.name: each for each in (*LIST, *REPEATED)}[name]


def selected(words: list[str] | None, world_size: int, toy: bool = False) -> list[tuple[Sizes, dict[str, Any]]]:
    """Entries with their problems, of which ``words`` choose: ``rs``, or ``fd/batch=1`` for some of an entry's.

    All for no words. Raises ValueError where a word chooses nothing.
    """
    every = [(each, problem) for each in LIST for problem in each.problems(world_size, toy)]
    if not words:
        return every
    chosen = []
    for word in words:
        name, _, conditions = word.partition("/")
        wanted = [pair.partition("=")[::2] for pair in conditions.split(",") if pair]
        found = [(each, problem) for each, problem in every if each.name == name
                 and all(str(problem.get(field)) == value for field, value in wanted)]  # fmt: skip
        if not found:
            names = ", ".join(each.name for each in LIST)
            raise ValueError(
                f"--only {word} chooses nothing; write one of {names}, or NAME/FIELD=VALUE,… for some of it"
            )
        chosen += found
    return chosen
