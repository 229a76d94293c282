"""One rank's process in a measurement of a model: takes its order from the driver, answers with rows."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection

from autotune.errors import WrongResult
from autotune.model_runs.measuring import measured
from autotune.model_runs.ranks import Opening, ending_at_once
from autotune.processes.lifeline import die_with_parent
from autotune.ranks.rank import join


def main() -> None:
    """The descriptor of the connection is the first argument; rank 0 sends rows, each rank None at its end."""
    die_with_parent(int(sys.argv[2]))
    driver = Connection(int(sys.argv[1]))
    with ending_at_once():
        opening: Opening = driver.recv()
        join(opening.machine, opening.rank, opening.order.plan.ranks, opening.rendezvous)
        _answer(driver, opening)


def _answer(driver: Connection, opening: Opening) -> None:
    from autotune.runtime.context import Context

    order = opening.order
    try:
        with Context(order.heap_bytes, url=order.url, regime=order.regime) as context:
            for row in measured(order, context):
                if opening.rank == 0:
                    driver.send(row)
        driver.send(None)
    except WrongResult as error:
        driver.send(error)


if __name__ == "__main__":
    main()
