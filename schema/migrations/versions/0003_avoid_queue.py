"""Where a shard's next run would rather not go. Expands only: code that does not know the column goes on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("shards", sa.Column("avoid_queue", sa.Text(), comment="the next run goes elsewhere if it can"))


def downgrade() -> None:
    op.drop_column("shards", "avoid_queue")
