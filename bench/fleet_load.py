"""The load of a fleet on its PostgreSQL server: many fake workers at once, and 1,000 hosts with 100,000 problems.

    python bench/fleet_load.py                            200 workers claim, beat and end as fast as they can
    python bench/fleet_load.py --workers 20 --seconds 5
    python bench/fleet_load.py --simulate                 1,000 hosts, 100,000 problems: rows, time per statement, and
                                                          the statements a second that such a fleet asks for

Starts a server of its own (Debian's postgresql). A worker is a thread with a connection of its own; nothing is tuned.
Client and server share this machine's cores, and the workers one Python process, which is the slower part: the CPU time
of the server per transaction tells what it could do with its cores for itself.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from arguments import new_parser, positive, whole

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "tests" / "db" / "helpers"), str(HERE / "tests" / "fleet")]

PROBLEM_SECONDS = 300.0
"""A problem's time in the calculation of what a fleet asks for."""

TRIALS = 250


@dataclasses.dataclass
class Times:
    """Seconds by step, from all workers."""

    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def take(self, step: str, work: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        found = work()
        took = time.perf_counter() - begin
        with self._lock:
            self.seconds.setdefault(step, []).append(took)
        return found

    def show(self, wall: float) -> None:
        print(f"{'step':<10}{'count':>8}{'a second':>10}{'median ms':>11}{'95 % ms':>9}{'worst ms':>10}")
        for step, all_of in self.seconds.items():
            found = sorted(1e3 * each for each in all_of)
            line = (statistics.median(found), found[int(0.95 * len(found))], found[-1])
            print(f"{step:<10}{len(found):>8}{len(found) / wall:>10.0f}{line[0]:>11.2f}{line[1]:>9.2f}{line[2]:>10.1f}")


def work(url: str, name: str, until: float, times: Times, together: threading.Barrier) -> None:
    """Claim, beat twice and end, again and again."""
    from autotune.db import Lease, Store

    with Store.open(url) as store:
        together.wait()
        while time.monotonic() < until:
            lease = Lease.new()
            claim = times.take("claim", lambda lease=lease: store.fleet.claim(name, lease))
            assert claim is not None
            for _ in range(2):
                times.take("beat", lambda claim=claim, lease=lease: store.fleet.beat(claim.attempt, lease, "searching"))
            times.take("end", lambda claim=claim, lease=lease: store.fleet.end(claim.attempt, lease, "done"))


def load(server: Any, url: str, workers: int, seconds: float) -> None:
    """All workers at once, each on a host of its own."""
    from small_fleet import host, wanted

    from autotune.db import Store

    with Store.open(url) as store:
        for number in range(workers):
            store.fleet.register(host(f"host{number}"))
        store.fleet.add(wanted(m) for m in range(1, 50_001))
        times, together = Times(), threading.Barrier(workers + 1)
        with ThreadPoolExecutor(workers) as pool:
            until = time.monotonic() + seconds + workers * 0.05
            ends = [pool.submit(work, url, f"host{i}", until, times, together) for i in range(workers)]
            together.wait()
            begin, before, own = time.monotonic(), server.cpu_seconds(), time.process_time()
            for end in ends:
                end.result()
            wall, own = time.monotonic() - begin, time.process_time() - own
        time.sleep(1.0)  # connections end
        spent = server.cpu_seconds() - before
        done = store.fleet.counts().done
    steps = len(times.seconds["claim"])
    assert done == steps, "nothing is lost, nothing is done twice"
    total = sum(map(len, times.seconds.values()))
    print(f"{workers} workers, {wall:.1f} s: {steps} problems, {total / wall:.0f} transactions a second")
    times.show(wall)
    print(f"CPU a transaction: server {1e3 * spent / total:.2f} ms, so {total / spent:.0f} a second on one core; "
          f"client {1e3 * own / total:.2f} ms")  # fmt: skip


def simulate(url: str, hosts: int, problems: int) -> None:
    """The tables at full size, and single statements against them."""
    from small_fleet import host, wanted

    from autotune.config import Config
    from autotune.db import Lease, Store, TrialRecord
    from autotune.outcome import Evaluation, Outcome

    times = Times()
    with Store.open(url) as store:
        fleet = store.fleet
        for number in range(hosts):
            times.take("register", lambda number=number: fleet.register(host(f"host{number}")))
        every = [wanted(m, world_size=(8, 4, 2, 1)[m % 4]) for m in range(1, problems + 1)]
        times.take("add all", lambda: fleet.add(every))
        times.take("add again", lambda: fleet.add(every))
        under_way = []
        for number in range(hosts):
            lease = Lease.new()
            claim = times.take("claim", lambda n=number, lease=lease: fleet.claim(f"host{n}", lease))
            under_way.append((claim, lease))
        names = [f"host{number}" for number in range(hosts)]
        for claim, lease in under_way:
            times.take("beat", lambda claim=claim, lease=lease: fleet.beat(claim.attempt, lease, "searching"))
        for _ in range(5):
            times.take("running", fleet.running)
            times.take("hand out", lambda: fleet.doable(names, hosts))
            times.take("status", fleet.snapshot)
        study = store.study(every[0].key, every[0].provenance, seed=0, space_size=1)
        trial = TrialRecord(Config({"mode": "push"}), Evaluation(Outcome.CRASHED, "simulated"))
        for _ in range(500):
            times.take("trial", lambda: store.record(study.id, trial))
        for claim, lease in under_way:
            times.take("end", lambda claim=claim, lease=lease: fleet.end(claim.attempt, lease, "done", seconds=300.0))
        for _ in range(5):
            times.take("nothing", lambda: fleet.doable(["a host of another kind"], 8))
        with store._database.engine.connect() as connection:
            for table in ("fleet_problems", "fleet_attempts", "fleet_hosts"):
                count, size = connection.exec_driver_sql(
                    f"SELECT count(*), pg_total_relation_size('{table}') FROM {table}"
                ).one()
                print(f"{table}: {count} rows, {size / 2**20:.1f} MiB with indexes")
    times.show(1.0)
    beats = hosts / 5.0
    per_problem = 2 + TRIALS
    print(f"{hosts} hosts ask for {2 * beats:.0f} heartbeats a second (the problem's and the study's), "
          f"{hosts / PROBLEM_SECONDS:.1f} claims and as many ends, {hosts * TRIALS / PROBLEM_SECONDS:.0f} trials "
          f"({TRIALS} trials in {PROBLEM_SECONDS:.0f} s a problem); {problems} problems take "
          f"{problems * PROBLEM_SECONDS / hosts / 3600:.1f} h and {problems * per_problem} writes")  # fmt: skip


def main() -> None:
    import postgres_server

    parser = new_parser(__doc__)
    parser.add_argument("--workers", type=whole, default=200)
    parser.add_argument("--seconds", type=positive, default=20.0)
    parser.add_argument("--simulate", action="store_true", help="1,000 hosts and 100,000 problems")
    parser.add_argument("--hosts", type=whole, default=1000)
    parser.add_argument("--problems", type=whole, default=100_000)
    asked = parser.parse_args()
    with postgres_server.running(asked.workers + 20) as server, server.new_database() as found:
        url = found.render_as_string(hide_password=False)
        if asked.simulate:
            simulate(url, asked.hosts, asked.problems)
        else:
            load(server, url, asked.workers, asked.seconds)


if __name__ == "__main__":
    main()
