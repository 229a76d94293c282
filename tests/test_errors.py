"""One tree of errors: as its docstring draws it, each with a word for the reader and an exit code for the shell."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest

from autotune import errors
from autotune.errors import AutotuneError


def subtree(error: type[AutotuneError], depth: int = 0) -> Iterator[tuple[int, str]]:
    """The classes of the module below ``error``, in the order in which they were defined."""
    yield depth, error.__name__
    for each in error.__subclasses__():
        if each.__module__ == errors.__name__:
            yield from subtree(each, depth + 1)


def drawn() -> list[tuple[int, str]]:
    """Depth and name on each line of the docstring's tree."""
    lines = re.findall(r"^ {4}((?:[│ ] {3})*(?:[├└]── )?)(\w+)", errors.__doc__ or "", flags=re.MULTILINE)
    return [(len(branches) // 4, name) for branches, name in lines]


def tree() -> list[type[AutotuneError]]:
    return [getattr(errors, name) for _, name in subtree(AutotuneError)]


def test_the_tree_is_the_one_that_is_drawn_and_the_module_holds_nothing_beside_it() -> None:
    assert drawn() == list(subtree(AutotuneError))
    assert {each for _, each in inspect.getmembers(errors, inspect.isclass)} == set(tree())


@pytest.mark.parametrize("error", tree(), ids=lambda error: error.__name__)
def test_what_the_caller_can_mend_exits_with_two(error: type[AutotuneError]) -> None:
    mendable = issubclass(error, (errors.InputError, errors.StoreError))
    assert error.exit_code == (2 if mendable else 1)
    assert str(error("said")) == "said" and error.__doc__
