"""A config in words: "push: each rank sends …; 12 programs move data, 256 rows per signal, tile 128×256×64"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.config import Config, Value
from autotune.db import CacheKey
from autotune.report.figures import plain
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
    "library_collective": "the library's all-reduce, then one of our kernels",
    "own_collective": "our collective and the library's GEMM",
    "unfused": "our collective and our GEMM, one after the other",
    "pull": "pull: the GEMM reads the peers' memory itself",
    "push": "push: each rank sends, the receivers' tiles wait for what they need",
    "one_shot": "one shot: each rank gets all parts and sums them",
    "two_shot": "two shots: the owner sums, then sends to all",
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
GROUPED = (
    *GEMM[:-2],
    Phrase(("swap_ab",), lambda swapped: "tiles are computed transposed" if swapped else ""),
    Phrase(("programs_per_unit",), lambda n: f"{_counted('program')(n)} per compute unit"),
)
"""A grouped GEMM, which neither splits K nor has another schedule."""

NORM = (
    Phrase(("norm_rows",), lambda n: f"{_counted('row')(n)} per norming program"),
    Phrase(("norm_warps",), lambda n: f"of {_counted('warp')(n)}"),
)
SENDERS = Phrase(("senders",), lambda n: f"{_counted('program')(n)} per block only send{'s' * (n == 1)}" if n else "")
LAUNCH = Phrase(("launch",), _of({"graph": "launched as a CUDA graph", "eager": "launched one by one"}))
EXCHANGE = Phrase(("exchange",), _of({"one_shot": "one-shot exchange", "two_shot": "two-shot exchange"}))
SUM = Phrase(("sum_block", "sum_warps"), lambda n, warps: f"summed in blocks of {n} by {_counted('warp')(warps)}")
PROTOCOL = Phrase(
    ("protocol",),
    _of({"signal": "data, then a signal", "ll": "LL words of data and flag", "sentinel": "sentinel words: data alone"}),
)
COMBINED = (
    Phrase(("exchange",), _of({"reduce_scatter": "every token's sums", "all_to_all": "the host reads counts"})),
    PROTOCOL,
    Phrase(("peer_order",), _of({"rotate": "one peer after the other", "interleaved": "peers in turn"})),
)
SUMS = (
    Phrase(("transfer_tokens",), lambda n: f"{_counted('token')(n)} per signal"),
    Phrase(("split",), lambda n: f"each block shared by {n} programs" if n != 1 else ""),
    Phrase(("copy_kib",), lambda n: f"{n} KiB per step"),
)

DISPATCH = (
    Phrase(("exchange",), _of({"all_gather": "every token to every rank", "all_to_all": "the host reads counts"})),
    PROTOCOL,
    Phrase(("comm_programs",), lambda n: f"{_counted('program')(n)} move{'s' * (n == 1)} tokens"),
    Phrase(("transfer_tokens",), lambda n: f"{_counted('token')(n)} per signal"),
    Phrase(("split",), lambda n: f"each block shared by {n} programs" if n != 1 else ""),
    Phrase(("copy_kib",), lambda n: f"{n} KiB per step"),
)

PHRASES: dict[str, tuple[Phrase, ...]] = {
    "gemm_all_reduce": (
        LAUNCH,
        PROTOCOL,
        Phrase(("combine",), _of({"sender": "the sender sums", "separate": "separate programs sum"})),
        EXCHANGE,
        Phrase(("transfer_rows",), lambda n: f"{_counted('row')(n)} per GEMM"),
        SUM,
        Phrase(("programs_per_unit",), lambda n: f"{_counted('program')(n)} per compute unit"),
        *GEMM,
    ),
    "all_reduce_norm": (
        LAUNCH,
        PROTOCOL,
        *NORM,
        SENDERS,
    ),
    "gemm_all_reduce_norm": (
        LAUNCH,
        EXCHANGE,
        PROTOCOL,
        Phrase(("combine",), _of({"sender": "the sender sums", "separate": "separate programs sum"})),
        Phrase(("programs_per_unit",), lambda n: f"{_counted('program')(n)} per compute unit"),
        *GEMM,
        *NORM,
        SENDERS,
    ),
    "moe_dispatch": (
        LAUNCH,
        *DISPATCH,
        Phrase(("layout_rows",), lambda n: f"{_counted('row')(n)} laid out at once"),
        Phrase(("num_warps",), _counted("warp")),
    ),
    "moe_combine": (
        LAUNCH,
        *COMBINED,
        Phrase(("comm_programs",), lambda n: f"{_counted('program')(n)} send{'s' * (n == 1)}"),
        *SUMS,
        Phrase(("num_warps",), _counted("warp")),
    ),
    "moe_gemm_combine": (
        LAUNCH,
        *COMBINED,
        Phrase(("comm_programs",), lambda n: f"{_counted('program')(n)} send{'s' * (n == 1)}"),
        Phrase(("combine",), _of({"push": "sums are pushed", "pull": "sums are pulled"})),
        Phrase(("sum_warps",), _counted("warp")),
        Phrase(("column_groups",), lambda n: f"{n} groups of columns, one after the other" if n != 1 else ""),
        *SUMS,
        *GROUPED,
    ),
    "moe_dispatch_gemm": (
        LAUNCH,
        *DISPATCH,
        Phrase(("layout_rows",), lambda n: f"{_counted('row')(n)} laid out at once"),
        Phrase(("layout_warps",), _counted("warp")),
        Phrase(("tile_order",), _of({"experts": "", "own_first": "tiles of own tokens first"})),
        *GROUPED,
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
