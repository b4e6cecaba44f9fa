"""Add the last use of a packet, so that a store with a limit can evict the least recently used packets.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column. Existing packets count as last used when they were created."""
    with op.batch_alter_table("packets") as table:
        table.add_column(sa.Column("used", sa.Float, nullable=False, server_default="0"))
    op.execute("update packets set used = created")
    op.create_index("packets_by_use", "packets", ["used"])
