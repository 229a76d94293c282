"""A user's own file: FILE:CLASS finds a workload, the same one every time; what does not fit is said in one line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripts import run_script

import autotune
from autotune.errors import AutotuneError, InputError
from autotune.task import Task
from autotune.workloads import origin_of, reference_of, workload

OWN = """
from dataclasses import dataclass
from autotune.config import Config
from autotune.problem import Problem, size
from autotune.search_spaces import Space, choices, numbers
from autotune.workloads import Workload
{before}

@dataclass(frozen=True, kw_only=True)
class Rows(Problem):
    workload = "own_rows"
    rows: int = size("rows")

class Base(Workload):
    problem_type = Rows
    space = Space(choices("mode", "push"), numbers("block", 16, 32))
    def default_problem(self, machine, world_size):
        return Rows(rows=64, world_size=world_size)
    def default_config(self, task):
        return Config({{"mode": "push", "block": 32}})

class Own(Base):
    def operation(self, task, heap, spin_limit):
        raise NotImplementedError
{after}
"""


def write(folder: Path, before: str = "", after: str = "", name: str = "my_op.py") -> Path:
    file = folder / name
    file.write_text(OWN.format(before=before, after=after))
    return file


def refused(reference: object) -> str:
    with pytest.raises(AutotuneError) as told:
        workload(str(reference))
    assert told.value.exit_code == 2
    return str(told.value)


def test_a_class_of_a_file_is_a_workload_named_by_its_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path)
    found = workload(f"{file}:Own")
    assert found.name == "own_rows"
    assert reference_of(found) == f"{file}:Own"
    monkeypatch.chdir(tmp_path)
    assert workload("my_op.py:Own") is found is workload(reference_of(found)), "made once, however it is written"
    assert reference_of(workload("all_gather_gemm")) == "all_gather_gemm"


def test_what_a_small_class_need_not_say(tmp_path: Path) -> None:
    found = workload(f"{write(tmp_path)}:Own")
    problem = found.problem_type.from_dict({"rows": 8, "dtype": "fp16", "world_size": 2})
    default = found.default_config(Task(problem, autotune.machine.INTERPRETED))
    assert found.first_configs(Task(problem, autotune.machine.INTERPRETED)) == [default]
    assert found.baselines(Task(problem, autotune.machine.INTERPRETED)) == {}
    assert found.compile(Task(problem, autotune.machine.H100), default) == []
    assert 2**-12 < found.tolerance(problem).overall < 2**-9, "fp16 is rounded to 11 bits"
    assert found.heap_bytes(problem) > 0


def test_what_lies_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "beside_my_op.py").write_text("WORD = 'found'\n")
    found = workload(f"{write(tmp_path, before='from beside_my_op import WORD')}:Own")
    assert sys.modules[type(found).__module__].WORD == "found"


def test_what_lies_beside_the_file_takes_the_place_of_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colorsys.py").write_text("1 / 0\n")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert workload(f"{write(tmp_path)}:Own").name == "own_rows"
    assert importlib.import_module("colorsys").__file__ != str(tmp_path / "colorsys.py")


def test_files_of_one_name_are_modules_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (workload(f"{write(tmp_path / name)}:Own") for name in ("one", "two"))
    assert type(one) is not type(two) and workload(f"{tmp_path}/one/my_op.py:Own") is one
    assert sys.modules[type(one).__module__].__file__ == f"{tmp_path}/one/my_op.py"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert workload("~/two/my_op.py:Own") is two


def test_where_a_workload_comes_from_is_told_without_its_folder(
    tmp_path: Path, imported: Callable[[Path], Any]
) -> None:
    assert origin_of(workload("flash_decode")) == ""
    assert origin_of(workload(f"{write(tmp_path)}:Own")) == "my_op.py:Own"
    module = imported(write(tmp_path, name="my_plugged_in_op.py"))
    assert origin_of(module.Own()) == "my_plugged_in_op:Own"


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:

    def load(file: Path) -> Any:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, file.stem, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_a_reloaded_module_and_a_variant_of_a_class_have_answers_of_their_own(
    tmp_path: Path, imported: Callable[[Path], Any]
) -> None:
    """A notebook's next cell: the file has changed, or one class derives from another, with the same problem."""
    smaller = "\nclass Smaller(Own):\n    space = Space(choices('mode', 'push'), numbers('block', 16))\n"
    smaller += "    default_config = lambda self, task: Config({'mode': 'push', 'block': 16})\n"
    file = write(tmp_path, after=smaller, name="my_reloaded_op.py")
    module = imported(file)

    def block(named: object) -> object:
        problem = module.Rows(rows=8, world_size=2)
        return autotune.lookup(named, problem, url=str(tmp_path / "none.db")).config["block"]  # type: ignore[arg-type]

    assert [block(named) for named in (module.Own(), module.Smaller(), f"{file}:Own")] == [32, 16, 32]
    before = workload(f"{file}:Own")
    file.write_text(file.read_text().replace('"block": 32', '"block": 16') + "# other bytes, so Python reads it\n")
    module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]  # as importlib.reload does
    assert [block(named) for named in (module.Own(), f"{file}:Own")] == [16, 16]
    after = workload(f"{file}:Own")
    assert workload(f"{file}:Own") is after is not before


def test_a_class_without_a_file_is_told_to_lie_in_one(tmp_path: Path) -> None:
    """A notebook's cell, or what Ray pickles by value from another program's ``__main__``: no change would be seen."""
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(OWN.format(before="", after=""), cell)
    with pytest.raises(InputError, match="source file"):
        autotune.lookup(cell["Own"](), cell["Rows"](rows=8, world_size=2), url=str(tmp_path / "none.db"))


def test_a_main_script_looks_itself_up(tmp_path: Path) -> None:
    after = (
        "if __name__ == '__main__':\n"
        "    import autotune\n"
        f"    found = autotune.lookup({str(tmp_path / 'my_op.py')!r} + ':Own', Rows(rows=8, world_size=2))\n"
        "    print(found.source, found.config['block'], autotune.workloads.origin_of(Own()))\n"
    )
    done = run_script(str(write(tmp_path, after=after)))
    assert done.stdout.split() == ["default", "32", "my_op.py:Own"], done.stderr


def test_a_file_or_class_that_is_not_there(tmp_path: Path) -> None:
    file = write(tmp_path)
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "empty.py").write_text("")
    for name in ("other.py:Own", "notes.txt:Own", "empty.py:Own"):
        assert name.partition(":")[0] in refused(tmp_path / name)
    for name in (f"{file}:Other", file):
        assert ":Own" in refused(name)
    for name in ("Rows", "size"):
        assert "autotune.workloads.Workload" in refused(f"{file}:{name}")
    assert "operation" in refused(f"{file}:Base"), "a class that does not say everything"
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    for path, told in ((tmp_path / "loop.py", "oop"), ("x" * 300 + ".py", "File name too long"), ("~nobody!/x.py", "")):
        assert refused(f"{path}:Own").startswith(f"workload file {path}: ") and told in refused(f"{path}:Own")


PROBLEMS = """
@dataclass(frozen=True, kw_only=True)
class PlainRows(Problem):
    workload = "own_rows"
    rows: int = 4

class BareRows(Problem):
    workload = "own_rows"
    rows: int = size("rows")

@dataclass(frozen=True, kw_only=True)
class Taken(Problem):
    workload = "flash_decode"
"""


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("problem_type = dict", "problem_type"), ("problem_type = PlainRows", "rows"),
        ("problem_type = BareRows", "BareRows"), ("name, problem_type = 'flash_decode', Taken", "flash_decode"),
        ("name = 'other'", "other"), ("space = [1, 2]", "space"), ("sources = None", "sources"),
        ("sources = ('os', 3)", "sources"), ("__hash__ = None", "__eq__"),
        ("def __init__(self, tile): ...", "TypeError"), ("def __init__(self): raise SystemExit", "SystemExit"),
        ("def __init__(self): 1 / 0", "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_class_that_says_something_wrong(tmp_path: Path, bad: str, named: str) -> None:
    file = write(tmp_path, after=f"{PROBLEMS}class Bad(Own):\n    {bad}")
    assert named in refused(f"{file}:Bad")


def test_a_file_of_the_setting_needs_no_instance_of_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``tune import`` names the file of FILE:CLASS, and asks to set it."""
    file = write(tmp_path, name="set_op.py")

    def set_to(file: Path) -> None:
        monkeypatch.setenv("AUTOTUNE_WORKLOADS", str(file))

    set_to(file)
    assert type(workload("own-rows")).__name__ == "Own" and reference_of(workload("own_rows")) == "own_rows"
    twice = write(tmp_path, after="class Variant(Own):\n    pass", name="set_twice.py")
    set_to(twice)
    assert "Variant" in refused("x")
    write(tmp_path, after="class Variant(Own):\n    pass\nONE = Variant()", name="set_once.py")
    set_to(tmp_path / "set_once.py")
    assert type(workload("own_rows")).__name__ == "Variant"
    (tmp_path / "set_none.py").write_text("")
    set_to(tmp_path / "set_none.py")
    assert "set_none.py" in refused("own_rows")
    set_to(write(tmp_path, after="class Bad(Own):\n    space = [1, 2]", name="set_bad.py"))
    assert "space" in refused("flash_decode")


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("broken = lambda: 1 / 0\nbroken()", "line BEFORE: ZeroDivisionError"),
        ("def broken(:", "SyntaxError: "),
        ("import sys; sys.exit(3)", "line LAST: SystemExit"),
    ],
)
def test_a_file_that_raises_when_it_is_loaded_says_where_and_may_be_mended(
    tmp_path: Path, after: str, told: str
) -> None:
    file = write(tmp_path, after=after)
    last = len(file.read_text().splitlines())
    told = told.replace("LAST", str(last)).replace("BEFORE", str(last - 1))
    said = refused(f"{file}:Own")
    assert said.startswith(f"workload file {file}") and told in said
    write(tmp_path)
    assert workload(f"{file}:Own").name == "own_rows"
