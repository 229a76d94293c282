"""A list's state, from studies and leases alone."""

from __future__ import annotations

from fakes import EIGHT_GPUS, begun
from small_fleet import WORKLOAD, Host, asked

from autotune.db import Store
from autotune.fleet.standing import rows_of
from autotune.task import Task


def test_other_versions_results_do_not_count(path: str) -> None:
    with Store.open(path) as store:
        for name, value in (("torch", "1.0"), ("source_hash", "0" * 16), ("driver", "1")):
            begun(store, WORKLOAD, Task(asked(16).problem, EIGHT_GPUS), **{name: value})
        assert [(row.device, row.state) for row in rows_of([asked(16)], store)] == [("NVIDIA H200", "waiting")], (
            "a driver is the host's"
        )


def test_a_problem_that_was_only_verified_is_still_to_be_searched(path: str) -> None:
    searched, verified = asked(16), asked(16, search=False)
    assert Host(path).run(verified) == ["done"]
    with Store.open(path) as store:
        assert [row.state for row in rows_of([searched, verified], store)] == ["waiting", "done"]
    Host(path).run(asked(32))
    with Store.open(path) as store:
        assert [row.state for row in rows_of([asked(32, search=False)], store)] == ["done"], "a search tells as much"
