"""A process of its own that opens databases and records trials; run by the tests of several processes.

It is sent the trials per database, and then the path of one database after another; each is answered with "done". While
it records, it says the number of each trial that ``record`` has returned from.
"""

from __future__ import annotations

import dataclasses
import warnings

from sample import KEY, PROVENANCE, TRIAL

from autotune.db import Store
from autotune.processes.bound import parents_connection


def main() -> None:
    warnings.simplefilter("error")
    driver = parents_connection()
    trials = driver.recv()
    driver.send("ready")
    while place := driver.recv():
        with Store.open(place) as store:
            study = store.study(KEY, PROVENANCE, seed=0, space_size=1)
            for number in range(trials):
                store.record(study.id, dataclasses.replace(TRIAL, number=number))
                driver.send(str(number))
        driver.send("done")


if __name__ == "__main__":
    main()
