"""Configs by size: ``{"1": {"BLOCK_SIZE_M": 16, …}, "64": …}``, as vLLM and SGLang keep those of fused MoE kernels.

The file has no latencies and no provenance: it is for a program that takes a config by one size and asks no more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.config import Value
from autotune.db import Entry
from autotune.errors import InputError
from autotune.files import text_of
from autotune.results.repeat import NOTHING
from autotune.search_spaces import COMPILER_OPTIONS
from autotune.text import json_text, named_once, visible

TRITON_VERSION = "triton_version"
"""The one name beside the sizes; vLLM writes it and does not read it."""

DEFAULTS: dict[str, Value] = {"mode": "kernel", "num_ctas": 1}
"""Values that every launch has anyway."""


class ConfigsBySize(Mapping[int, dict[str, Value]]):
    """Configs by size, the smallest first."""

    def __init__(self, configs: Mapping[int, dict[str, Value]], place: str = "") -> None:
        """``place`` is named in messages. Raises InputError for none."""
        if not configs:
            raise InputError(f"{place or 'configs by size'}: no sizes")
        self._configs = dict(sorted(configs.items()))

    def nearest(self, size: int) -> dict[str, Value]:
        """The config of the nearest size, the smaller of two: a decorated kernel's ``default``."""
        return dict(self._configs[min(self._configs, key=lambda each: abs(each - size))])

    def listed(self) -> list[Any]:
        """The distinct configs as ``triton.Config``: a decorated kernel's ``configs``."""
        import triton

        distinct = {json.dumps(config, sort_keys=True): config for config in self._configs.values()}
        return [
            triton.Config(
                {name: value for name, value in config.items() if name not in COMPILER_OPTIONS},
                **{name: value for name, value in config.items() if name in COMPILER_OPTIONS},
            )
            for config in distinct.values()
        ]

    def __getitem__(self, size: int) -> dict[str, Value]:
        return self._configs[size]

    def __iter__(self) -> Iterator[int]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)


def configs_by_size(file: str | os.PathLike[str]) -> ConfigsBySize:
    """Read such a file, vLLM's or ours: ``configs=read.listed()``, or ``default=lambda call: read.nearest(call.M)``.

    Raises InputError that names the size and the value that are wrong.
    """
    try:
        values = json.loads(text_of(file), object_pairs_hook=named_once)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{file}: a JSON {type(values).__name__}; expected an object of configs by size")
    values.pop(TRITON_VERSION, None)
    return ConfigsBySize({_size(file, size): _config(file, size, found) for size, found in values.items()}, str(file))


def to_sizes(entries: Sequence[Entry], by: str | None = None) -> tuple[str, int]:
    """The file's text, and the number of entries that are not of the newest one's sources, space and versions.

    ``by`` is the size; by default the integer in which the entries differ. Raises InputError if they differ in more,
    or are of several workloads.
    """
    names = sorted({entry.key.workload for entry in entries})
    if len(names) > 1:
        told = visible(", ".join(names)).replace("_", "-")
        raise InputError(f"such a file is of one workload: tune export NAME --format vllm; names: {told}")
    current = [entry for entry in entries if entry.provenance == entries[0].provenance]
    field = by or _varying(current)
    by_size: dict[int, Entry] = {}
    for entry in current:
        size = entry.key.fields.get(field)
        if isinstance(size, bool) or not isinstance(size, int):
            raise InputError(f"--by {field}: no integer field of {entry.key.workload}: {', '.join(entry.key.fields)}")
        by_size.setdefault(size, entry)
        others = entry.key.differences(current[0].key).keys() - {field}
        if others:
            chosen = [name for name in sorted(others) if name in (*entry.key.fields, "device", "regime")]
            advice = f"choose with --{chosen[0]} VALUE" if chosen else "export them from databases of their own"
            raise InputError(f"the entries differ in {', '.join(sorted(others))} too; {advice}")
    configs = {str(size): _plain(by_size[size]) for size in sorted(by_size)}
    return json_text({TRITON_VERSION: current[0].provenance.triton, **configs}) + "\n", len(entries) - len(current)


def _varying(entries: Sequence[Entry]) -> str:
    problems = [entry.key.fields for entry in entries]
    integers = [n for n, v in problems[0].items() if isinstance(v, int) and not isinstance(v, bool)]
    varying = [name for name in integers if len({json.dumps(each.get(name)) for each in problems}) > 1]
    found = varying or [name for name in integers if len(integers) == 1 or name in ("m", "M")]
    if len(found) != 1:
        raise InputError(f"by which size? name one with --by: {', '.join(found or integers) or 'there is no integer'}")
    return found[0]


def _plain(entry: Entry) -> dict[str, Value]:
    config = entry.winner.config
    return {n: v for n, v in config.items() if v != NOTHING and (n not in DEFAULTS or v != DEFAULTS[n])}


def _size(file: object, size: str) -> int:
    if not (size.isascii() and size.isdigit() and len(size) < 20 and 0 < int(size) < 2**63):
        raise InputError(f"{file}: size {size[:60]!r} is not a positive integer")
    return int(size)


def _config(file: object, size: str, values: Any) -> dict[str, Value]:
    if not isinstance(values, dict) or not values:
        raise InputError(f"{file}: size {size}: expected an object of parameters")
    for name, value in values.items():
        if not isinstance(value, str | int):
            raise InputError(f"{file}: size {size}: {name} is {json.dumps(value)[:60]}; allowed: text, integers, flags")
    return values
