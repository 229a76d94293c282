"""Checks of the software: torch, Iris, the compilers, the settings."""

from __future__ import annotations

import platform

from autotune.doctor.finding import Finding, advice, broken, fine
from autotune.doctor.host import Host
from autotune.errors import InputError
from autotune.machine import H100, MI300X, interpreter_clash
from autotune.settings import SETTINGS

DRIVERS = {"/proc/driver/nvidia/version": "CUDA", "/dev/kfd": "ROCm"}
"""Files that a GPU driver makes, with the platform that torch must be built for."""

OFFLINE = "see docs/offline-hosts.md"


def torch(host: Host) -> Finding:
    """Versions; torch must be built for the installed GPU driver."""
    present = [kind for sign, kind in DRIVERS.items() if host.exists(sign)]
    try:
        machine = host.machine()
    except (ImportError, OSError) as error:
        return broken(f"torch cannot be imported: {error}", f"install torch and triton; {OFFLINE}")
    known = {"python": platform.python_version(), **host.versions()}
    told = ", ".join(f"{name} {version}" for name, version in known.items() if version)
    if machine.is_interpreter and present:
        return broken(
            f"{told}; there is a {present[0]} driver, but torch sees no GPU",
            f"install torch built for {present[0]} in a version that fits the driver; unset CUDA_VISIBLE_DEVICES and "
            "HIP_VISIBLE_DEVICES; pass the GPUs into the container",
        )
    return fine(told)


def settings(host: Host) -> Finding:
    """The AUTOTUNE_ environment variables: names and values."""
    given, known = host.settings(), {setting.name: setting for setting in SETTINGS}
    unknown = sorted(set(given) - set(known))
    if unknown:
        return advice(f"{', '.join(unknown)}: unknown, ignored", f"known settings: {', '.join(known)}")
    try:
        for name, text in given.items():
            if text:
                known[name].parsed(text)
    except InputError as error:
        return broken(str(error), "correct it or unset it")
    return fine(", ".join(f"{name}={text}" for name, text in given.items()) or "none")


def interpreter(host: Host) -> Finding:
    """Triton's interpreter and the NumPy on which it computes; needed only without GPUs."""
    if not host.machine().is_interpreter:
        return fine("not needed with GPUs")
    triton, numpy = host.versions()["triton"], host.numpy()
    told = interpreter_clash(triton, numpy)
    return broken(*told) if told else fine(f"triton {triton} on numpy {numpy}")


def iris(host: Host) -> Finding:
    try:
        return fine(f"iris {host.iris()}".rstrip())
    except (ImportError, OSError) as error:
        told = f"Iris cannot be imported: {error}"
        return advice(f"{told}; the heap is torch's symmetric memory", f"pip install tokenspeed-iris; {OFFLINE}")


def compiler(host: Host) -> Finding:
    """A test compilation by Triton: for this machine's GPUs, or without GPUs for one of each vendor."""
    machine = host.machine()
    targets = [H100, MI300X] if machine.is_interpreter else [machine]
    for target in targets:
        failure = host.compile_kernel(target)
        if failure:
            return broken(
                f"a small kernel does not compile for {target.arch}: {failure}",
                f"install the triton that this torch requires: pip install --force-reinstall torch triton; {OFFLINE}",
            )
    return fine(f"compiles for {' and '.join(target.arch for target in targets)}, no GPU toolkit needed")


def launcher(host: Host) -> Finding:
    """The C compiler with which Triton builds the kernels' launchers; needed only with GPUs."""
    if host.machine().is_interpreter:
        return fine("not needed without GPUs")
    found = host.compiler()
    if found is None:
        return broken("no C compiler; Triton needs one to build its launchers", "install gcc or clang, or set CC")
    if not host.has_python_headers():
        return broken(f"{found}, but no Python.h", "install Python's headers: package python3-dev or python3-devel")
    return fine(found)
