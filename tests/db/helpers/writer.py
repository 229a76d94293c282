"""A process of its own that opens databases and records trials; run by the tests of several processes.

Arguments: trials per database. Each line of input is a database's path; each is answered with "done" on a line. While
it records, it prints the number of each trial that ``record`` has returned from.
"""

from __future__ import annotations

import sys

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, TrialRecord
from autotune.outcome import Evaluation, Latency, Outcome

KEY = CacheKey("gemm", '{"m":64}', 2, "cpu-interpreter", "cpu", "shared-memory")
PROVENANCE = Provenance("abc", "f00d", "3.6.0", "", "2.11.0", "")


def main(trials: int) -> None:
    """Serve the paths that come on standard input."""
    print("ready", flush=True)
    for line in sys.stdin:
        with Store.open(line.strip()) as store:
            study = store.study(KEY, PROVENANCE, seed=0, space_size=1)
            for number in range(trials):
                latency = Latency(1.0 + number, 1.0, 2.0, 0.5, 10, (1.0, 2.0))
                evaluation = Evaluation(Outcome.MEASURED, latency=latency)
                store.record(study.id, TrialRecord(Config({"number": number}), evaluation, number=number))
                print(number, flush=True)
        print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
