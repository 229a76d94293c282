"""Views for people with a database browser. No code of this package reads them."""

from __future__ import annotations

from sqlalchemy import Connection

WINNERS = "tuning_winners"
"""One row for each finished study that none has superseded."""

SIZES = ("m", "n", "k")

COLUMNS = "id, workload, problem, world_size, device, regime, winner_config, finished_at, triton, torch"

IN_ITS_REGIME = (
    "CASE s.regime WHEN 'graph' THEN {median} WHEN 'pipelined' THEN {pipelined} ELSE coalesce({isolated}, {pipelined}) "
    "END"
)
"""A latency in its study's regime, as ``Latency.of`` has it."""


def make_views(connection: Connection) -> None:
    """Create the views; the tables are there and the views are not."""
    sqlite = connection.dialect.name == "sqlite"
    connection.exec_driver_sql(f"CREATE VIEW {WINNERS} AS {_winners(_Sqlite() if sqlite else _Postgresql())}")


class _Sqlite:
    """A missing or damaged JSON text makes no row: one bad row must not spoil the view."""

    greatest = "max"
    intact = " AND ".join(f"json_valid(s.{name})" for name in ("winner_latency", "winner_baselines", "winner_config"))

    def word(self, document: str, name: str) -> str:
        return f"json_extract({document}, '$.{name}')"

    number = word

    def size(self, document: str, name: str) -> str:
        return f"coalesce({self.number(document, name)}, {self.number(document, name.upper())})"

    def each(self, document: str) -> str:
        return f"json_each({document})"


class _Postgresql:
    greatest = "greatest"
    intact = "s.winner_config IS NOT NULL"

    def number(self, document: str, name: str) -> str:
        return f"({document}::json ->> '{name}')::double precision"

    def word(self, document: str, name: str) -> str:
        return f"({document}::json ->> '{name}')"

    def size(self, document: str, name: str) -> str:
        found = f"coalesce({self.word(document, name)}, {self.word(document, name.upper())})"
        return f"CASE WHEN {found} ~ '^[0-9]{{1,18}}$' THEN ({found})::bigint END"

    def each(self, document: str) -> str:
        return f"json_each({document}::json)"


def _winners(sql: _Sqlite | _Postgresql) -> str:
    def latency(document: str) -> str:
        median, host = sql.number(document, "median"), sql.number(document, "host")
        pipelined = f"{sql.greatest}({median}, coalesce({host}, {median}))"
        return IN_ITS_REGIME.format(median=median, pipelined=pipelined, isolated=sql.number(document, "isolated"))

    sizes = ", ".join(f"{sql.size('s.problem', name)} AS {name}" for name in SIZES)
    baseline = f"(SELECT min({latency('b.value')}) FROM {sql.each('s.winner_baselines')} AS b)"
    inner = (
        f"SELECT {', '.join(f's.{name}' for name in COLUMNS.split(', '))}, {sizes}, "
        f"{sql.word('s.winner_config', 'mode')} AS mode, {latency('s.winner_latency')} AS microseconds, "
        f"{baseline} AS baseline_microseconds "
        f"FROM tuning_studies AS s WHERE s.state = 'finished' AND {sql.intact}"
    )
    return (
        f"SELECT id AS study, workload, {', '.join(SIZES)}, world_size, device, regime, mode, microseconds, "
        "baseline_microseconds, baseline_microseconds / microseconds AS speedup, problem, winner_config AS config, "
        f"triton, torch, finished_at FROM ({inner}) AS w"
    )
