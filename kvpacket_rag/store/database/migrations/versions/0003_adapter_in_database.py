"""The adapter of a store, in its database instead of a file beside it.

Revision ID: 0003
"""

import base64
from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Take the file over; it stays where it is and is not read any more."""
    connection = op.get_bind()
    database = connection.engine.url.database
    if connection.dialect.name != "sqlite" or not database:
        return
    file = Path(database).parent / "adapter.safetensors"
    if file.exists():
        facts = sa.table("facts", sa.column("key", sa.String), sa.column("value", sa.JSON))
        op.execute(facts.insert().values(key="adapter", value=base64.b64encode(file.read_bytes()).decode()))
