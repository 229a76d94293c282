"""A process that imports a file and is killed half-way: at the Nth entry. Arguments: database, file, N."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from autotune.db import Store
from autotune.db import store as module
from autotune.machine import INTERPRETED
from autotune.sharing import Here, read, review, take


def main(path: str, file: str, count: int) -> None:
    adopted = []
    original = module.rows.imported_row

    def dying(entry: object) -> object:
        adopted.append(entry)
        if len(adopted) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(entry)

    module.rows.imported_row = dying
    with Store.open(path) as store:
        take(store, review(read(Path(file).read_text()), Here.of(store), INTERPRETED))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
