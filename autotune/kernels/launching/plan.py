"""A plan: the kernel launches of one operator call, to be run on a device, or compiled for one that is not here."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import AutotuneError
from autotune.machine import Machine

REGISTER_BYTES = 4


@dataclass(frozen=True)
class Launch:
    """One kernel launch: a ``@triton.jit`` function, its grid, its arguments by name, and num_warps and the like."""

    kernel: Any
    programs: int
    arguments: Mapping[str, Any]
    options: Mapping[str, int] = field(default_factory=dict)
    resident: int | None = None
    """Programs that must all have begun before any may end: those that wait for each other, where the order in which
    programs begin is not enough. What must be said is said here; the screening holds the compiled kernel to it."""
    _again: list[Callable[[], object]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Once it has run: the compiled kernel, bound to the arguments."""

    def run(self) -> None:
        """Enqueue it on the current stream (interpreter: run it)."""
        if self._again:
            self._again[0]()
            return
        settle_key(self.kernel)
        compiled = self.kernel[(self.programs,)](**self.arguments, **self.options)
        if compiled is not None:  # the interpreter compiles nothing
            # The first launch has bound, checked and specialised the arguments, and they stay as they are. Of a tensor
            # Triton takes the address, too, and then asks neither the tensor nor the driver about it at each launch.
            parameters = self.kernel.signature
            given = {name: value for name, value in self.options.items() if name in parameters.parameters}
            values = parameters.bind(**self.arguments, **given)
            values.apply_defaults()
            plain = [value.data_ptr() if hasattr(value, "data_ptr") else value for value in values.args]
            self._again.append(functools.partial(compiled[(self.programs, 1, 1)], *plain))

    def compile(self) -> Any:
        """Compile it for the current target without launching; the tensors may be on the ``meta`` device."""
        settle_key(self.kernel)
        return self.kernel.warmup(grid=(self.programs,), **self.arguments, **self.options)


def settle_key(function: Any, callers: tuple[Any, ...] = ()) -> None:
    """Make Triton's key of a kernel what it is in every process, so that what one has compiled is found by another.

    Triton (3.6, 3.7) puts into a function's key the constants of those functions that it calls whose own key was asked
    for before: it hangs on what else the process has compiled. So called functions come first here. Without it ranks
    compiled again, about 1 s for each config, what had been compiled ahead for them.
    """
    if getattr(function, "hash", "interpreted") is None:
        for called in _called_by(function):
            if called not in callers:  # a name may be a variable here, and a function of its module
                settle_key(called, (*callers, function))
        function.cache_key  # noqa: B018  it is made when it is read


def _called_by(function: Any) -> Iterator[Any]:
    from triton.runtime.jit import JITCallable

    names = function.__globals__
    for node in ast.walk(function.parse()):
        found = None
        if isinstance(node, ast.Name):
            found = names.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = getattr(names.get(node.value.id), node.attr, None)
        if isinstance(found, JITCallable) and found is not function:
            yield found


@dataclass(frozen=True)
class Compiled:
    """The compiler's figures for one kernel: bytes of shared memory (LDS); registers and spilled registers per thread.

    The latter two are None if they are unknown without loading the kernel. For NVIDIA all of a thread's stack counts as
    spilled.
    """

    name: str
    shared_memory: int
    registers: int | None
    spills: int | None
    warps: int = 4
    resident: int | None = None
    """The launch's number of programs that must be resident together."""


class CompileError(AutotuneError):
    """A kernel did not compile; the message is the compiler's first telling line."""


def compile_offline_for(machine: Machine) -> None:
    """From now on this process compiles for ``machine``, whatever device is at hand, and must not launch.

    The specialisation, and so the key in Triton's disk cache, is the one that a rank on such a machine computes: what
    is compiled here need not be compiled there again. Raises AutotuneError under the interpreter.
    """
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    if knobs.runtime.interpret:
        raise AutotuneError("offline compilation needs a process without TRITON_INTERPRET=1")
    arch: int | str = int(machine.arch.removeprefix("sm_")) if machine.kind == "cuda" else machine.arch
    driver.set_active(_OfflineDriver(GPUTarget(machine.kind, arch, machine.warp_size)))


class _OfflineDriver:
    """Just enough of a driver for ``JITFunction.warmup``: it has a target and no device."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> str:
        # JITFunction keeps its compiled kernels by device: one for each target keeps them apart.
        return f"offline {self._target}"

    def get_current_stream(self, device: str) -> int:
        return 0


def compile_all(launches: list[Launch]) -> list[Compiled]:
    """Compile every launch for the current target; raises CompileError with the compiler's own words."""
    import triton
    from triton.compiler.errors import CompilationError

    done = []
    for launch in launches:
        try:
            kernel = launch.compile()
        except (CompilationError, triton.runtime.errors.PTXASError, RuntimeError, ValueError, IndexError) as error:
            # MLIR's pass failures arrive as RuntimeError, unsupported layouts as ValueError or IndexError.
            raise CompileError(f"{launch.kernel.__name__}: {_telling_line(str(error))}") from error
        shared, warps = kernel.metadata.shared, kernel.metadata.num_warps
        done.append(Compiled(launch.kernel.__name__, shared, *registers_and_spills(kernel), warps, launch.resident))
    return done


def _telling_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[-1][:300]


def registers_and_spills(kernel: Any) -> tuple[int | None, int | None]:
    """Registers and spilled registers of a thread, where AMD's assembly or NVIDIA's tool states them."""
    if "amdgcn" in kernel.asm:
        stated = _stated(r"\.(vgpr_count|vgpr_spill_count): *(\d+)", kernel.asm["amdgcn"])
        return stated.get("vgpr_count"), stated.get("vgpr_spill_count")
    stated = _stated(r"(REG|STACK|LOCAL):(\d+)", _resource_usage(kernel.asm.get("cubin", b"")))
    return stated.get("REG"), (stated["STACK"] + stated["LOCAL"]) // REGISTER_BYTES if stated else None


def _stated(pattern: str, text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(pattern, text)}


def _resource_usage(cubin: bytes) -> str:
    """Figures from cuobjdump, which comes with Triton; empty if it is missing.

    Also empty on a machine with a device, as on a rank: there the time is better spent on measuring.
    """
    from triton import knobs
    from triton.runtime import driver

    if not isinstance(driver.active, _OfflineDriver):
        return ""
    try:
        tool = knobs.nvidia.cuobjdump.path
    except RuntimeError:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=False).stdout


def in_order(launches: Sequence[Launch]) -> Callable[[], None]:
    """Enqueues every launch on the current stream, in order."""
    if len(launches) == 1:
        return launches[0].run

    def run() -> None:
        for launch in launches:
            launch.run()

    return run
