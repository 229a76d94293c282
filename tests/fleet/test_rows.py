"""The fleet's rows, on both kinds of database: claims, ends, retries, hosts set aside, stop and resume."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from small_fleet import MI300X, OLD_DRIVER, far_lease, host, m_of, wanted

from autotune.db import Lease, Store
from autotune.db.fleet import MOST_LOST, Fleet
from autotune.db.fleet_records import Claim, Counts, Finding
from autotune.db.lease import Held


def claim(fleet: Fleet, name: str = "a", problem: int | None = None) -> tuple[Claim, Lease]:
    lease = Lease.new()
    found = fleet.claim(name, lease, problem)
    assert found is not None
    return found, lease


def fail(fleet: Fleet, name: str) -> int:
    found, lease = claim(fleet, name)
    fleet.end(found.attempt, lease, "failed", "no config could be measured")
    return m_of(found.problem.wanted)


def do(fleet: Fleet, name: str) -> int:
    found, lease = claim(fleet, name)
    fleet.end(found.attempt, lease, "done", seconds=10.0)
    return m_of(found.problem.wanted)


def test_problems_are_added_once_and_handed_out_widest_first(fleet: Fleet) -> None:
    fleet.register(host("a"))
    assert fleet.add([wanted(1), wanted(2, world_size=4), wanted(3)]) == 3
    assert fleet.add([wanted(3), wanted(4)]) == 1
    assert [m_of(each.wanted) for each in fleet.doable(["a"], 9)] == [2, 1, 3, 4]
    assert [do(fleet, "a") for _ in range(4)] == [2, 1, 3, 4]
    assert fleet.claim("a", Lease.new()) is None
    assert fleet.counts() == Counts(done=4)
    assert fleet.snapshot().problem_seconds == 10.0


def test_what_is_in_the_cache_is_done_at_once(fleet: Fleet) -> None:
    both = [wanted(1), wanted(2)]
    fleet.add(both, done={both[0].identity})
    assert fleet.counts() == Counts(done=1, wanted=1)


def test_options_are_renewed_until_a_problem_is_under_way(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(1)])
    again = dataclasses.replace(wanted(1), options={"budget": "5m"})
    fleet.add([again])
    found, _ = claim(fleet)
    assert found.problem.wanted == again
    fleet.add([wanted(1)])
    assert fleet.running()[0].problem.wanted == again


@pytest.mark.parametrize("kind", [MI300X, OLD_DRIVER])
def test_hosts_of_another_kind_are_told_apart(fleet: Fleet, kind: object) -> None:
    fleet.register(dataclasses.replace(host("other"), kind=kind))
    fleet.register(host("narrow", gpus=1))
    fleet.add([wanted(1), wanted(1, kind=kind)])  # type: ignore[arg-type]
    assert [each.wanted.kind for each in fleet.doable(["narrow", "other"], 9)] == [kind]
    assert fleet.claim("narrow", Lease.new()) is None, "two GPUs are too many for it"
    found, _ = claim(fleet, "other")
    assert found.problem.wanted.kind == kind
    assert fleet.claim("other", Lease.new()) is None
    assert fleet.claim("never examined", Lease.new()) is None


def test_workers_that_claim_at_once_get_different_problems(fleet: Fleet, url: str) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(m) for m in range(1, 25)])
    together = threading.Barrier(6)

    def work() -> list[int]:
        with Store.open(url) as store:
            together.wait()
            found = []
            while (each := store.fleet.claim("a", lease := Lease.new())) is not None:
                found.append(m_of(each.problem.wanted))
                store.fleet.end(each.attempt, lease, "done")
            return found

    with ThreadPoolExecutor(6) as pool:
        ends = [pool.submit(work) for _ in range(6)]
        assert Counter(m for end in ends for m in end.result()) == dict.fromkeys(range(1, 25), 1)
    assert fleet.counts() == Counts(done=24)


def test_a_failure_is_retried_on_another_host_once_and_then_set_aside(fleet: Fleet) -> None:
    for name in ("a", "b", "c"):
        fleet.register(host(name))
    fleet.add([wanted(1)])
    fail(fleet, "a")
    assert fleet.claim("a", Lease.new()) is None
    assert fleet.doable(["a"], 9) == []
    [once] = fleet.snapshot().unlucky
    assert (once.state, once.reason, once.failed_on) == ("wanted", "a: no config could be measured", frozenset("a"))
    fail(fleet, "b")
    assert fleet.claim("c", Lease.new()) is None, "set aside"
    [aside] = fleet.snapshot().unlucky
    assert (aside.state, aside.reason) == ("failed", "b: no config could be measured")
    fleet.forgive()
    assert fleet.counts() == Counts(wanted=1)
    assert do(fleet, "a") == 1


def test_a_host_that_fails_three_in_a_row_that_others_pass_is_set_aside(fleet: Fleet) -> None:
    for name in ("bad", "good"):
        fleet.register(host(name))
    fleet.add([wanted(m) for m in range(1, 5)])
    assert [fail(fleet, "bad") for _ in range(3)] == [1, 2, 3]
    for m in (1, 2):
        assert do(fleet, "good") == m
        assert all(each.is_usable for each in fleet.hosts())
    assert do(fleet, "good") == 3
    [bad, good] = fleet.hosts()
    assert good.is_usable and bad.set_aside == "failed 3 problems in a row that other hosts pass"
    assert fleet.claim("bad", Lease.new()) is None and fleet.doable(["bad"], 9) == []
    assert fleet.register(host("bad")).set_aside, "an examination does not clear it"
    fleet.forgive()
    assert all(each.is_usable for each in fleet.hosts())


def test_three_failures_that_are_not_in_a_row_are_forgiven(fleet: Fleet) -> None:
    for name in ("a", "b"):
        fleet.register(host(name))
    fleet.add([wanted(m) for m in range(1, 6)])
    assert [fail(fleet, "a"), fail(fleet, "a"), do(fleet, "a"), fail(fleet, "a")] == [1, 2, 3, 4]
    assert [do(fleet, "b") for _ in range(4)] == [1, 2, 4, 5]
    assert all(each.is_usable for each in fleet.hosts())


def test_the_word_of_a_host_that_is_set_aside_counts_no_more(fleet: Fleet) -> None:
    for name in ("bad", "picky", "good"):
        fleet.register(host(name))
    fleet.add([wanted(m) for m in range(1, 4)])
    for _ in range(3):
        fail(fleet, "bad")
    assert fail(fleet, "picky") == 1
    assert fleet.counts() == Counts(failed=1, wanted=2)
    assert [do(fleet, "good"), do(fleet, "good")] == [2, 3]
    assert fleet.counts() == Counts(failed=1, done=2), "one of the three in a row is not known to be the host's fault"
    assert all(each.is_usable for each in fleet.hosts())
    fleet.add([wanted(4)])
    assert fail(fleet, "bad") == 4
    assert do(fleet, "good") == 4
    assert [each.name for each in fleet.hosts() if each.set_aside] == ["bad"]
    assert fleet.counts() == Counts(wanted=1, done=3), "the first one has one failure left"
    assert do(fleet, "good") == 1


def test_an_attempt_of_a_dead_process_is_lost_and_its_problem_wanted_again(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(1)])
    lease = far_lease()
    found = fleet.claim("a", lease)
    assert found is not None
    [seen] = fleet.running()
    assert fleet.beat(found.attempt, lease, "searching") == "running"
    assert not fleet.lose(found.attempt, seen.held, "silent"), "its heart has beaten since"
    [seen] = fleet.running()
    assert (seen.progress, seen.host) == ("searching", "a")
    assert fleet.lose(found.attempt, seen.held, "silent")
    assert fleet.beat(found.attempt, lease, "searching") is None
    assert fleet.counts() == Counts(wanted=1)
    again, other = claim(fleet)
    assert again.number == 2
    fleet.end(found.attempt, lease, "failed", "too late to say so")
    assert fleet.counts() == Counts(running=1)
    fleet.end(again.attempt, other, "done")
    assert fleet.counts() == Counts(done=1)


def test_one_that_was_given_up_may_still_come_home(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(1)])
    lease = far_lease()
    found = fleet.claim("a", lease)
    assert found is not None
    assert fleet.lose(found.attempt, Held(lease.text, 1), "silent")
    fleet.end(found.attempt, lease, "done", seconds=3.0)
    assert fleet.counts() == Counts(done=1)
    assert fleet.claim("a", Lease.new()) is None


def test_a_problem_that_kills_its_processes_is_set_aside(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(1)])
    for _ in range(MOST_LOST):
        found, lease = claim(fleet)
        fleet.end(found.attempt, lease, "lost", "died of SIGKILL")
    [aside] = fleet.snapshot().unlucky
    assert aside.reason == "5 attempts died; the last: a: died of SIGKILL"
    assert fleet.counts() == Counts(failed=1)


def test_stop_and_resume(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(m) for m in (1, 2, 3)])
    found, lease = claim(fleet)
    fleet.stop()
    assert fleet.counts() == Counts(stopping=1, stopped=2)
    assert fleet.claim("a", Lease.new()) is None
    assert fleet.beat(found.attempt, lease, "") == "stopping"
    fleet.end(found.attempt, lease, "stopped", "interrupted")
    assert fleet.counts() == Counts(stopped=3)
    fleet.resume()
    assert [do(fleet, "a") for _ in range(3)] == [1, 2, 3]


def test_resumed_before_it_has_stopped(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(1)])
    found, lease = claim(fleet)
    fleet.stop()
    fleet.resume()
    assert fleet.beat(found.attempt, lease, "") == "running"
    fleet.end(found.attempt, lease, "stopped", "interrupted")
    assert fleet.counts() == Counts(wanted=1)


def test_findings_are_rows_of_the_last_examination(fleet: Fleet) -> None:
    first = Finding("clocks", "could be better", "throttled", "cool it")
    fleet.register(dataclasses.replace(host("a"), findings=(first, Finding("links", "broken", "down")), broken="links"))
    [found] = fleet.hosts()
    assert found.findings == (first, Finding("links", "broken", "down")) and not found.is_usable
    fleet.add([wanted(1)])
    assert fleet.claim("a", Lease.new()) is None
    fleet.register(dataclasses.replace(host("a", gpus=4), findings=(first,)))
    assert fleet.hosts() == [dataclasses.replace(host("a", gpus=4), findings=(first,))]
    assert do(fleet, "a") == 1


def test_a_claim_whose_acknowledgement_was_lost_is_not_made_twice(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(1), wanted(2)])
    lease = Lease.new()
    assert fleet.claim("a", lease) == fleet.claim("a", lease)
    assert fleet.counts() == Counts(running=1, wanted=1)


def test_problems_that_are_on_their_way_are_not_offered_again(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(m) for m in (1, 2, 3)])
    first, *_ = fleet.doable(["a"], 9)
    assert [m_of(each.wanted) for each in fleet.doable(["a"], 9, besides=[first.id])] == [2, 3]
    assert [m_of(each.wanted) for each in fleet.doable(["a"], 1, besides=[first.id])] == [2]


def test_one_that_comes_home_late_counts_though_it_was_forgiven_or_its_problem_set_aside(fleet: Fleet) -> None:
    """And one that comes home while another host is at its problem leaves that one in peace."""
    fleet.register(host("a"))
    fleet.register(host("b"))
    fleet.add([wanted(1)])
    lost, lease = claim(fleet)
    assert fleet.lose(lost.attempt, Held(lease.text, 1), "silent")
    for name in ("a", "b"):
        fail(fleet, name)
    assert fleet.counts() == Counts(failed=1)
    fleet.end(lost.attempt, lease, "done", seconds=3.0)
    assert fleet.counts() == Counts(done=1)
    fleet.add([wanted(2)])
    lost, lease = claim(fleet)
    assert fleet.lose(lost.attempt, Held(lease.text, 1), "silent")
    again, other = claim(fleet, "b")
    fleet.end(lost.attempt, lease, "done", seconds=3.0)
    assert fleet.counts() == Counts(done=1, running=1)
    fleet.stop()
    fleet.end(again.attempt, other, "lost", "died")
    assert fleet.counts() == Counts(done=1, stopped=1), "not wanted: the fleet was stopped meanwhile"


def test_what_was_lost_and_forgiven_counts_no_more(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(1)])
    for _ in range(2):
        for _ in range(MOST_LOST - 1):
            found, lease = claim(fleet)
            fleet.end(found.attempt, lease, "lost", "died of SIGKILL")
        assert fleet.counts() == Counts(wanted=1)
        fleet.forgive()
    again, _ = claim(fleet)
    assert again.number == 2 * (MOST_LOST - 1) + 1


def test_the_number_of_an_attempt_and_the_pace_are_of_what_they_say(fleet: Fleet) -> None:
    for name in ("a", "b"):
        fleet.register(host(name))
    fleet.add([wanted(1), wanted(2)])
    found, lease = claim(fleet)
    fleet.end(found.attempt, lease, "failed", "no config could be measured", seconds=500.0)
    other, _ = claim(fleet, "a")
    assert (m_of(other.problem.wanted), other.number) == (2, 1), "the first attempt of this problem"
    assert fleet.snapshot().problem_seconds is None, "nothing is done yet"
    again, lease = claim(fleet, "b")
    assert again.number == 2
    fleet.end(again.attempt, lease, "done", seconds=20.0)
    assert fleet.snapshot().problem_seconds == 20.0


def test_a_snapshot_holds_so_many_unlucky_problems_and_a_beat_so_much_of_a_line(fleet: Fleet) -> None:
    fleet.register(host("a"))
    fleet.add([wanted(m) for m in (1, 2, 3)])
    found, lease = claim(fleet)
    assert fleet.beat(found.attempt, lease, "x" * 501) == "running"
    assert fleet.running()[0].progress == "x" * 500
    fleet.end(found.attempt, lease, "failed", "no config could be measured")
    assert fail(fleet, "a") == 2
    assert [len(fleet.snapshot(most).unlucky) for most in (1, 2, 3)] == [1, 2, 2]


def test_findings_of_other_hosts_stay(fleet: Fleet) -> None:
    first, second = Finding("clocks", "could be better", "throttled"), Finding("links", "could be better", "slow")
    fleet.register(dataclasses.replace(host("a"), findings=(first,)))
    fleet.register(dataclasses.replace(host("b"), findings=(second,)))
    assert [each.findings for each in fleet.hosts()] == [(first,), (second,)]


def test_failures_that_were_forgiven_set_no_host_aside(fleet: Fleet) -> None:
    for name in ("a", "b"):
        fleet.register(host(name))
    fleet.add([wanted(m) for m in range(1, 4)])
    assert [fail(fleet, "a"), fail(fleet, "a")] == [1, 2]
    fleet.forgive()
    assert [do(fleet, "b"), do(fleet, "b")] == [1, 2]
    assert fail(fleet, "a") == 3
    assert do(fleet, "b") == 3
    assert all(each.is_usable for each in fleet.hosts()), "one failure since, not three"


def test_a_problem_that_kills_its_processes_stays_aside_whoever_else_failed_it(fleet: Fleet) -> None:
    for name in ("bad", "good"):
        fleet.register(host(name))
    fleet.add([wanted(m) for m in range(1, 5)])
    assert [fail(fleet, "bad") for _ in range(4)] == [1, 2, 3, 4]
    deadly, *_ = fleet.doable(["good"], 9)
    for _ in range(MOST_LOST):
        found, lease = claim(fleet, "good", deadly.id)
        fleet.end(found.attempt, lease, "lost", "died of SIGKILL")
    assert [do(fleet, "good") for _ in range(3)] == [2, 3, 4]
    assert [each.name for each in fleet.hosts() if each.set_aside] == ["bad"]
    assert fleet.counts() == Counts(failed=1, done=3)


def test_options_of_a_problem_that_is_set_aside_are_renewed_too(fleet: Fleet) -> None:
    for name in ("a", "b"):
        fleet.register(host(name))
    fleet.add([wanted(1)])
    for name in ("a", "b"):
        fail(fleet, name)
    again = dataclasses.replace(wanted(1), options={"budget": "5m"})
    assert fleet.add([again]) == 0 and fleet.counts() == Counts(failed=1)
    fleet.forgive()
    assert claim(fleet)[0].problem.wanted == again
