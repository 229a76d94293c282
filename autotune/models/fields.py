"""The fields of a ``config.json``: one rule for numbers, one for flags, and what is said where they are broken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autotune.errors import InputError

MOST = 2**31 - 1


def whole_number(
    values: Mapping[str, Any], name: str, absent: int | None = None, *, least: int = 1, most: int = MOST
) -> int:  # fmt: skip
    """A number as JSON writes it: neither ``"64"`` nor ``true``. ``absent`` stands for null, too; None: it is needed.

    Raises InputError that names the field.
    """
    found = values.get(name)
    if found is None and absent is not None:
        return absent
    if type(found) is not int or not least <= found <= most:
        raise _refused(name, values, f"a whole number from {least} to {most}")
    return found


def whole_value(values: Mapping[str, Any], name: str) -> int:
    """A whole number that may be written as ``50.0``; 0 if absent or null."""
    found = values.get(name)
    if isinstance(found, float) and found.is_integer():
        return whole_number({name: int(found)}, name)
    return whole_number(values, name, 0)


def real_number(values: Mapping[str, Any], name: str) -> float:
    """0 where it is absent. Raises InputError that names the field."""
    found = values.get(name) or 0
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= MOST:
        raise _refused(name, values, f"a number from 0 to {MOST}")
    return float(found)


def flag(values: Mapping[str, Any], name: str) -> bool:
    """False where it is absent. Raises InputError that names the field."""
    found = values.get(name)
    if found is not None and not isinstance(found, bool):
        raise _refused(name, values, "true or false")
    return bool(found)


def layer_numbers(values: Mapping[str, Any], name: str) -> list[int]:
    """Empty where it is absent. Raises InputError that names the field."""
    found = values.get(name) or []
    if not isinstance(found, list) or any(type(each) is not int for each in found):
        raise _refused(name, values, "a list of layers")
    return found


def _refused(name: str, values: Mapping[str, Any], needed: str) -> InputError:
    written = f"{name}={json.dumps(values[name])}" if name in values else f"{name} is missing"
    return InputError(f"{written}: {needed} is needed")
