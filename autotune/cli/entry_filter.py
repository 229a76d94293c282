"""The entries that a command is asked for: of a name or of all, with some fields, of one device, of one regime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from autotune.cli.options import Request
from autotune.db import CacheKey, Entry
from autotune.errors import AutotuneError, InputError
from autotune.results.figures import dashed, options_text, plain
from autotune.sizes import size_ranges
from autotune.workloads import Workload

if TYPE_CHECKING:
    from autotune.db import Store


@dataclass(frozen=True)
class EntryFilter:
    """Everything, unless narrowed."""

    name: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields by name; those of a stored name are words, as the user wrote them."""
    device: str | None = None
    regime: str | None = None
    workload: Workload | None = None
    """The workload of the name, where it is known here."""

    @classmethod
    def of(cls, request: Request, regime: str | None = None) -> Self:
        return cls(request.workload.name, request.given, regime=regime, workload=request.workload)

    def takes(self, key: CacheKey) -> bool:
        """True for a key of this name, with these fields, on this device, in this regime."""
        if self.name is not None and dashed(key.workload) != dashed(self.name):
            return False
        if self.device is not None and key.device != self.device:
            return False
        if self.regime is not None and key.regime != self.regime:
            return False
        fields = key.fields
        return all(
            any(_same(name, there) and _equal(value, fields[there]) for there in fields)
            for name, value in self.given.items()
        )

    def entries(self, store: Store) -> list[Entry]:
        """The entries, newest first. Raises AutotuneError if there is none, InputError for an unknown field."""
        entries = store.entries(self.workload.name if self.workload is not None else None, self.device)
        found = [entry for entry in entries if self.takes(entry.key)]
        if not found:
            self.check_fields(entries)
            wanted = f"{dashed(self.name)} {options_text(self.given)}".strip() if self.name else "any workload"
            where = (f" on {self.device}" if self.device else "") + (f" for {self.regime}" if self.regime else "")
            raise AutotuneError(f"no finished study of {wanted}{where} in {store.place}; tune list shows all entries")
        return found

    def check_fields(self, entries: Sequence[Entry]) -> None:
        """Raise InputError for a field that nothing stored under this name has, or a word where all have numbers."""
        stored = [entry.key.fields for entry in entries if EntryFilter(self.name).takes(entry.key)]
        known = sorted({name for fields in stored for name in fields})
        for name, value in self.given.items():
            there = [each for fields in stored for other, each in fields.items() if _same(name, other)]
            if there and all(map(_is_integer, there)) and not (_is_integer(value) or _means_integers(value)):
                raise InputError(
                    f"--{dashed(name)} {value}: write a number, a list like 16,64 or a range like 16..1024"
                )
            if known and self.workload is None and not any(_same(name, each) for each in known):
                names = ", ".join(map(plain, known))
                if self.name:
                    raise InputError(f"{self.name} has no field {name}; it has {names}")
                raise InputError(f"no stored problem has a field {name}; there are {names}")


def fields(words: Sequence[str]) -> dict[str, str]:
    """``--M 512 --a.dtype=float16`` as fields with their words."""
    found, left = {}, list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if not name.startswith("--") or len(name) < 3 or (not equals and not left):
            raise InputError(f"{name}: expected a field of the kernel's key and its value, such as --M 4096")
        found[name[2:]] = value if equals else left.pop(0)
    return found


def _same(name: str, other: str) -> bool:
    return dashed(name) == dashed(other)


def _equal(value: Any, stored: Any) -> bool:
    """A word of the command line means the value that is written so; ``float16`` is ``torch.float16`` too."""
    text = plain(stored)
    if value == stored or not isinstance(value, str):
        return bool(value == stored)
    if value in (text, text.removeprefix("torch.")):
        return True
    return _is_integer(stored) and any(stored in sizes for sizes in size_ranges(value))


def _is_integer(stored: Any) -> bool:
    return isinstance(stored, int) and not isinstance(stored, bool)


def _means_integers(word: str) -> bool:
    return word.removeprefix("-").isdecimal() or bool(size_ranges(word))
