"""The plugin from this checkout, found by its entry point as if it were installed; skips where SGLang is not."""

from __future__ import annotations

import importlib.util
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLUGIN = ROOT / "plugins" / "sglang"
sys.path[:0] = [str(HERE), str(PLUGIN), str(ROOT / "tests")]

SGLANG = "0.5.23"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("sglang") is None:
        missing = f"no SGLang here: make an environment with sglang=={SGLANG} (docs/doors/sglang.md)"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """For SGLang's processes: the entry point, the interpreter, a database of their own."""
    (points,) = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"].items()
    found = tmp_path / "checkout-0.dist-info"
    found.mkdir()
    (found / "entry_points.txt").write_text("\n".join([f"[{points[0]}]", *map(" = ".join, points[1].items())]))
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: checkout\nVersion: 0\n")
    settings = {
        "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "AUTOTUNE_DB": f"sqlite:///{tmp_path / 'tuned.db'}",
    }  # fmt: skip
    path = os.pathsep.join([*map(str, (tmp_path, HERE, PLUGIN, ROOT, ROOT / "tests")), *sys.path])
    yield {**os.environ, **settings, "PYTHONPATH": path}
