"""Settings: what is allowed, what is said of anything else, on the command line and in a program."""

from __future__ import annotations

import pytest

from autotune import settings
from autotune.errors import InputError
from autotune.settings import Setting


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.HEAP_BYTES, "4096", 4096),
        (settings.COMPILE_WORKERS, " 3 ", 3),
        (settings.WAIT_SECONDS, "1800", 1800),
        (settings.OFFLINE, "Yes", True),
        (settings.OFFLINE, "0", False),
        (settings.WORKLOADS, "a.py::b.py", ["a.py", "b.py"]),
        (settings.DATABASE, "postgresql://host/db", "postgresql://host/db"),
    ],
)
def test_what_is_allowed(setting: Setting[object], text: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setting.value() is None
    monkeypatch.setenv(setting.name, text)
    assert setting.value() == value
    monkeypatch.setenv(setting.name, "")
    assert setting.value() is None


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        *[(settings.HEAP_BYTES, text) for text in ("x", "0", "-1", "1e9", "4G", str(1 << 51))],
        *[(settings.COMPILE_WORKERS, text) for text in ("abc", "0", "1025", "2.5")],
        *[(settings.WAIT_SECONDS, text) for text in ("0", "-1", "inf", "1e7")],
        *[(settings.OFFLINE, text) for text in ("maybe", "2")],
    ],
)
def test_anything_else_is_refused(setting: Setting[object], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting.name, text)
    with pytest.raises(InputError) as told:
        setting.value()
    assert f"{setting.name}={text!r}" in str(told.value) and setting.allowed in str(told.value)
