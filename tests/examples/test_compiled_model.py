"""The example of a compiled model: the pass finds every GEMM of a layer beside its collective, and outputs agree."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from scripts import run_script

EXAMPLE = Path(__file__).parents[2] / "docs/examples/compiled_model.py"
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}


@pytest.mark.slow
@pytest.mark.skipif(" " in sys.prefix, reason="torch compiles no C++ in an environment with a space in its path")
def test_every_gemm_of_the_layer_is_found(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SIZES))
    settings = {"AUTOTUNE_DB": str(tmp_path / "none.db")}
    done = run_script(str(EXAMPLE), str(config), "--tokens", "16", ranks=2, settings=settings)
    assert done.returncode == 0, done.stderr
    assert "7 found, 0 replaced" in done.stdout
    assert len(re.findall("left: nothing tuned for this problem", done.stdout)) == 7
    assert done.stdout.rstrip().endswith("compiled without and with us: 0.0e+00")
