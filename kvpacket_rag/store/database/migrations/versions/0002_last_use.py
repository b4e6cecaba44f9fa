"""When a packet was last used, so that a store with a limit knows which can go.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Packets made before count as used when they were made."""
    with op.batch_alter_table("packets") as table:
        table.add_column(sa.Column("used", sa.Float, nullable=False, server_default="0"))
    op.execute("update packets set used = created")
    op.create_index("packets_by_use", "packets", ["used"])
