"""Imports go downwards only: from a room to the rooms below it, never up and never sideways into an unknown one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "autotune"
ROOMS = (
    "cli",
    "doctor",
    "report",
    "sharing",
    "decorator",
    "runtime",
    "recordings",
    "tuning",
    "ranks",
    "workloads",
    "search_spaces",
    "kernels",
    "heap",
    "db",
    "processes",
    "ground floor",
)
"""From the top down. The ground floor is the modules that lie directly in the package."""

FACE = PACKAGE
"""The package's own ``__init__``: its lazy imports reach every room; nothing but the command line imports from it."""

ROOT = Path(__file__).parent.parent


def room_of(module: str, tree: Path) -> str:
    """The room of an absolute module name; an unknown folder is a room of its own."""
    parts = module.split(".")
    if len(parts) == 1:
        return FACE
    return parts[1] if (tree / PACKAGE / parts[1]).is_dir() else "ground floor"


def module_of(file: Path, tree: Path) -> str:
    parts = list(file.relative_to(tree).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str, tree: Path) -> bool:
    path = tree.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def never_runs_at_import(node: ast.AST) -> bool:
    """A function's body, or an import for the type checker alone."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def nodes(node: ast.AST, lazy_too: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if lazy_too or not never_runs_at_import(child):
            yield child
            yield from nodes(child, lazy_too)


def imported(file: Path, tree: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module of ours that ``file`` imports, wherever in the file it does so."""
    module = module_of(file, tree)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes(ast.parse(file.read_text()), lazy_too=module != FACE):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=source, names=names, level=level):
                base = package.rsplit(".", level - 1)[0] if level else ""
                origin = ".".join(filter(None, [base, source]))
                members = [f"{origin}.{alias.name}" for alias in names]
                found = [member if is_module(member, tree) else origin for member in members]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                found = [name]
            case _:
                continue
        yield from ((node.lineno, name) for name in found if name.split(".")[0] == PACKAGE)


def violations(tree: Path) -> list[str]:
    """Every import under ``tree``/autotune that does not go downwards, as ``file:line: what is wrong``."""
    height = {room: -level for level, room in enumerate(ROOMS)}
    wrong = []
    for file in sorted((tree / PACKAGE).rglob("*.py")):
        home = room_of(module_of(file, tree), tree)
        home = "ground floor" if home == FACE else home
        if home not in height:
            wrong.append(f"{file.relative_to(tree)}: {home} is no room; the rooms are {', '.join(ROOMS)}")
            continue
        for line, name in imported(file, tree):
            target = room_of(name, tree)
            if target == FACE:
                allowed = home == "cli"
            else:
                allowed = target in height and height[target] <= height[home]
            if not allowed:
                wrong.append(f"{file.relative_to(tree)}:{line}: {home} imports {name}, which is not below it")
    return wrong


def test_imports_go_downwards() -> None:
    assert (ROOT / PACKAGE / "errors.py").is_file(), "looked in the wrong place"
    assert violations(ROOT) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small package that keeps the rules in every way in which it may."""
    files = {
        "__init__.py": (
            "from typing import TYPE_CHECKING\n"
            "from autotune.errors import Bad\n"
            "if TYPE_CHECKING:\n    from autotune.runtime import lookup\n"
            "def __getattr__(name):\n    from autotune import runtime\n"
        ),
        "errors.py": "import os\n",
        "problem.py": "from . import errors\n",
        "cli/__init__.py": "from autotune import lookup\nfrom autotune.tuning import loop\n",
        "runtime/__init__.py": "from ..db import store\nimport autotune.kernels.tiles as tiles\n",
        "tuning/loop.py": "from .screening import screen\nfrom autotune.db.store import Store\nimport torch.db\n",
        "tuning/screening.py": "def screen():\n    from autotune.kernels import tiles\n",
        "kernels/tiles.py": "from autotune.errors import Bad\n",
        "db/store.py": "from autotune.problem import Problem\n",
    }
    for name, text in files.items():
        file = tmp_path / PACKAGE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_a_tree_that_keeps_the_rules_has_no_violation(tree: Path) -> None:
    assert violations(tree) == []


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("kernels/bad.py", "import autotune.tuning.loop\n", "kernels/bad.py:1: kernels imports autotune.tuning.loop"),
        ("kernels/bad.py", "from autotune import tuning\n", "kernels imports autotune.tuning"),
        ("kernels/bad.py", "from ..tuning.loop import tune\n", "kernels imports autotune.tuning.loop"),
        ("kernels/deep/__init__.py", "from ...tuning import loop\n", "kernels imports autotune.tuning.loop"),
        ("kernels/bad.py", "def f():\n    from autotune.tuning import loop\n", "kernels/bad.py:2: kernels imports"),
        (
            "db/bad.py",
            "if TYPE_CHECKING:\n    import autotune.kernels.tiles\n",
            "db imports autotune.kernels.tiles",
        ),
        ("db/bad.py", "import importlib\nimportlib.import_module('autotune.cli')\n", "db imports autotune.cli"),
        ("tuning/bad.py", "from autotune import lookup\n", "tuning imports autotune, "),
        ("errors.py", "from autotune.db import store\n", "ground floor imports autotune.db.store"),
        ("__init__.py", "from autotune.runtime import lookup\n", "ground floor imports autotune.runtime"),
        ("attic/old.py", "", "attic is no room"),
    ],
)
def test_a_planted_violation_is_found(tree: Path, file: str, text: str, told: str) -> None:
    path = tree / PACKAGE / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    (found,) = violations(tree)
    assert told in found
