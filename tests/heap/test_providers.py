"""Which heap GPUs get, by setting, installation and hosts. Imports nothing of the package before its ranks say so: one
of them has no Iris.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
from ranks_of_functions import run_ranks

TWO_HOSTS = [{"GROUP_RANK": "0"}, {"GROUP_RANK": "1"}]
GROUP_WITHIN_A_HOST = [{"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}] * 2
NO_IRIS = [{"IRIS": "missing"}] * 2


def of_all(settings: list[dict[str, str]], heap: str) -> list[dict[str, str]]:
    return [each | {"AUTOTUNE_HEAP": heap} for each in settings]


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ([{}] * 2, "iris", ""),
        (of_all([{}] * 2, "torch"), "torch", ""),
        (TWO_HOSTS, "torch", "host"),
        (of_all(TWO_HOSTS, "torch"), "torch", ""),
        (GROUP_WITHIN_A_HOST, "torch", "host"),
        (NO_IRIS, "torch", "tokenspeed-iris"),
    ],
)
def test_all_ranks_take_the_same_heap_and_one_says_why(
    settings: list[dict[str, str]], name: str, reason: str, tmp_path: Path
) -> None:
    first, second = run_ranks(__file__, "choice", 2, tmp_path, argument=settings)
    assert first["names"] == second["names"] == [name] * 2
    assert len(first["said"]) == bool(reason) and not second["said"]
    assert not reason or reason in first["said"][0]


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        (of_all(TWO_HOSTS, "iris"), "HeapError", "AUTOTUNE_HEAP"),
        (of_all(NO_IRIS, "iris"), "HeapError", "tokenspeed-iris"),
        ([{"AUTOTUNE_HEAP": "torch"}, {}], "RanksDisagree", "rank 1"),
        ([{}, {"AUTOTUNE_HEAP": "cuda"}], "InputError", "iris or torch"),
    ],
)
def test_what_cannot_be_is_an_error_on_all_ranks(
    settings: list[dict[str, str]], error: str, told: str, tmp_path: Path
) -> None:
    for found in run_ranks(__file__, "choice", 2, tmp_path, argument=settings):
        assert found["error"] == error and told in found["text"]


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
