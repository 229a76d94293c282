"""Names of earlier versions: read in today's words, and never given to something else."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.config import Config
from autotune.machine import H100
from autotune.search_spaces import Space, choices, flags, numbers
from autotune.search_spaces.renamed import Renamed
from autotune.workloads import workload

SPACE = Space(
    choices("mode", "bsp", "push"),
    numbers("transfer_rows", 16, 32, modes=("push",)),
    choices("protocol", "signal", "ll", modes=("push",)),
    flags("prefetch", modes=("push",), default=False),
    renamed=Renamed({"unit_rows": "transfer_rows", "proto": "protocol"}, {"protocol": {"words": "ll"}}),
)
OLD = Config({"mode": "push", "unit_rows": 32, "proto": "words"})
TODAY = Config({"mode": "push", "transfer_rows": 32, "protocol": "ll", "prefetch": False})


def test_a_value_alone_may_have_been_renamed() -> None:
    """And a word is one of its own dimension: another one may have the same."""
    old = TODAY.replace(protocol="words")
    assert SPACE.current(old) == TODAY
    strange = Config({"mode": "words", "transfer_rows": 32})
    assert SPACE.current(strange) == strange


def test_an_old_config_gets_todays_names_values_and_defaults() -> None:
    assert SPACE.current(OLD) == TODAY
    assert SPACE.current(TODAY) == TODAY
    assert SPACE.current(TODAY.replace(prefetch=True)) == TODAY.replace(prefetch=True)
    assert SPACE.current(Config({"mode": "bsp"})) == Config({"mode": "bsp"}), "it does not have the new dimension"


def test_what_is_not_known_stays_as_it_is() -> None:
    for strange in (Config({}), Config({"mode": "other", "x": 1}), Config({"mode": 3, "protocol": "smoke"})):
        assert SPACE.current(strange) == strange


def test_a_space_with_fewer_values_reads_old_names_too() -> None:
    few = SPACE.restricted({"transfer_rows": [32], "prefetch": [False]})
    assert few.current(OLD) == TODAY
    nothing: Any = None  # no constraint looks at it
    assert SPACE.narrowed(nothing, nothing).current(OLD) == TODAY
    assert SPACE.restricted({"prefetch": [True]}).dimensions["prefetch"].default is None


def test_an_old_name_cannot_be_used_again() -> None:
    for renamed in (Renamed({"tile": "block"}), Renamed({}, {"protocol": {"ll": "signal"}})):
        with pytest.raises(ValueError, match="in use again: .*(tile|protocol)"):
            Space(choices("mode", "a"), numbers("tile", 1), choices("protocol", "ll", "signal"), renamed=renamed)


def test_a_default_is_one_of_the_values() -> None:
    with pytest.raises(ValueError, match="dimension tile: the default 3 is none of"):
        numbers("tile", 1, 2, default=3)


OLD_WINNERS = {
    "all_gather_gemm": ({"m": 4096, "n": 28672, "k": 8192}, {"transfer_rows": "unit_rows"}, {}),
    "gemm_reduce_scatter": ({"m": 4096, "n": 8192, "k": 28672}, {"transfer_tiles": "unit_tiles"}, {}),
    "gemm_all_reduce": (
        {"m": 16, "n": 8192, "k": 28672},
        {"programs_per_unit": "residents"},
        {"protocol": {"signal": "flag", "ll": "packed"}},
    ),
    "flash_decode": (
        {"batch": 4, "q_heads": 96, "kv_heads": 12, "head_dim": 128, "kv_len": 8192, "dtype": "fp16"},
        {"transfer_heads": "flag_heads", "exchange": "combiner"},
        {"protocol": {"signal": "flags", "ll": "words"}, "exchange": {"one_shot": "every_rank", "two_shot": "owner"}},
    ),
}
"""By workload: a problem, what dimensions were called in version 0.1, and values."""


@pytest.mark.parametrize("name", OLD_WINNERS)
def test_built_in_configs_of_the_first_version_are_read(name: str) -> None:
    found = workload(name)
    sizes, names, words = OLD_WINNERS[name]
    problem = found.problem_type(**sizes, world_size=8)
    configs = [found.default_config(problem, H100), *found.first_configs(problem, H100)]
    for config in configs:
        old = Config({names.get(key, key): words.get(key, {}).get(str(v), v) for key, v in config.items()})
        assert found.space.current(old) == config
        assert old == config or found.space.violation(old, problem, H100) is not None
    written = {value for config in configs for value in config.values()}
    assert not words or {"signal", "ll"} <= written, "both protocols are among them"
