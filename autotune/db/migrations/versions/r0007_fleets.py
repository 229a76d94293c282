"""Revision 0007: a fleet's problems, attempts at them, hosts and the doctor's findings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEY = ("workload", "problem", "world_size", "device", "arch", "interconnect", "regime")
PROVENANCE = ("source_hash", "space", "triton", "iris", "torch", "driver")

KIND = ("device", "arch", "interconnect", "triton", "iris", "torch", "driver")


def upgrade() -> None:
    """Add four tables; nothing that is there changes."""
    op.create_table(
        "fleet_problems",
        sa.Column("id", sa.Integer(), nullable=False),
        *(_column(name, number=name == "world_size") for name in (*KEY, *PROVENANCE)),
        _column("options"),
        _column("turn", number=True),
        _column("state"),
        _column("reason", default=""),
        _column("created_at"),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_problems"),
    )
    op.create_index("ix_fleet_problems_identity", "fleet_problems", [*KEY, *PROVENANCE], unique=True)
    op.create_index("ix_fleet_problems_state", "fleet_problems", ["state"])
    op.create_index(
        "ix_fleet_problems_wanted", "fleet_problems", [*KIND, "turn", "id"], sqlite_where=sa.text("state = 'wanted'"),
        postgresql_where=sa.text("state = 'wanted'"),
    )  # fmt: skip
    op.create_table(
        "fleet_attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        *map(_column, ("host", "state")),
        _column("reason", default=""),
        _column("progress", default=""),
        _column("lease"),
        sa.Column("heartbeat", sa.BigInteger(), nullable=False),
        _column("started_at"),
        sa.Column("ended_at", sa.Text()),
        sa.Column("seconds", sa.Double()),
        _column("forgiven", number=True, default="0"),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_attempts"),
        sa.ForeignKeyConstraint(["problem_id"], ["fleet_problems.id"], name="fk_fleet_attempts_problem_id"),
    )
    op.create_index("ix_fleet_attempts_problem_id", "fleet_attempts", ["problem_id"])
    op.create_index("ix_fleet_attempts_host", "fleet_attempts", ["host"])
    op.create_index("ix_fleet_attempts_lease", "fleet_attempts", ["lease"], unique=True)
    running = sa.text("state = 'running'")
    op.create_index(
        "ix_fleet_attempts_under_way", "fleet_attempts", ["problem_id"], unique=True, sqlite_where=running,
        postgresql_where=running,
    )  # fmt: skip
    op.create_table(
        "fleet_hosts",
        sa.Column("id", sa.Integer(), nullable=False),
        _column("name"),
        _column("gpus", number=True),
        *map(_column, ("device", "arch", "interconnect", "triton", "iris", "torch", "driver", "examined_at")),
        _column("broken", default=""),
        _column("set_aside", default=""),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_hosts"),
    )
    op.create_index("ix_fleet_hosts_name", "fleet_hosts", ["name"], unique=True)
    op.create_table(
        "fleet_findings",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        *map(_column, ("name", "verdict", "found", "mend")),
        sa.PrimaryKeyConstraint("id", name="pk_fleet_findings"),
        sa.ForeignKeyConstraint(["host_id"], ["fleet_hosts.id"], name="fk_fleet_findings_host_id"),
    )
    op.create_index("ix_fleet_findings_host_id", "fleet_findings", ["host_id"])


def downgrade() -> None:
    """Refused: nothing measured is ever deleted."""
    raise NotImplementedError("the history of attempts would be lost")


def _column(name: str, *, number: bool = False, default: str | None = None) -> sa.Column[str | int]:
    return sa.Column(name, sa.Integer() if number else sa.Text(), nullable=False, server_default=default)
