"""What is told of a workload that is not loaded; results, which a change in any module that it imports makes stale."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_origin

import pytest
from every_mode import whole
from test_layers import imported

from autotune.errors import InputError, UnknownWorkload
from autotune.task import Task
from autotune.workloads import provenance_of, sources, workload
from autotune.workloads.descriptors import descriptor_of, installed_descriptor, installed_provenance
from autotune.workloads.sources import DECIDES_NOTHING, NAMES, source_hash
from autotune.workloads.user_files import BUILT_IN

PACKAGE = Path(__file__).parents[2] / "autotune"

STOPS = {*DECIDES_NOTHING, *(f"{name}.__init__" for name in NAMES)}


def files_of(module: str) -> list[Path]:
    """Its file, if there is one, and those of the packages that it lies in."""
    parts = module.split(".")[1:]
    places = [PACKAGE.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return [file for file in files if file.is_file()]


def decides(file: Path) -> bool:
    name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    stops = any(name == each or name.startswith(f"{each}.") for each in STOPS)
    return not stops and not sources.SPACE.fullmatch(name)


def closure(name: str) -> set[Path]:
    """All that the workload's module and the stopwatch come to, by their imports, but for what only declares."""
    todo, seen = [PACKAGE / f"workloads/built_in/{name}.py", PACKAGE / "ranks/measure.py"], set()
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            modules = [module for _, module in imported(file.read_text(), file, PACKAGE.parent)]
            todo += [each for module in modules for each in files_of(module) if decides(each)]
    return {each for each in seen if not sources.DECLARED.fullmatch(each.relative_to(PACKAGE).as_posix())}


@pytest.mark.parametrize("name", BUILT_IN)
def test_all_modules_that_a_built_in_workload_comes_to_are_hashed_and_none_that_decides_nothing(name: str) -> None:
    own = PACKAGE / f"workloads/built_in/{name}.py"
    hashed = {file for file, _ in sources.closure([own, *sources.files_of([sources.STOPWATCH])])}
    needed = {file.relative_to(PACKAGE).as_posix() for file in closure(name)}
    assert (
        {f"kernels/{name}/launch.py", "kernels/launching/plan.py", "heap/gpu.py", "ranks/measure.py"}
        <= needed
        <= hashed
    )
    assert workload(name).source_hash() == source_hash(own, ())
    rooms = {"dtypes.py", "heap", "hosts.py", "kernels", "ranks", "sizes.py", "workloads"}
    assert {Path(file).parts[0] for file in hashed} <= rooms


@pytest.mark.parametrize("count", [5, whole(1000)])
def test_a_change_in_a_hashed_module_makes_results_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    copy = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    files = sorted(closure("moe_dispatch_gemm") - {PACKAGE / "ranks/measure.py"})
    monkeypatch.setattr(sources, "PACKAGE", str(copy))
    monkeypatch.setattr(sources, "files_of", lambda names: [copy / "ranks/measure.py"])
    own = copy / "workloads/built_in/moe_dispatch_gemm.py"
    before = source_hash(own, ())
    for file in random.Random(1).sample(files, min(count, len(files))):
        changed = copy / file.relative_to(PACKAGE)
        text = changed.read_text()
        changed.write_text(text + "# changed\n")
        assert source_hash(own, ()) != before, file
        changed.write_text(text)
    assert source_hash(own, ()) == before


DECLARATIONS = sorted(PACKAGE.glob("kernels/*/*modes.py"))


@pytest.mark.parametrize("file", DECLARATIONS, ids=lambda file: f"{file.parent.name}.{file.stem}")
def test_ways_read_nothing_of_a_mode_but_its_fields(file: Path) -> None:
    """The text of a declaration is not hashed: a change of what else a way read there would make no result stale."""
    declared = importlib.import_module(f"autotune.kernels.{file.parent.name}.{file.stem}")
    kinds = [
        each for each in vars(declared).values() if isinstance(each, type) and each.__module__ == declared.__name__
    ]
    fields = {each.name for kind in kinds for each in dataclasses.fields(kind)}
    hidden = {name for kind in kinds for name in vars(kind) if not name.startswith("_")} - fields
    for reader in {*file.parent.glob("*.py")}.difference(DECLARATIONS):
        for node in ast.walk(ast.parse(reader.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == declared.__name__:
                for name in (each.name for each in node.names):
                    value = getattr(declared, name)
                    assert value in kinds or value is vars(declared).get("MODES") or get_origin(value) is Task, (
                        reader.name,
                        name,
                    )
            elif isinstance(node, ast.Attribute):
                assert node.attr not in hidden, (reader.name, node.lineno, node.attr)


def counted(folder: Path, texts: dict[str, str], own: str) -> set[str]:
    """The files that a change in makes the hash of ``own`` another."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before, found = source_hash(folder / own, ()), set()
    for name, text in texts.items():
        (folder / name).write_text(text + "# changed\n")
        found |= {name} if source_hash(folder / own, ()) != before else set()
        (folder / name).write_text(text)
    assert source_hash(folder / own, ()) == before
    return found


BESIDE = {
    "own.py": "import os, tiles as t, text\nfrom package import (  # noqa: F401, (E501)\n    inner,  # this, too\n"
              "    last,\n)\nfrom package import inner, \\\n    behind\n"
              "def late():\n    from .relative import x\n",
    "text.py": "", "package/last.py": "", "package/behind.py": "", "tiles.py": "import deeper.below\n",
    "deeper/below.py": "", "package/__init__.py": "", "package/inner.py": "",
    "relative.py": "from autotune.kernels.primitives.ll import anything\n", "unrelated.py": "", "os.py": "",
}  # fmt: skip
WHOLE = {
    "whole/ops/own.py": "from parts.kernels import tile\nimport kernels\n"
                        "import whole.ops.full\nfrom whole.other import x\n",
    "whole/__init__.py": "", "whole/ops/__init__.py": "", "whole/other.py": "",
    "whole/ops/parts/kernels.py": "from parts.tiles import F\nfrom ..above import G\nfrom .. import beside\n"
                                  "from ...other import x\n",
    "whole/ops/parts/tiles.py": "import left.kernels.tile, right.kernels.tile\n", "whole/ops/above.py": "",
    "whole/ops/beside.py": "", "whole/ops/full.py": "", "whole/ops/kernels/__init__.py": "",
    "whole/ops/left/kernels/tile.py": "", "whole/ops/right/kernels/tile.py": "",
}  # fmt: skip
"""By a name from the workload's folder, by two dots, by the whole package's name; and files of one name."""


@pytest.mark.parametrize(
    ("texts", "own", "others"),
    [(BESIDE, "own.py", {"unrelated.py"}), (WHOLE, "whole/ops/own.py", {"whole/other.py", "whole/__init__.py"})],
    ids=["beside a file", "a package"],
)
def test_what_a_users_file_imports_from_around_it_counts(
    tmp_path: Path, texts: dict[str, str], own: str, others: set[str]
) -> None:
    assert counted(tmp_path, texts, own) == texts.keys() - others


def test_all_modules_of_a_package_that_sources_names_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = tmp_path / "named_by_sources" / "inner" / "leaf.py"
    leaf.parent.mkdir(parents=True)
    for file in (leaf, leaf.parent / "__init__.py", leaf.parents[1] / "__init__.py", tmp_path / "own.py"):
        file.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before = source_hash(tmp_path / "own.py", ("named_by_sources",))
    leaf.write_text("# changed\n")
    assert source_hash(tmp_path / "own.py", ("named_by_sources",)) != before


def test_results_are_not_stale_in_a_folder_of_another_name(tmp_path: Path) -> None:
    found = set()
    for name in ("a", "kernels", "zoo"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text("from autotune.kernels.primitives.ll import ll_flag\nimport tiles\n")
        (tmp_path / name / "tiles.py").write_text("# tiles\n")
        found.add(source_hash(tmp_path / name / "own.py", ()))
    assert len(found) == 1


def test_two_classes_of_one_file_have_results_of_their_own(tmp_path: Path) -> None:
    toy = (Path(__file__).parents[1] / "cli" / "toy_workload.py").read_text()
    file = tmp_path / "versions.py"
    file.write_text(f"{toy}\nclass Second(ToyWorkload):\n    pass\n\nFIRST = ToyWorkload()\n")
    first, second, instance = (workload(f"{file}:{name}") for name in ("ToyWorkload", "Second", "FIRST"))
    assert first.name == second.name and first.space.fingerprint() == second.space.fingerprint()
    assert first.source_hash() == instance.source_hash() != second.source_hash()


def test_what_is_no_module_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = workload("flash_decode")
    for name in ("no_such_module", "no_such_package.module", "autotune.heap.device.wait", ""):
        monkeypatch.setattr(type(found), "sources", (name,))
        with pytest.raises(InputError, match=f"sources names '{name}'"):
            found.source_hash()


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_face_is_that_of_its_workload(name: str) -> None:
    found, whole = descriptor_of(name.replace("_", "-")), workload(name)
    assert found == installed_descriptor(name)
    assert (found.name, found.problem_type) == (whole.name, whole.problem_type) and found.load() is whole
    assert installed_provenance(name) == provenance_of(whole), (
        "an entry would be called stale, or served when it is not"
    )


def test_spaces_load_without_kernels() -> None:
    """A look-up, ``tune list`` and ``tune show`` wait for this."""
    code = """
import sys
from autotune.workloads.descriptors import space_of
from autotune.workloads.user_files import BUILT_IN
print(sum(len(space_of(name).modes) for name in BUILT_IN), {"torch", "triton", "optuna"} & {*sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{sum(len(workload(name).space.modes) for name in BUILT_IN)} set()\n", done.stderr


def test_a_stored_name_loads_no_file_and_may_be_nobodys(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise AssertionError('loaded')")
    for look in (installed_descriptor, installed_provenance):
        for name in (f"{file}:Mine", "gemm_all_reduc"):
            with pytest.raises(UnknownWorkload):
                look(name)
    with pytest.raises(UnknownWorkload):
        descriptor_of("gemm_all_reduc")
