"""Imports go downwards only, from a room to those below it, and in no circle; the name of a module means the module."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

PACKAGE = "autotune"
ROOMS = (
    "cli", "model_runs", "compiled", "models", "nn", "fleet", "doctor", "report", "sharing", "decorator", "runtime",
    "results", "recordings", "taxes", "tuning", "ranks", "workloads", "kernels", "search_spaces", "heap", "db",
    "processes", "ground floor",
)  # fmt: skip
"""From the top down. The ground floor is the modules that lie directly in the package."""

FACE = PACKAGE
"""The package's own ``__init__``: its lazy imports reach every room; nothing but the command line imports from it."""

RUNS_WHEN_IMPORTED = ("__main__",)

ROOT = Path(__file__).parent.parent


def room_of(module: str, tree: Path) -> str:
    """The room of an absolute module name; an unknown folder is a room of its own."""
    parts = module.split(".")
    if len(parts) == 1:
        return FACE
    if parts[1] == "__main__":
        return "cli"
    return parts[1] if (tree / PACKAGE / parts[1]).is_dir() else "ground floor"


def module_of(file: Path, tree: Path) -> str:
    parts = list(file.relative_to(tree).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str, tree: Path) -> bool:
    path = tree.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def nodes(node: ast.AST, functions: bool, typing: bool) -> Iterator[ast.AST]:
    """All below ``node``; bodies of functions, and imports for the type checker alone, where asked for."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not functions:
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test) and not typing:
            continue
        yield child
        yield from nodes(child, functions, typing)


@functools.cache
def imported(text: str, file: Path, tree: Path, functions: bool = True, typing: bool = True) -> list[tuple[int, str]]:
    """Line and absolute name of every module of ours that a file's text imports, also late and for the type checker."""
    every: list[tuple[int, str]] = []
    module = module_of(file, tree)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes(ast.parse(text), functions, typing):
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
        every += [(node.lineno, name) for name in found if name.split(".")[0] == PACKAGE]
    return every


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
        whole = module_of(file, tree) != FACE
        for line, name in imported(file.read_text(), file, tree, whole, whole):
            target = room_of(name, tree)
            if target == FACE:
                allowed = home == "cli"
            else:
                allowed = target in height and height[target] <= height[home]
            if not allowed:
                wrong.append(f"{file.relative_to(tree)}:{line}: {home} imports {name}, which is not below it")
    return wrong


def imports(tree: Path) -> dict[str, set[str]]:
    """By module, the modules that it imports, also late and for the type checker alone."""
    files = [file for file in (tree / PACKAGE).rglob("*.py") if module_of(file, tree) != FACE]
    return {module_of(file, tree): {name for _, name in imported(file.read_text(), file, tree)} for file in files}


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other round a circle, the first one last again; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def shadowed(package: ModuleType) -> set[str]:
    """Modules that the name by which one would import them does not mean: their package has a function of that name."""
    found = set()
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not each.name.endswith(RUNS_WHEN_IMPORTED):
            importlib.import_module(each.name)
            parent, _, name = each.name.rpartition(".")
            if getattr(sys.modules[parent], name) is not sys.modules[each.name]:
                found.add(each.name)
    return found


def test_imports_go_downwards() -> None:
    assert (ROOT / PACKAGE / "errors.py").is_file(), "looked in the wrong place"
    assert violations(ROOT) == []


def test_imports_close_no_circle() -> None:
    graph = imports(ROOT)
    assert len(graph) > 100, "looked in the wrong place"
    assert circle(graph) == []


def test_the_name_of_a_module_means_the_module() -> None:
    import autotune

    assert shadowed(autotune) == set()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small package that keeps the rules."""
    for name in ("__init__", "cli/app", "runtime/lookup", "tuning/loop", "tuning/screening", "kernels/tiles"):
        plant(tmp_path, f"{name}.py", "from .screening import screen\n" if name == "tuning/loop" else "")
    return tmp_path


def plant(tree: Path, name: str, text: str) -> None:
    file = tree / PACKAGE / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("kernels/bad.py", "import autotune.tuning.loop\n", "kernels/bad.py:1: kernels imports autotune.tuning.loop"),
        ("kernels/bad.py", "from autotune import tuning\n", "kernels imports autotune.tuning"),
        ("kernels/deep/__init__.py", "from ...tuning import loop\n", "kernels imports autotune.tuning.loop"),
        ("kernels/bad.py", "def f():\n    from autotune.tuning import loop\n", "kernels/bad.py:2: kernels imports"),
        ("db/bad.py", "if TYPE_CHECKING:\n    import autotune.kernels.tiles\n", "db imports autotune.kernels.tiles"),
        ("db/bad.py", "import importlib\nimportlib.import_module('autotune.cli')\n", "db imports autotune.cli"),
        ("tuning/bad.py", "from autotune import lookup\n", "tuning imports autotune, "),
        ("__init__.py", "from autotune.runtime import lookup\n", "ground floor imports autotune.runtime"),
        ("attic/old.py", "", "attic is no room"),
    ],
)
def test_a_planted_violation_is_found(tree: Path, file: str, text: str, told: str) -> None:
    assert violations(tree) == []
    plant(tree, file, text)
    (found,) = violations(tree)
    assert told in found


def test_a_planted_circle_is_found(tree: Path) -> None:
    assert circle(imports(tree)) == []
    plant(tree, "tuning/screening.py", "if TYPE_CHECKING:\n    from autotune.tuning.loop import tune\n")
    found = circle(imports(tree))
    assert set(found) == {"autotune.tuning.loop", "autotune.tuning.screening"} and found[0] == found[-1]


def test_a_planted_function_over_a_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    files = {"__init__": "from package_of_a_test.build import build", "build": "def build(): ...", "check": ""}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert shadowed(importlib.import_module("package_of_a_test")) == {"package_of_a_test.build"}
