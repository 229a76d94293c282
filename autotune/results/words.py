"""A config in words: "push: each rank sends …; 12 programs move data, 256 rows per signal, tile 128×256×64"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.config import Config, Value
from autotune.db import CacheKey
from autotune.results.figures import plain
from autotune.text import counted
from autotune.workloads.faces import space_of
from autotune.workloads.user_files import BUILT_IN


@dataclass(frozen=True)
class Phrase:
    """The words for one dimension or several together; empty text for a value that needs none."""

    names: tuple[str, ...]
    say: Callable[..., str]


def _of(values: Mapping[Value, str]) -> Callable[[Value], str]:
    return lambda value: values.get(value, str(value))


def _counted(word: str) -> Callable[[int], str]:
    return lambda count: counted(count, word)


MODES = {
    "bsp": "the library's kernels one after the other (BSP)",
    "own_collective": "our collective and the library's GEMM",
    "pull": "pull: the GEMM reads the peers' memory itself",
    "pull_staged": "pull, staged: some programs fetch, the GEMM waits for what it needs",
    "push": "push: each rank sends, the receivers' tiles wait for what they need",
    "copy_engine": "copy engines move the data beside the library's GEMM",
    "one_shot": "one shot: each rank gets all parts and sums them",
    "iris_all_gather": "our all-gather between two kernels",
    "fine_grained_wait": "one kernel waits for each part of the other",
    "fused": "fused: one kernel attends, sends and combines",
}

GEMM = (
    Phrase(("block_m", "block_n", "block_k"), lambda m, n, k: f"tile {m}×{n}×{k}"),
    Phrase(("num_stages",), _counted("pipeline stage")),
    Phrase(("num_warps",), _counted("warp")),
    Phrase(("loads",), _of({"tma": "TMA loads", "pointer": "pointer loads"})),
    Phrase(("group_m",), lambda n: f"swizzled by {n} rows of tiles" if n != 1 else ""),
    Phrase(("split_k",), lambda n: f"split-K by {n}" if n != 1 else ""),
    Phrase(("schedule",), _of({"tile": "one program per tile", "persistent": "persistent programs",
                               "flattened": "persistent programs with one flattened loop"})),
)  # fmt: skip
LAUNCH = Phrase(("launch",), _of({"graph": "launched as a CUDA graph", "eager": "launched one by one"}))
EXCHANGE = Phrase(("exchange",), _of({"one_shot": "one-shot exchange", "two_shot": "two-shot exchange"}))
STREAMS = Phrase(("gemm_streams",), lambda n: f"GEMMs on {_counted('stream')(n)}")
PROTOCOL = Phrase(
    ("protocol",),
    _of({"signal": "data, then a signal", "ll": "LL words of data and flag", "sentinel": "sentinel words: data alone"}),
)
PHRASES: dict[str, tuple[Phrase, ...]] = {
    "all_gather_gemm": (
        LAUNCH,
        Phrase(("comm_programs",), lambda n: f"{_counted('program')(n)} move{'s' * (n == 1)} data"),
        Phrase(("transfer_rows",), lambda n: f"{_counted('row')(n)} per signal"),
        Phrase(("copies",), _of({"pulled": "copies from the peers", "pushed": "copies to the peers"})),
        Phrase(("chunk_sizes",), _of({"even": "even chunks", "shrinking": "chunks that shrink"})),
        Phrase(("copy_kib",), lambda n: f"{n} KiB per step"),
        Phrase(("peer_order",), _of({"rotate": "one peer after the other", "fanout": "all peers at each step"})),
        PROTOCOL,
        Phrase(
            ("push_site",),
            _of(
                {
                    "same_launch": "in the GEMM's launch",
                    "same_stream": "in a launch before the GEMM",
                    "side_stream": "on a stream beside the GEMM",
                }
            ),
        ),
        Phrase(("head_start",), lambda n: f"its programs join the GEMM after {_counted('tile')(n)}" if n else ""),
        Phrase(("k_chunks",), lambda n: f"K in {n} chunks" if n != 1 else ""),
        *GEMM,
        Phrase(("preload_b",), lambda yes: "B loaded before the wait" if yes else ""),
        STREAMS,
    ),
    "flash_decode": (
        LAUNCH,
        Phrase(("kv_splits",), lambda n: f"{_counted('KV split')(n)}"),
        Phrase(("block_n",), lambda n: f"{n} KV tokens per step"),
        Phrase(("heads_per_program",), lambda n: f"{_counted('query head')(n)} per program"),
        Phrase(("num_stages",), _counted("pipeline stage")),
        Phrase(("num_warps",), _counted("warp")),
        Phrase(("transfer_heads",), lambda n: f"{_counted('head')(n)} per signal"),
        PROTOCOL,
        Phrase(("wire",), _of({"fp32": "partial results in fp32", "rounded": "partial results rounded"})),
        EXCHANGE,
        Phrase(
            ("reducer",),
            _of(
                {
                    "last": "the last split reduces",
                    "trailing": "trailing programs reduce",
                    "kernel": "a kernel of its own reduces",
                }
            ),
        ),
    ),
}
"""Phrases of the workloads whose dimensions do not say them; a dimension without one is told by its name."""


def has_words(key: CacheKey) -> bool:
    """True for a built-in workload: of others the values would only be listed once more."""
    return key.workload in BUILT_IN and not key.is_kernel


def in_words(workload: str, config: Config) -> str:
    """One sentence. Kernels that are not built in have their values named."""
    values = dict(config)
    if workload in BUILT_IN and workload not in PHRASES:
        declared = space_of(workload).dimensions
        told = {name: declared[name].told(config) for name in declared if values.pop(name, None) is not None}
        head, parts = told.pop("mode", ""), [*told.values()]
    else:
        mode = values.pop("mode", None)
        built_in = MODES.get(str(mode)) if workload in PHRASES else None
        head, parts = "" if mode is None else built_in or f"mode {plain(mode)}", []
        for phrase in PHRASES.get(workload, ()):
            if all(name in values for name in phrase.names):
                parts.append(phrase.say(*(values.pop(name) for name in phrase.names)))
    parts += [f"{plain(name)} {plain(value)}" for name, value in values.items()]
    text = "; ".join(filter(None, [head, ", ".join(filter(None, parts))]))
    return f"{text}." if text else "No dimensions."
