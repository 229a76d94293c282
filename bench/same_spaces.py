"""Are two checkouts' workloads the same: spaces, what constraints refuse, defaults, plans, predictions, tolerances?

    python bench/same_spaces.py --against ../other-checkout gemm_reduce_scatter

No device is needed: plans are made from tensors without memory. Of constraints and dimensions the order may differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autotune.config import Config
from autotune.errors import InvalidProblem
from autotune.machine import H100, INTERPRETED, MI300X, MI350X, Machine
from autotune.outcome import Regime
from autotune.workloads import names, workload

MACHINES = {"H100": H100, "MI300X": MI300X, "MI350X": MI350X, "interpreter": INTERPRETED}

VARIED: tuple[dict[str, Any], ...] = (
    {}, {"m": 16}, {"m": 192, "bias": True}, {"m": 2048, "residual": True}, {"dtype": "fp32"}, {"tokens": 24},
    {"dtype": "fp8", "scales": "row", "b_order": "nk"}, {"dtype": "fp8", "scales": "block", "b_order": "nk"},
    {"dtype": "fp8_fnuz", "scales": "tensor", "b_order": "nk"}, {"wire": "fp8"}, {"epilogue": "swiglu"},
    {"m": 64, "b_order": "nk"}, {"kv_len": 4096, "batch": 1}, {"layout": "k"},
)  # fmt: skip
"""Fields of each workload's default problem that are changed, where it has them all."""


def problems(found: Any, machine: Machine) -> Iterator[Any]:
    for ranks in (1, 2, 8):
        default = found.default_problem(machine, ranks)
        for fields in VARIED:
            if fields.keys() <= vars(default).keys():
                try:
                    yield type(default)(**{**vars(default), **fields})
                except InvalidProblem:
                    continue


def samples(space: Any, count: int) -> Iterator[Config]:
    """Random configs of each mode in turn, the same whatever the order of the dimensions."""
    for number in range(count):
        for mode in space.modes:
            rng = random.Random(f"{mode} {number}")
            drawn = {d.name: rng.choice(d.values) for d in sorted(space.dimensions_of(mode), key=lambda d: d.name)}
            yield Config({**drawn, "mode": mode})


def normal(value: Any) -> Any:
    """A launch's argument without addresses."""
    if hasattr(value, "block_shape"):
        return ["descriptor", normal(value.base), list(value.shape), list(value.strides), list(value.block_shape)]
    if hasattr(value, "untyped_storage"):
        return [list(value.shape), list(value.stride()), str(value.dtype)]
    return repr(value) if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def plan(found: Any, problem: Any, config: Config, machine: Machine) -> list[Any]:
    return [
        [str(launch.kernel.__name__), launch.programs, launch.resident, dict(launch.options),
         {name: normal(value) for name, value in sorted(launch.arguments.items())}]
        for launch in found.kernels_of(problem).offline(problem, config, machine)
    ]  # fmt: skip


def refused(space: Any, config: Config, problem: Any, machine: Machine) -> list[str]:
    """Every constraint that the config breaks: the first one depends on their order."""
    task, mode = SimpleNamespace(problem=problem, machine=machine), str(config["mode"])
    return sorted(
        f"{c.name}: {c.reason}" for c in space.constraints
        if c.applies_to(mode, frozenset(config)) and not c.allows(task, **{name: config[name] for name in c.uses})
    )  # fmt: skip


def declared(space: Any) -> dict[str, Any]:
    modes = {mode: frozenset(d.name for d in space.dimensions_of(mode)) for mode in space.modes}
    return {
        "dimensions": {
            d.name: [list(d.values), [mode for mode in space.modes if d.belongs_to(mode)], d.ordinal, d.help]
            for d in space.dimensions.values()
        },
        "constraints": sorted(
            [c.name, sorted(c.uses), c.reason, [m for m, names in modes.items() if c.applies_to(m, names)]]
            for c in space.constraints
        ),
    }  # fmt: skip


def measured(name: str, count: int) -> dict[str, Any]:
    """All that is compared, of one workload of this checkout, by a name that tells where two differ."""
    found = workload(name)
    told: dict[str, Any] = {f"{name} {part}": value for part, value in declared(found.space).items()}
    for label, machine in MACHINES.items():
        for problem in problems(found, machine):
            at = f"{name} {label} {problem}"
            try:
                found.space.check_problem(problem, machine)
                told[f"{at} size"] = found.space.size(problem, machine)
                chosen = [found.default_config(problem, machine), *found.first_configs(problem, machine)]
                baselines = found.baselines(problem, machine)
            except InvalidProblem as error:
                told[at] = str(error)
                continue
            told[f"{at} first"] = [json.loads(each.to_json()) for each in chosen]
            told[f"{at} baselines"] = {way: json.loads(each.to_json()) for way, each in baselines.items()}
            rungs = [
                each for config in chosen if config["mode"] in found.overlapping
                for each in found.rungs(problem, config, machine).values() if not isinstance(each, str)
            ]  # fmt: skip
            for config in dict.fromkeys([*chosen, *rungs, *baselines.values(), *samples(found.space, count)]):
                key = f"{at} {json.dumps(json.loads(config.to_json()), sort_keys=True)}"
                told[f"{key} refused"] = refused(found.space, config, problem, machine)
                if not told[f"{key} refused"]:
                    tolerance = found.tolerance_of(problem, config, machine)
                    told[key] = [
                        tolerance.overall, tolerance.element, found.predict(problem, config, machine),
                        found.waste(config, problem, machine), found.unlike_measured(config, Regime.PIPELINED),
                        plan(found, problem, config, machine),
                    ]  # fmt: skip
    return told


def difference(here: Any, there: Any) -> str:
    """The first place where two values differ."""
    if isinstance(here, dict) and isinstance(there, dict):
        names = here.keys() | there.keys()
        return next(f"{name}: {difference(here.get(name), there.get(name))}" for name in sorted(names)
                    if here.get(name) != there.get(name))  # fmt: skip
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        return next(difference(*both) for both in zip(here, there, strict=True) if both[0] != both[1])
    return f"here {str(here)[:200]}, there {str(there)[:200]}"


def of_checkout(folder: Path, chosen: list[str], count: int) -> Mapping[str, Any]:
    command = [sys.executable, __file__, *chosen, "--configs", str(count), "--tell"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=folder)
    told: Mapping[str, Any] = json.loads(done.stdout)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", help="default: all")
    parser.add_argument("--against", type=Path, help="the other checkout")
    parser.add_argument("--configs", type=int, default=20, help="random configs per mode and problem")
    parser.add_argument("--tell", action="store_true", help="only this checkout's, as JSON")
    given = parser.parse_args()
    chosen = given.workloads or list(names())
    if given.tell:
        print(json.dumps({key: value for name in chosen for key, value in measured(name, given.configs).items()}))
        return
    here, there = (of_checkout(folder, chosen, given.configs) for folder in (Path.cwd(), given.against.resolve()))
    differ = [key for key in sorted(here.keys() | there.keys()) if here.get(key) != there.get(key)]
    for key in differ[:20]:
        print(f"{key}: {difference(here.get(key), there.get(key))}")
    print(f"{len(here)} compared, {len(differ)} differ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
