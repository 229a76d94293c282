"""A process of its own that records trials until the disk is full; run by the tests of full disks.

Argument: the database's path. A file named ``ballast`` beside it is removed then, and one more trial recorded. Prints
as JSON what the store said when the disk was full, how many trials it had taken, and how many there are in the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sample import KEY, PROVENANCE

from autotune.config import Config
from autotune.db import Store, TrialRecord
from autotune.errors import StoreError
from autotune.outcome import Evaluation, Outcome

TRIAL = TrialRecord(Config({}), Evaluation(Outcome.CRASHED, "x" * 2000))


def main(path: Path) -> None:
    with Store.open(path) as store:
        study = store.study(KEY, PROVENANCE, seed=0, space_size=1)
        taken, said = 0, ""
        while not said and taken < 10_000:
            try:
                store.record(study.id, TRIAL)
                taken += 1
            except StoreError as error:
                said = str(error)
        kept = len(store.trials(study.id))
        ballast = path.with_name("ballast")
        if ballast.exists():
            ballast.unlink()
            store.record(study.id, TRIAL)
        print(json.dumps({"said": said, "taken": taken, "kept": kept, "in the end": len(store.trials(study.id))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
