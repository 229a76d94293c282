"""The package: the wheel's contents, the symlinks, a light import, the locked versions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SYMLINKS = ("kernels", "search_spaces", "db")
HEAVY = ("torch", "optuna", "sqlalchemy", "triton", "numpy")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of this checkout, with the build tools that are installed."""
    copy = tmp_path_factory.mktemp("a checkout") / "tree"
    leave_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "wheelhouse", "shared")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=leave_out)
    out = copy / "dist"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> list[str]:
    """The names in the wheel."""
    with zipfile.ZipFile(wheel_file) as archive:
        return archive.namelist()


def test_the_wheels_only_top_level_name_is_autotune(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"autotune"}


def test_the_wheel_holds_every_file_of_the_package(wheel: list[str]) -> None:
    files = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "autotune").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    missing = files - set(wheel)
    assert not missing, "a folder without __init__.py, or data that pyproject.toml's package-data does not name"


@pytest.mark.parametrize("name", SYMLINKS)
def test_the_folders_at_the_top_are_relative_symlinks_into_the_package(name: str) -> None:
    assert os.readlink(ROOT / name) == f"autotune/{name}"
    assert (ROOT / name).is_dir()


def in_a_new_interpreter(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_import_autotune_takes_less_than_50_ms() -> None:
    code = "import time; begin = time.process_time(); import autotune; print(time.process_time() - begin)"
    assert min(float(in_a_new_interpreter(code)) for _ in range(5)) < 0.050


def test_import_autotune_leaves_the_heavy_packages_alone() -> None:
    code = "import autotune, sys; print(*(name for name in sys.modules if '.' not in name))"
    assert not set(HEAVY) & set(in_a_new_interpreter(code).split())


def test_a_rank_starts_without_the_packages_of_search_and_store() -> None:
    """They took a fifth of its start, and every rank and compiler starts often."""
    code = "import autotune.ranks.rank, sys; from autotune.workloads import workload; workload('all_gather_gemm')"
    loaded = in_a_new_interpreter(f"{code}; print(*(name for name in sys.modules if '.' not in name))").split()
    assert "torch" in loaded and not {"optuna", "sqlalchemy", "typer", "rich"} & set(loaded)


CLIENT = """
import autotune

problem = autotune.AllGatherGemm(m=4096, n=28672, k=8192, world_size=4)
found = autotune.lookup("all_gather_gemm", problem)
reveal_type(problem.m)
reveal_type(found.source)
reveal_type(found.config)
autotune.lookup("all_gather_gemm", 5)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel_file: Path) -> Path:
    """The Python of an environment that has the wheel alone."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(place)
    (site,) = place.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel_file) as archive:
        archive.extractall(site)
    return place / "bin" / "python"


@pytest.mark.slow
def test_a_strict_clients_types_are_ours(tmp_path: Path, installed: Path) -> None:
    """Nothing else is installed there: torch's types are not needed for ours."""
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", str(installed), "client.py"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    revealed = re.findall(r'note: Revealed type is "(.*)"', told)
    assert revealed[0].endswith("int") and "Literal['exact']" in revealed[1] and revealed[2] == "autotune.config.Config"
    assert re.findall(r"^client.py:(\d+): error: (.*) to \"lookup\"", told, re.M) == [("9", "Argument 2")], told


@pytest.mark.slow
def test_an_installed_wheel_has_what_the_demo_replays(tmp_path: Path, installed: Path) -> None:
    """Of this environment it sees the other packages, but not the checkout."""
    here = next(place for place in map(Path, sys.path) if (place / "typer").is_dir())
    code = (
        f"import sys; sys.path.append({str(here)!r}); import autotune; print(autotune.__file__, file=sys.stderr)\n"
        "sys.argv = ['tune', 'demo', 'ar-64', '--trials', '3']; from autotune.cli import main; main()"
    )
    done = subprocess.run([installed, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stderr.splitlines()[0]).is_relative_to(installed.parent.parent)
    assert "winner" in done.stdout and "4 × H200" in done.stdout


ROOM = 20 << 30
"""Bytes that an environment takes with torch for GPUs in it, while it is made."""


@pytest.mark.slow
def test_an_installed_wheel_runs_beside_the_newest_torch_and_transformers(tmp_path: Path, wheel_file: Path) -> None:
    """Gigabytes, from a package index: the demo, a tuned kernel, and the styles for transformers' models. The newest
    Triton is the one that the newest torch asks for.
    """
    if shutil.disk_usage(tmp_path).free < ROOM:
        pytest.skip(f"needs {ROOM >> 30} GiB of disk")
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    names = ("torch", "transformers")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    report = tmp_path / "report.json"
    newest = {}
    for name in names:
        alone = [*pip, "--dry-run", "--no-deps", "--report", str(report), name]
        done = subprocess.run(alone, capture_output=True, text=True)
        if "No matching distribution" in done.stderr:
            pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        newest[name] = json.loads(report.read_text())["install"][0]["metadata"]["version"]
    done = subprocess.run([*pip, "--no-cache-dir", str(wheel_file), "triton", *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([*pip[:-2], "freeze"], capture_output=True, text=True, check=True).stdout
    assert {name: pins(shown.lower())[name] for name in names} == newest

    environment = {**os.environ, "TRITON_INTERPRET": "1", "XDG_DATA_HOME": str(tmp_path), "PYTHONPATH": ""}
    for words in (
        [str(place / "bin" / "tune"), "demo"],
        [python, str(ROOT / "docs" / "examples" / "matmul.py")],
        [python, "-c", "import autotune.nn.transformers, autotune.nn"],
    ):
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def pins(text: str) -> dict[str, str]:
    """Name to version of every ``name==version`` line."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", text, flags=re.MULTILINE))


def closure(requirements: Iterable[str], stop: Iterable[str] = ()) -> set[str]:
    """Names of what is installed for ``requirements``; what ``stop`` names is not followed and not included."""
    found: set[str] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in found and name not in stop:
            found.add(name)
            todo += map(Requirement, importlib.metadata.requires(name) or [])
    return found


def test_every_installed_version_is_locked() -> None:
    locked = pins((ROOT / "constraints.txt").read_text())
    needed = closure([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
    cuda = {name for name in needed if name.startswith(("nvidia-", "cuda-"))}  # torch for GPUs pins its own
    installed = {name: importlib.metadata.version(name).partition("+")[0] for name in needed - cuda}
    assert installed == {name: locked.get(name) for name in installed}
    assert set(locked) == set(installed), "constraints.txt locks what nothing needs"


def test_the_wheelhouse_is_what_a_host_with_torch_and_triton_lacks() -> None:
    before, heading, _ = (ROOT / "constraints.txt").read_text().partition("# torch, triton")
    assert heading
    assert set(pins(before)) == closure(PROJECT["dependencies"], stop=("torch", "triton"))
