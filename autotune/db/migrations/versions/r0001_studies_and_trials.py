"""Revision 0001: studies and their trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

IDENTITY = (
    "workload", "problem", "world_size", "device", "arch", "interconnect",
    "source_hash", "space", "triton", "iris", "torch", "driver",
)  # fmt: skip


def upgrade() -> None:
    live = sa.text("state <> 'superseded'")
    op.create_table(
        "studies",
        sa.Column("id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Integer() if name == "world_size" else sa.Text(), nullable=False) for name in IDENTITY),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("space_size", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("finished_at", sa.Text()),
        sa.Column("winner_config", sa.Text()),
        sa.Column("winner_latency", sa.Text()),
        sa.Column("winner_baselines", sa.Text()),
        sa.Column("winner_limits", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_studies"),
    )
    op.create_index("ix_studies_live", "studies", list(IDENTITY), unique=True, sqlite_where=live, postgresql_where=live)
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer()),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("median", sa.Double()),
        sa.Column("low", sa.Double()),
        sa.Column("high", sa.Double()),
        sa.Column("skew", sa.Double()),
        sa.Column("iterations", sa.Integer()),
        sa.Column("by_rank", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("seconds", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_trials_study_id"),
    )
    op.create_index("ix_trials_study_id", "trials", ["study_id"])


def downgrade() -> None:
    """Refused: nothing measured is ever deleted."""
    raise NotImplementedError("there is nothing before the first revision")
