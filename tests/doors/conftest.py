"""What the doors' tests share: they skip where a project is not, and find the plugins of this checkout."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        door = item.path.parent.name
        if item.path.parent.parent == HERE and importlib.util.find_spec(door) is None:
            item.add_marker(pytest.mark.skip(reason=f"no {door} here: make test-doors ARGS={door}"))


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, Mapping[str, str]]], Path]:
    """Makes a folder for the path, by which entry points are found as of an installed distribution."""

    def made(groups: Mapping[str, Mapping[str, str]]) -> Path:
        folder = tmp_path_factory.mktemp("checkout")
        found = folder / "checkout-0.dist-info"
        found.mkdir()
        lines = [line for group, named in groups.items() for line in (f"[{group}]", *map(" = ".join, named.items()))]
        (found / "entry_points.txt").write_text("\n".join(lines))
        (found / "METADATA").write_text("Metadata-Version: 2.1\nName: checkout\nVersion: 0\n")
        return folder

    return made
