"""A process of its own that opens databases and records trials; run by the tests of several processes.

It is sent the trials per database, and then the path of one database after another; each is answered with "done". While
it records, it says the number of each trial that ``record`` has returned from.
"""

from __future__ import annotations

import warnings

from autotune.config import Config
from autotune.db import CacheKey, Provenance, Store, TrialRecord
from autotune.outcome import Evaluation, Latency, Outcome

KEY = CacheKey("gemm", '{"m":64}', 2, "cpu-interpreter", "cpu", "shared-memory")
PROVENANCE = Provenance("abc", "f00d", "3.6.0", "", "2.11.0", "")


def main() -> None:
    from ranks_of_functions import drivers_connection

    warnings.simplefilter("error")
    driver = drivers_connection()
    trials = driver.recv()
    driver.send("ready")
    while place := driver.recv():
        with Store.open(place) as store:
            study = store.study(KEY, PROVENANCE, seed=0, space_size=1)
            for number in range(trials):
                latency = Latency(1.0 + number, 1.0, 2.0, 0.5, 10, (1.0, 2.0))
                evaluation = Evaluation(Outcome.MEASURED, latency=latency)
                store.record(study.id, TrialRecord(Config({"number": number}), evaluation, number=number))
                driver.send(str(number))
        driver.send("done")


if __name__ == "__main__":
    main()
