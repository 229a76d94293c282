"""Revision 0005: tables named so that an Optuna storage, which has ``studies`` and ``trials``, may lie beside them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

IDENTITY = (
    "workload", "problem", "world_size", "device", "arch", "interconnect", "regime",
    "source_hash", "space", "triton", "iris", "torch", "driver",
)  # fmt: skip


def upgrade() -> None:
    """Rename the tables and all that has a name in a database: indexes, and on a server constraints and sequences."""
    live = sa.text("state <> 'superseded'")
    for table in ("studies", "trials"):
        op.drop_index(f"ix_{table}_record_key", table_name=table)
    op.drop_index("ix_studies_live", table_name="studies")
    op.drop_index("ix_trials_study_id", table_name="trials")
    for table in ("studies", "trials"):
        op.rename_table(table, f"tuning_{table}")
        op.create_index(f"ix_tuning_{table}_record_key", f"tuning_{table}", ["record_key"], unique=True)
    op.create_index(
        "ix_tuning_studies_live", "tuning_studies", list(IDENTITY), unique=True, sqlite_where=live,
        postgresql_where=live,
    )  # fmt: skip
    op.create_index("ix_tuning_trials_study_id", "tuning_trials", ["study_id"])
    if op.get_bind().dialect.name == "postgresql":
        for table in ("studies", "trials"):
            op.execute(f"ALTER TABLE tuning_{table} RENAME CONSTRAINT pk_{table} TO pk_tuning_{table}")
            op.execute(f"ALTER SEQUENCE {table}_id_seq RENAME TO tuning_{table}_id_seq")
        op.execute("ALTER TABLE tuning_trials RENAME CONSTRAINT fk_trials_study_id TO fk_tuning_trials_study_id")


def downgrade() -> None:
    """Refused: an Optuna storage may have taken the old names."""
    raise NotImplementedError("the old names may be another program's by now")
