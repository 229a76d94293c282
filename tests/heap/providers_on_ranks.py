"""The choice of a heap, and kernels without Iris, run on every rank. Imports nothing of the package before its ranks
say so: one of them has no Iris.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist


def choice(settings: list[dict[str, str]]) -> dict[str, Any]:
    os.environ.update(settings[dist.get_rank()])
    if os.environ.get("IRIS") == "missing":
        _without_iris()
    from autotune.agreement import Agreement
    from autotune.errors import AutotuneError
    from autotune.heap.providers import provider

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("autotune").addHandler(handler)
    agreement = Agreement(dist.group.WORLD)
    try:
        return {"names": [provider(agreement) for _ in range(2)], "said": said}
    except AutotuneError as error:
        return {"error": type(error).__name__, "text": str(error)}


def contract_without_iris(argument: Any) -> Any:
    _without_iris()
    found = _module(Path(__file__).with_name("test_contract.py")).contract(argument)
    assert sys.modules["autotune.heap.device"].iris.__name__ == "autotune.heap.remote"
    return found


def _without_iris() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("iris", "autotune")]:
        del sys.modules[name]  # the process was forked from one that had them
    sys.modules["iris"] = None  # type: ignore[assignment]  # an import raises ImportError


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("on_ranks", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules["on_ranks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
