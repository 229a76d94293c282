"""A list's state, from studies and leases alone."""

from __future__ import annotations

from fakes import EIGHT_GPUS, begun
from small_fleet import WORKLOAD, Host, asked, dead_lease, far_lease, lease

from autotune.db import CacheKey, Store
from autotune.fleet.standing import headline, rows_of, stop
from autotune.task import Task
from autotune.workloads import provenance_of


def test_each_problem_has_its_state(path: str) -> None:
    done, running, stopped, failed, died, waiting = (asked(16 * m) for m in range(1, 7))
    Host(path).run(done)
    lease(path, stopped, far_lease())
    with Store.open(path) as store:
        assert stop(rows_of([stopped], store), store) == 1
        lease(path, running, far_lease())
        lease(path, failed, dead_lease())
        lease(path, died, dead_lease())
        store.fail(CacheKey.of(Task(failed.problem, EIGHT_GPUS)), provenance_of(WORKLOAD), "far: no ranks")
        rows = rows_of([done, running, stopped, failed, died, waiting], store)
    assert [row.state for row in rows] == ["done", "running", "stopped", "failed", "waiting", "waiting"]
    assert rows[1].told.startswith("process ") and " on far since " in rows[1].told
    assert rows[3].told == "far: no ranks"
    assert [row.device for row in rows] == ["NVIDIA H200"] * 5 + [""]
    assert headline(rows) == "6 problems: 1 done, 1 running, 1 stopped, 1 failed, 2 waiting"


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
