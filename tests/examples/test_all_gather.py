"""The example of an all-gather: its kernels reach past the 2^31 elements that an int32 counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from every_mode import whole
from scripts import run_script

EXAMPLE = Path(__file__).parents[2] / "docs/examples/all_gather.py"
COMPILE = """
import importlib.util, sys
from autotune.machine import H100
from autotune.task import Task
from autotune.kernels.launching.plan import compile_offline_for
spec = importlib.util.spec_from_file_location("example", sys.argv[1])
sys.modules["example"] = example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
compile_offline_for(H100)
task = Task(example.AllGather(rows=64, columns=8192, world_size=8), H100)
config = example.WORKLOAD.default_config(task).replace(mode=sys.argv[2])
(launch,) = example.KERNELS.offline(task, config)
print(launch.compile().asm["ttir"])
"""


@pytest.mark.parametrize("mode", ["push", whole("pull")])
def test_offsets_over_all_ranks_are_int64(mode: str) -> None:
    done = run_script("-c", COMPILE, str(EXAMPLE), mode, interpreted=False)
    assert done.returncode == 0, done.stderr
    products = re.findall(r"arith\.muli .*%elements.* : (i\d+)", done.stdout)
    wide = re.findall(r"arith\.extsi %elements", done.stdout)
    assert wide and "i32" not in products, products
