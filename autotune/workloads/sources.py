"""The source files that a workload's results depend on, found by imports, and their hash: other results are stale."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from autotune.errors import InputError

PACKAGE = str(Path(__file__).parents[1])

STOPWATCH = "autotune.ranks.measure"

DECIDES_NOTHING = {
    "agreement": "how ranks wait for each other, and share their errors",
    "config": "a dictionary",
    "db": "where results lie",
    "device_rates": "for cost models and untuned configs",
    "errors": "words",
    "kernels.gemm.cost": "orders the first trials; every one is measured",
    "kernels.untuned": "chooses untuned configs",
    "machine": "the machine and the versions are part of the key and of the provenance",
    "outcome": "dataclasses",
    "problem": "its fields are the key",
    "processes": "folders and how processes end",
    "ranks.marks": "for calls that are traced, after the result",
    "search_spaces": "the space has a fingerprint of its own",
    "settings": "where things lie, and how many processes work",
    "task": "a dataclass",
    "text": "words and numbers as people read them",
    "workloads.guard": "messages",
    "workloads.interface": "the contract; a workload's own file can override its defaults",
    "workloads.provenance": "names this hash and the versions",
    "workloads.roofline": "orders the first trials; every one is measured",
    "workloads.sources": "this file",
    "workloads.tolerance": "dataclasses; a workload's own file says how much is allowed",
}
"""Modules and packages that workloads import and whose change makes none of their results wrong, and why."""

SPACE = re.compile(r"kernels\.\w+\.(\w+_)?space")
"""Modules that decide nothing either: a space has a fingerprint of its own."""

DECLARED = re.compile(r"kernels/\w+/(\w+_)?modes\.py")
"""Modules whose text decides nothing, while what they import may: ways read a mode's fields, and those of its tile."""

NAMES = ("kernels", "ranks", "workloads", "workloads.built_in")
"""Packages whose ``__init__`` only hands names on."""

IMPORTED = rb"import[ \t]*(\((?:[^)#]++|#[^\n]*+)*+\)|(?:\\\n|[^#\n])*+)"

IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?" + IMPORTED, re.M)

OUR_IMPORT = re.compile(rb" (autotune[.\w]*)(?: " + IMPORTED + rb")?")
"""Imports of this package: a fixed text is quickly found. Prose that names a module counts too: no harm.
"""

WORD = re.compile(rb"[\w.]+")

COMMENT = re.compile(rb"#[^\n]*")


def source_hash(own: Path | None, also: Iterable[str], kind: str = "") -> str:
    """Hash the texts of a workload's file, of the modules ``also``, of the stopwatch, and of all that these import from
    this package and from their own folders; before them ``kind``, the name of a user's class. Raises InputError for a
    name that is not a module.
    """
    texts = closure([*([own] if own else []), *files_of([*also, STOPWATCH])])
    return hashlib.sha256(b"".join([kind.encode(), *(text for _, text in sorted(texts))])).hexdigest()[:16]


def closure(files: Iterable[Path]) -> list[tuple[str, bytes]]:
    """The texts of the files and of what they import, with names that are the same on every machine: a user's are
    those from the file that comes to them first.

    Reads import statements, wherever they stand, and imports nothing: a first look-up waits for this.
    """
    todo = [(str(file), os.path.dirname(file)) for file in files]
    seen, found = dict[str, bool](), dict[str, tuple[str, bytes]]()
    while todo:
        file, home = todo.pop()
        if file in found:
            continue
        with open(file, "rb") as stream:
            text = stream.read()
        found[file] = os.path.relpath(file, PACKAGE if _is_ours(file) else home), text
        for name in imported(text, OUR_IMPORT if _is_ours(file) else IMPORT):
            for folder, below in _places(name, file, home):
                todo += [(each, home) for each in _files(below, folder, seen)]
    return [each for each in found.values() if not DECLARED.fullmatch(each[0])]


def imported(text: bytes, pattern: re.Pattern[bytes] = IMPORT) -> Iterator[str]:
    """The dotted names that a module's text imports: modules, and what may be a module within a package."""
    for package, names in pattern.findall(text):
        before = package.decode()
        if package:
            yield before
            before += "" if before.endswith(".") else "."
        for each in COMMENT.sub(b"", names).split(b","):
            if (word := WORD.search(each)) is not None:
                yield before + word[0].decode()


def _places(name: str, file: str, home: str) -> Iterator[tuple[str, str]]:
    """The folders in which a module of this name may lie that a file imports, and its name from there; for a user's
    file within ``home``, the folder of the workload's file.
    """
    first, _, rest = name.partition(".")
    if first == os.path.basename(PACKAGE):
        if rest:
            yield PACKAGE, rest
        return
    if _is_ours(file):
        return
    folder, below = os.path.dirname(file), name.lstrip(".")
    for _ in range(len(name) - len(below) - 1):
        if folder == home:
            return  # in another folder
        folder = os.path.dirname(folder)
    yield folder, below
    if name == below:  # not relative: also as Python finds it where ``home`` is on the path, or part of a package
        yield home, name
        top = home
        while os.path.isfile(os.path.join(top, "__init__.py")):
            top = os.path.dirname(top)
        package = os.path.relpath(home, top).replace(os.sep, ".")
        if f"{name}.".startswith(f"{package}."):
            yield home, name[len(package) + 1 :]


def _files(name: str, root: str, seen: dict[str, bool]) -> list[str]:
    """The new files of a module and of its packages below a folder. ``seen`` says of each place that was looked at
    whether it is a module, which has none below.
    """
    parts, found = name.split("."), []
    for count in range(1, len(parts) + 1):
        below = ".".join(parts[:count])
        if root == PACKAGE and (below in DECIDES_NOTHING or SPACE.fullmatch(below)):
            break
        place = os.path.join(root, *parts[:count])
        if place not in seen:
            seen[place] = os.path.isfile(place + ".py")
            package = os.path.join(place, "__init__.py")
            if seen[place]:
                found.append(place + ".py")
            elif (root != PACKAGE or below not in NAMES) and os.path.isfile(package):
                found.append(package)
        if seen[place]:
            break
    return found


def _is_ours(file: str) -> bool:
    return file.startswith(PACKAGE + os.sep)


def files_of(names: Iterable[str]) -> list[Path]:
    """The files of modules and, for packages, of all modules below.

    Imports nothing but the packages that the modules lie in. Raises InputError for a name that is not a module.
    """
    found: list[Path] = []
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise InputError(f"sources names {name!r}, which cannot be imported as a module")
        if spec.origin is not None:
            found.append(Path(spec.origin))
        for place in spec.submodule_search_locations or ():
            for folder, _, files in os.walk(place):
                found += [Path(folder, file) for file in files if file.endswith(".py")]
    return found
